"""`spark.read.format("zkgroups")`: the data source, and its registration with a Spark session.

    zkgroups.spark.register(spark)
    spark.read.format("zkgroups").option("zookeeper", "zk1:2181/kafka").load()

The driver plans shares and workers read them. Each worker opens its own session, lists the groups, and reads its share.
See `options.py` for the options, `tables.py` for the columns, and `stream.py` for streaming reads.

Filters are not pushed down. Up to Spark 4.3, Spark reuses the partitions planned for one query in the next query on
the same DataFrame, which then misses rows (the tests contain such queries). Use the options `groups` and `topics` to
read less.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import DataType, MapType, StructType

from ..core.history.events import Commit, HistoryEvent, OwnerChange
from ..core.selection import Selection
from ..core.table_columns import COLUMNS, HISTORY_COLUMNS, Table, TableColumn, columns_json
from ..datadir.data_dir import DataDirState
from ..datadir.history import GapReason, HistoryReader, LogGap, LogPart, history_files, log_parts, logs_of_period
from ..exceptions import DamagedDataError, InvalidOptionError
from ..snapshots.snapshot import TableCounts, TableShares
from ..tables import data_dir_reader
from ..tables.history_batches import history_batches
from ..tables.parquet_files import to_columns
from ..tables.share_reader import read_share
from ..tables.source_options import DEFAULT_PARALLELISM, HistoryOptions, SourceOptions, Starting, history_table
from ..tables.sums import TaskSum
from .pyspark_internals import active_session, arrow_schema, driver_interpreter, literal_paths, map_in_arrow
from .stream import StreamReader

# Columns as Spark's types. `core/table_columns.py` defines them.


def spark_schema(columns: Sequence[TableColumn]) -> StructType:
    """Return the Spark schema of columns."""
    return StructType.fromJson(json.loads(columns_json(columns)))


SCHEMAS: Final = {table: spark_schema(COLUMNS[table]) for table in Table}


# Read tables written by other versions: missing columns become null, unknown columns are dropped.


def strict_reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader that takes paths literally, because a folder may be named [1], and verifies checksums."""
    reader = literal_paths(spark.read)
    return reader.option("parquet.page.verify-checksum.enabled", "true")


def to_current_columns(frame: DataFrame, table: Table, origin: str) -> DataFrame:
    """Convert a table to the columns of this version. Errors name its origin, such as a snapshot.

    A frame that has these columns is returned unchanged, because a select is slow.
    """
    if [(each.name, each.dataType) for each in frame.schema] == [(e.name, e.dataType) for e in SCHEMAS[table]]:
        return frame
    there = arrow_schema(frame.schema)
    kept = to_columns(there.empty_table(), COLUMNS[table], origin).schema

    def column(name: str, wanted: DataType) -> Column:
        if name not in frame.columns:
            return f.lit(None).cast(wanted).alias(name)
        if kept.field(name).type == there.field(name).type or isinstance(wanted, MapType):
            return f.col(name)  # maps differ only in nullability
        return f.col(name).cast(wanted).alias(name)

    return frame.select(*(column(each.name, each.dataType) for each in SCHEMAS[table]))


# Read a table with one task per share.
#
# zkgroups itself reads tables with this function. The data source is for queries of users: to plan a read of it,
# Spark starts two more processes of Python.


def read_shares(
    spark: SparkSession, options: SourceOptions, counted: TaskSum[TableCounts] | None = None, always: Sequence[str] = ()
) -> DataFrame:
    """Return the rows of a table, in as many partitions as the options say. `counted` adds them up as they are read.

    With a `starting_zxid`, all rows of the groups in `always` are returned, too.
    """
    shares = options.parallelism or 1
    state = None if options.files is None else data_dir_reader.find_state(options.files, options.zxid)
    with driver_interpreter(spark.sparkContext), active_session(spark):
        numbers = spark.range(0, shares, 1, shares)
        return map_in_arrow(
            numbers, TableShares(options, shares, state, counted, tuple(always)), SCHEMAS[options.table]
        )


# Read the tables of a history: each task reads some transaction logs, and logs before them that lead to their state.
#
# Transactions that are missing between others are an error, which names them. So a table never misses them silently.
# If only the beginning of the logs is missing, because older logs were deleted, that is logged as a warning, unless
# the option `since` asks for earlier transactions.


log = logging.getLogger("zkgroups.spark")

HISTORY_SCHEMAS: Final = {table: spark_schema(columns) for table, columns in HISTORY_COLUMNS.items()}


@dataclass(frozen=True)
class LogShare(InputPartition):
    """The logs that one task reads."""

    part: LogPart


