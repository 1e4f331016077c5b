"""Legacy consumer groups as Spark tables, and snapshots of them as Parquet. Needs the extra `zkgroups[spark]`.

zkgroups.spark.register(spark)
offsets = spark.read.format("zkgroups").option("zookeeper", "zk1:2181/kafka").load()
"""

from .source import register

__all__ = ["register"]
