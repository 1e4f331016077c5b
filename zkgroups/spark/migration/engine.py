"""The engine that distributes the rows of a plan over Spark's tasks, with files on any Hadoop file system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar, cast

import pyarrow as pa
from pyspark import AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ...core.migration.plan_rows import Tally
from ...input_errors import InvalidOptionError
from ...migration.arrow_rows import TIME, arrow_schema, table
from ...migration.plan_folder import PlanFolder
from ...migration.stored_rows import ORDER
from ...migration.tasks import BatchFunction, OnProgress
from ...storage.atomic_folder import write_list
from ...tables.sums import Addition, TaskSum
from ..data_source import strict_reader
from ..errors import translated
from ..files import HadoopFiles, check_row_count, check_shared, rows_in, write_plain
from ..pyspark_internals import active_session, driver_interpreter, map_in_arrow
from ..session import interruptible, share_done
from ..snapshots import session_beside

T = TypeVar("T")

TASKS_PER_CORE: Final = 2
"""More tasks show progress more often, but each has to connect."""

MIN_ROWS_PER_TASK: Final = 5_000
"""With fewer rows, a task takes longer to connect than to do its work."""

ROWS_PER_EXTRA_TASK: Final = 50_000
"""With this many rows per task, more tasks than cores are useful: they show the progress of the job."""


_ONE_FILE_PER_TASK: Final = {
    "spark.sql.files.maxPartitionBytes": str(2**40),
    "spark.sql.files.openCostInBytes": str(2**40),
}
"""The files of a plan are never split: each has whole targets."""

_WITHOUT_STATISTICS: Final = {
    "parquet.column.statistics.enabled": "false",
    "parquet.size.statistics.enabled": "false",
}
"""To collect the statistics of a plan takes a quarter of the time to write it, and nothing uses them."""


class SparkEngine:
    """Works with a Spark session, without changing its settings and sources. `Engine` describes the methods."""

    def __init__(self, spark: SparkSession) -> None:
        self._callers = spark
        self.spark = session_beside(spark)
        for setting, value in _ONE_FILE_PER_TASK.items():
            self.spark.conf.set(setting, value)

    def files(self, destination: str) -> HadoopFiles:
        return HadoopFiles(self.spark, destination)

    def folder(self, destination: str) -> PlanFolder:
        return PlanFolder(self.files(destination), destination)

    def run(self, work: Callable[[OnProgress], T], on_progress: OnProgress | None) -> T:
        """Do the work on a separate thread, so that a signal never interrupts a call to Java."""
        return interruptible(self._callers, work, on_progress)

    def check_writes_to(self, destination: str) -> None:
        check_shared(self._callers, destination)

    def check_writes_once(self) -> None:
        """Raise an error if Spark may run two copies of a task: one could delete what the other has restored."""
        if (self._callers.conf.get("spark.speculation", "false") or "").lower() == "true":
            raise InvalidOptionError(
                "spark.speculation", True, "two tasks must not write to one group at a time: set it to false"
            )

    def share_done(self) -> float:
        """Return the share of completed tasks."""
        return share_done(self.spark)

    def tally_sum(self) -> TaskSum[Tally]:
        return self.spark.sparkContext.accumulator(Tally(), cast("AccumulatorParam[Tally]", Addition()))

    def rows(self, kind: type[T], rows: Sequence[T]) -> SparkRows:
        return SparkRows(self.spark.createDataFrame(table(kind, rows)))

    def read(self, kind: type[Any], path: str, *columns: str) -> SparkRows:
        with translated(f"{path} cannot be read"):  # with a schema, because inferring one needs a job
            frame = strict_reader(self.spark).schema(schema(kind)).parquet(path)
            return SparkRows(frame.select(*columns) if columns else frame)

    def count(self, path: str) -> int:
        with translated(f"{path} cannot be read"):
            return rows_in(self.spark, path)[1]


class SparkRows:
    """Rows as a data frame. `Rows` describes the methods."""

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame

    def joined(self, other: Self) -> Self:
        return type(self)(self.frame.unionByName(other.frame))

    def by_target(self, *, count: int | None = None, tasks: int | None = None) -> Self:
        order = [name for name in ORDER if name in self.frame.columns]
        tasks = tasks or _task_count(self.frame.sparkSession, count)
        return type(self)(self.frame.repartition(tasks, "target").sortWithinPartitions(*order))

    def stored_by_target(self, *, count: int, files: int) -> Self:
        tasks = _task_count(self.frame.sparkSession, count)
        # In a single file, earlier versions of the local engine could write the rows of a target apart.
        return self if files >= max(tasks, 2) else self.by_target(count=count)

    def map(self, function: BatchFunction, kind: type[Any]) -> Self:
        """Apply a function, in the interpreter that has zkgroups installed."""
        spark = self.frame.sparkSession
        with driver_interpreter(spark.sparkContext), active_session(spark):
            return type(self)(map_in_arrow(self.frame, function, schema(kind)))

    def write(self, path: str, failure: str, counted: TaskSum[Tally]) -> Tally:
        spark = self.frame.sparkSession
        with active_session(spark), translated(failure):
            write_plain(self.frame, path, **_WITHOUT_STATISTICS)
            found = counted.value
            check_row_count(spark, path, found.rows)
            write_list(HadoopFiles(spark, path), path, found.rows)
        return found

    def collect(self, failure: str) -> Any:
        with active_session(self.frame.sparkSession), translated(failure):
            return self.frame.toArrow()


def _task_count(spark: SparkSession, rows: int | None) -> int:
    cores = spark.sparkContext.defaultParallelism
    if rows is None:
        return TASKS_PER_CORE * cores
    return min(TASKS_PER_CORE * cores, 1 + rows // MIN_ROWS_PER_TASK, max(cores, rows // ROWS_PER_EXTRA_TASK))


# Columns


def schema(kind: type[Any]) -> StructType:
    """Return the columns of these rows for Spark."""
    return StructType([_field(each) for each in arrow_schema(kind)])


def _field(field: Any) -> StructField:
    return StructField(field.name, _type(field.type), field.nullable)


def _type(arrow: Any) -> DataType:
    if pa.types.is_list(arrow):
        return ArrayType(_type(arrow.value_type), arrow.value_field.nullable)
    if pa.types.is_struct(arrow):
        return StructType([_field(each) for each in arrow])
    return _PRIMITIVES[arrow]


_PRIMITIVES: Final[dict[Any, DataType]] = {
    pa.string(): StringType(),
    pa.int64(): LongType(),
    pa.float64(): DoubleType(),
    pa.bool_(): BooleanType(),
    pa.binary(): BinaryType(),
    TIME: TimestampType(),
}