class HistoryTableReader(DataSourceReader):
    """Reads a table of a history in parts."""

    def __init__(self, options: HistoryOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the logs of the period, on the driver."""
        options = self._options
        logs = logs_of_period(history_files(options.files).logs, options.period)
        return [LogShare(part) for part in log_parts(logs, options.parallelism or DEFAULT_PARALLELISM)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read some logs as Arrow batches, on a worker."""
        assert isinstance(partition, LogShare)
        return history_batches(self._options.table, self._events(partition.part), self._options.shown_cluster)

    def _events(self, part: LogPart) -> Iterator[HistoryEvent]:
        options, selection = self._options, self._options.selection
        reader = HistoryReader(options.files, has_group=selection.has_group, period=options.period, part=part)
        for item in reader.items():
            if isinstance(item, LogGap):
                self._check(item)
            elif not isinstance(item, Commit | OwnerChange) or selection.has_topic(item.group, item.topic):
                yield item

    def _check(self, gap: LogGap) -> None:
        if gap.reason is GapReason.PURGED and self._options.since is None:
            log.warning("%s", gap.text)
            return
        cures = [] if gap.before is None else [f"set since to 0x{gap.before:x} or later"]
        cures += [f"set until to 0x{gap.after:x}"] if gap.after else []
        raise DamagedDataError(self._options.data_dir, ": ".join([gap.text, *([" or ".join(cures)] if cures else [])]))


NAME: Final = "zkgroups"


class ZkgroupsSource(DataSource):
    """Offsets, owners and members of legacy consumer groups, and their history."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options: SourceOptions | HistoryOptions
        self._options = HistoryOptions.parse(options) if history_table(options) else SourceOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to `format`."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the selected table."""
        if isinstance(self._options, HistoryOptions):
            return HISTORY_SCHEMAS[self._options.table]
        return SCHEMAS[self._options.table]

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader. Raise InvalidOptionError for a schema other than the table's own."""
        self._check_columns(schema)
        if isinstance(self._options, HistoryOptions):
            return HistoryTableReader(self._options)
        start = self._options.starting_zxid
        if start is Starting.LATEST:
            raise InvalidOptionError("startingZxid", start, "it applies only to a stream")
        if self._options.start_over:
            raise InvalidOptionError("startOver", "true", "it applies only to a stream")
        if start is not Starting.EARLIEST and self._options.table is not Table.OFFSETS:
            raise InvalidOptionError("startingZxid", start, "it applies only to offsets")
        return Reader(self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a streaming reader. Raise InvalidOptionError for a schema other than the table's own."""
        self._check_columns(schema)
        if isinstance(self._options, HistoryOptions):
            raise InvalidOptionError("table", self._options.table.value, "a table of a history cannot be streamed")
        return StreamReader(self._options)

    def _check_columns(self, schema: StructType) -> None:
        if _columns(schema) != _columns(self.schema()):
            reason = "each table has a fixed schema: do not set one"
            raise InvalidOptionError("schema", schema.simpleString(), reason)


def _columns(schema: StructType) -> list[tuple[object, ...]]:
    return [(each.name, each.dataType, each.nullable) for each in schema]


@dataclass(frozen=True)
class Share(InputPartition):
    """The selection that one task reads; with a data directory, also the state that the driver found."""

    selection: Selection
    state: DataDirState | None = None


class Reader(DataSourceReader):
    """Reads a table in shares."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Plan one share per task, on the driver. Fails fast if ZooKeeper cannot be reached."""
        options, state = self._options, None
        if options.files is None:
            options.connect().close()
        else:
            state = data_dir_reader.find_state(options.files, options.zxid)
        shares = options.parallelism or (DEFAULT_PARALLELISM if state is None else 1)
        return [Share(Selection(options.groups, options.topics, number, shares), state) for number in range(shares)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one share as Arrow batches, on a worker."""
        assert isinstance(partition, Share)
        return read_share(self._options, partition.selection, partition.state)


def register(spark: SparkSession) -> None:
    """Register `format("zkgroups")` with a session, for batch and streaming reads.

        spark.read.format("zkgroups").option("zookeeper", "zk1:2181/kafka").option("table", "owners").load()

    `help(zkgroups.spark.SourceOptions)` explains the options, and `help(zkgroups.spark.Table)` lists the columns.
    The workers run the interpreter of the driver, unless PYSPARK_PYTHON or spark.pyspark.python names another. Other
    functions of the session are not affected.
    """
    with active_session(spark), driver_interpreter(spark.sparkContext):
        spark.dataSource.register(ZkgroupsSource)
