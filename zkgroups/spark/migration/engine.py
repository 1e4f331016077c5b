"""The engine that distributes the rows of a plan over Spark's tasks, with files on any Hadoop file system."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self, TypeVar, cast

import pyarrow as pa
from pyspark import AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from ...core.migration.tally import Tally
from ...input_errors import InvalidOptionError
from ...migration.arrow_rows import arrow_schema, row, table
from ...migration.engine import BatchFunction, OnProgress
from ...migration.plan_folder import PlanFolder
from ...migration.tallies import TallyAddition, TallySum
from ...storage.atomic_folder import write_list
from ..errors import translated
from ..pyspark_internals import active_session, driver_interpreter, literal_paths, map_in_arrow
from ..session import share_done
from ..snapshots.snapshot import session_beside
from ..spark_thread import interruptible
from ..storage.hadoop_files import HadoopFiles
from ..storage.writing import check_row_count, check_shared, rows_in, write_plain

T = TypeVar("T")

TASKS_PER_CORE: Final = 2
"""More tasks show progress more often, but each has to connect."""

MIN_ROWS_PER_TASK: Final = 5_000
"""With fewer rows, a task takes longer to connect than to do its work."""

ROWS_PER_EXTRA_TASK: Final = 50_000
"""With this many rows per task, more tasks than cores are useful: they show the progress of the job."""


class SparkEngine:
    """A Spark session. Its settings and sources do not change."""

    def __init__(self, spark: SparkSession) -> None:
        self._callers = spark
        self.spark = session_beside(spark)

    def folder(self, destination: str) -> PlanFolder:
        """Return the folder of a plan."""
        return PlanFolder(HadoopFiles(self.spark, destination), destination)

    def run(self, work: Callable[[OnProgress], T], on_progress: OnProgress | None) -> T:
        """Do the work on a separate thread, so that a signal never interrupts a call to Java."""
        return interruptible(self._callers, work, on_progress)

    def check_writes_to(self, destination: str) -> None:
        """Raise NotSharedError if workers may not share the file system of a folder with this process."""
        check_shared(self._callers, destination)

    def check_writes_once(self) -> None:
        """Raise an error if Spark may run a task twice at a time: one copy could delete what the other has restored."""
        if (self._callers.conf.get("spark.speculation", "false") or "").lower() == "true":
            raise InvalidOptionError("spark.speculation", True, "two tasks must not write to one group at a time")

    def share_done(self) -> float:
        """Return the share of completed tasks."""
        return share_done(self.spark)

    def tally_sum(self) -> TallySum:
        """Return a sum for the tasks of one write."""
        return self.spark.sparkContext.accumulator(Tally(), cast("AccumulatorParam[Tally]", TallyAddition()))

    def rows(self, kind: type[T], rows: Sequence[T]) -> SparkRows:
        """Distribute rows of a dataclass."""
        return SparkRows(self.spark.createDataFrame(table(kind, rows)))

    def read(self, kind: type[Any], *paths: str) -> SparkRows:
        """Return the rows of Parquet files in these folders, whose files were checked."""
        with translated(f"{paths[0]} cannot be read"):  # with a schema, because inferring one needs a job
            return SparkRows(self._frame(kind, *paths))

    def _frame(self, kind: type[Any], *paths: str) -> DataFrame:
        return literal_paths(self.spark.read.schema(schema(kind))).parquet(*paths)

    def count(self, path: str) -> int:
        """Return the number of rows in a folder, from the footers of its files."""
        with translated(f"{path} cannot be read"):
            return rows_in(self.spark, path)[1]

    def first(self, path: str, kind: type[T], failure: str) -> T | None:
        """Return any row of a folder."""
        with translated(failure):
            found = self._frame(kind, path).first()
        return None if found is None else row(kind, found.asDict())


class SparkRows:
    """Rows as a data frame."""

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame

    def select(self, *columns: str) -> Self:
        """Return these columns."""
        return type(self)(self.frame.select(*columns))

    def by_target(self, *, count: int | None = None, tasks: int | None = None) -> Self:
        """Bring all rows of a target together, in order."""
        order = [name for name in ("target", "group", "topic", "partition") if name in self.frame.columns]
        tasks = tasks or _task_count(self.frame.sparkSession, count)
        return type(self)(self.frame.repartition(tasks, "target").sortWithinPartitions(*order))

    def map(self, function: BatchFunction, kind: type[Any]) -> Self:
        """Apply a function, in the interpreter that has zkgroups installed."""
        spark = self.frame.sparkSession
        with driver_interpreter(spark.sparkContext), active_session(spark):
            return type(self)(map_in_arrow(self.frame, function, schema(kind)))

    def write(self, path: str, failure: str, counted: TallySum) -> Tally:
        """Write the rows to a new folder with its list of files. Return the sum that their tasks have `counted`."""
        spark = self.frame.sparkSession
        with active_session(spark), translated(failure):
            write_plain(self.frame, path)
            found = counted.value
            check_row_count(spark, path, found.rows)
            write_list(HadoopFiles(spark, path), path, found.rows)
        return found

    def collect(self, failure: str) -> Any:
        """Return all rows as an Arrow table."""
        with active_session(self.frame.sparkSession), translated(failure):
            return self.frame.toArrow()

    def sorted(self, kind: type[T], keys: Sequence[str], failure: str) -> Iterator[T]:
        """Yield the rows in order. At most the rows of one task are in memory."""
        found = self.frame.sort(*keys)
        with translated(failure):
            for each in found.toLocalIterator():
                yield row(kind, each.asDict())


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
}
