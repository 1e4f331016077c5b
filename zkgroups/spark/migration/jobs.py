"""Functions over Arrow batches as a step of a Spark job, for groups that stay whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from ..source.data_source import active, our_interpreter
from .arrow_rows import schema
from .row_counts import with_tally

Work: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]
"""From Arrow batches to Arrow batches: called once for each task, on a worker, where it opens what it needs."""

TASKS_PER_CORE: Final = 2
"""More of them show more often how far a job is, and each connects anew."""


def tasks(spark: SparkSession) -> int:
    """How many to have for a job."""
    return TASKS_PER_CORE * spark.sparkContext.defaultParallelism


def by_target(rows: DataFrame, count: int) -> DataFrame:
    """The same rows for so many tasks: those of one target in one task, together and in order."""
    return rows.repartition(count, "target").sortWithinPartitions("target", "group", "topic", "partition")


def mapped(rows: DataFrame, work: Work, kind: type[Any], *, tally: bool = False) -> DataFrame:
    """What `work` makes of them: rows of that dataclass, and what is to be counted where there is a tally.

    As `DataFrame.mapInArrow`, which up to 4.3 asks for pandas and does not use it; and by the interpreter that has
    zkgroups.
    """
    spark = rows.sparkSession
    with our_interpreter(spark.sparkContext), active(spark):
        made = UserDefinedFunction(
            work, with_tally(kind) if tally else schema(kind), evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        )
        column: Any = made(*[rows[name] for name in rows.columns])
        return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), spark)
