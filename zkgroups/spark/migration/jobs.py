"""Running a function over Arrow batches as a step of a Spark job, with groups kept whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from ..pyspark_internals import active_session, driver_interpreter, map_in_arrow
from .arrow_rows import schema
from .row_counts import schema_with_tally

BatchFunction: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]
"""From Arrow batches to Arrow batches. It is called once per task, on a worker, and opens its own connections."""

TASKS_PER_CORE: Final = 2
"""More tasks show progress more often, but each has to connect."""


def tasks(spark: SparkSession) -> int:
    """Return the number of tasks for a job."""
    return TASKS_PER_CORE * spark.sparkContext.defaultParallelism


def by_target(rows: DataFrame, count: int) -> DataFrame:
    """Distribute rows over `count` tasks: all rows of a target go to one task, together and in order."""
    return rows.repartition(count, "target").sortWithinPartitions("target", "group", "topic", "partition")


def map_batches(rows: DataFrame, function: BatchFunction, kind: type[Any], *, tally: bool = False) -> DataFrame:
    """Apply a function that returns rows of this dataclass; if they are counted, with their flags (`row_counts`).

    Runs in the interpreter that has zkgroups installed.
    """
    spark = rows.sparkSession
    with driver_interpreter(spark.sparkContext), active_session(spark):
        return map_in_arrow(rows, function, schema_with_tally(kind) if tally else schema(kind))
