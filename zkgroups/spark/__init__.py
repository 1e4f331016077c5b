"""Legacy consumer groups as Spark tables, and snapshots and audits of them as Parquet.

Needs the extra `zkgroups[spark]`.

    zkgroups.spark.register(spark)
    offsets = spark.read.format("zkgroups").option("zookeeper", "zk1:2181/kafka").load()

    taken = zkgroups.spark.take_snapshot(spark, "/data/groups", "zk1:2181/kafka")
    zkgroups.spark.read_snapshot(spark, "/data/groups").where("problem is not null").show()
    zkgroups.spark.diff_snapshots(spark, "/data/groups", "previous", "latest").where("went_back > 0").show()

    zkgroups.spark.run_audit(spark, "/data/audit", "zk1:2181/kafka", once=True)
    zkgroups.spark.read_audit(spark, "/data/audit").where("offset < before").show()
"""

from ..audit.audit import AuditResult, AuditStep
from ..core.history_columns import HistoryTable
from ..core.tables import Table
from ..snapshots.snapshot import Snapshot, Survey, survey
from ..tables.history_options import HistoryOptions
from ..tables.source_options import SourceOptions
from .audit.audit import run_audit
from .audit.read_audit import offsets_at, read_audit
from .snapshots.diff import diff_snapshots
from .snapshots.listing import list_snapshots
from .snapshots.snapshot import read_snapshot, snapshot_names, take_snapshot
from .snapshots.verify import verify_snapshots
from .source.data_source import register

__all__ = [
    "AuditResult",
    "AuditStep",
    "HistoryOptions",
    "HistoryTable",
    "Snapshot",
    "SourceOptions",
    "Survey",
    "Table",
    "diff_snapshots",
    "list_snapshots",
    "offsets_at",
    "read_audit",
    "read_snapshot",
    "register",
    "run_audit",
    "snapshot_names",
    "survey",
    "take_snapshot",
    "verify_snapshots",
]
