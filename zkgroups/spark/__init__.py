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
from ..core.table_columns import HistoryTable, Table
from ..snapshots.snapshot import Snapshot, Survey, survey
from ..tables.source_options import HistoryOptions, SourceOptions
from .audit import offsets_at, read_audit, run_audit
from .data_source import register
from .snapshots import diff_snapshots, list_snapshots, read_snapshot, snapshot_names, take_snapshot, verify_snapshots

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
