"""Legacy consumer groups as Spark tables, and snapshots of them as Parquet. Needs the extra `zkgroups[spark]`.

zkgroups.spark.register(spark)
offsets = spark.read.format("zkgroups").option("zookeeper", "zk1:2181/kafka").load()

taken = zkgroups.spark.snapshot(spark, "/data/groups", "zk1:2181/kafka")
zkgroups.spark.read_snapshot(spark, "/data/groups").where("problem is not null").show()
zkgroups.spark.diff_snapshots(spark, "/data/groups", "previous", "latest").where("went_back > 0").show()

zkgroups.spark.audit(spark, "/data/audit", "zk1:2181/kafka", once=True)
zkgroups.spark.read_audit(spark, "/data/audit").where("offset < before").show()
"""

from .audit import Audited, AuditStep, audit
from .history.diff import diff_snapshots
from .history.listing import list_snapshots
from .history.verify import verify_snapshots
from .ledger import read_audit, standing_at
from .options import SourceOptions
from .snapshot import Snapshot, Survey, read_snapshot, snapshot, snapshots, survey
from .source import register
from .tables import Table

__all__ = [
    "AuditStep",
    "Audited",
    "Snapshot",
    "SourceOptions",
    "Survey",
    "Table",
    "audit",
    "diff_snapshots",
    "list_snapshots",
    "read_audit",
    "read_snapshot",
    "register",
    "snapshot",
    "snapshots",
    "standing_at",
    "survey",
    "verify_snapshots",
]
