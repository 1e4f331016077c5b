"""Legacy consumer groups as Spark tables, and snapshots of them as Parquet. Needs the extra `zkgroups[spark]`.

zkgroups.spark.register(spark)
offsets = spark.read.format("zkgroups").option("zookeeper", "zk1:2181/kafka").load()

taken = zkgroups.spark.snapshot(spark, "/data/groups", "zk1:2181/kafka")
zkgroups.spark.read_snapshot(spark, "/data/groups").where("problem is not null").show()
"""

from .options import SourceOptions
from .snapshot import Snapshot, Survey, read_snapshot, snapshot, snapshots, survey
from .source import register
from .tables import Table

__all__ = [
    "Snapshot",
    "SourceOptions",
    "Survey",
    "Table",
    "read_snapshot",
    "register",
    "snapshot",
    "snapshots",
    "survey",
]
