"""The commits of an audit together with those in the transaction logs of its ZooKeeper, each of them once."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ...core.layouts.legacy import LEGACY
from ...tables.history_options import HistoryOptions
from ..pyspark_internals import active_session
from ..source.data_source import NAME, register

_SAME: Final = ("group", "topic", "partition", "zxid", "committed_at")
"""The columns that two rows of one commit share. A ZooKeeper that was wiped uses the numbers of transactions again."""


def with_logs(commits: DataFrame, logs: HistoryOptions) -> DataFrame:
    """Return the recorded commits, and all commits in the logs. A commit that is in both is taken from the logs."""
    spark = commits.sparkSession
    register(spark)
    with active_session(spark):
        logged = spark.read.format(NAME).options(**logs.as_text()).load().where("event != 'deleted'")
    same = reduce(and_, (f.col(f"recorded.{name}").eqNullSafe(f.col(f"logged.{name}")) for name in _SAME))
    only_recorded = commits.alias("recorded").join(logged.alias("logged"), same, "left_anti")
    shared = logged.select(*(name for name in commits.columns if name in logged.columns))
    return only_recorded.unionByName(shared.withColumn("layout", f.lit(LEGACY.text)), allowMissingColumns=True)
