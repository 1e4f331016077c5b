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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ...core.selection import Selection
from ...core.tables import Table
from ...datadir.data_dir import DataDirState
from ...exceptions import InvalidOptionError
from ...tables import data_dir_reader
from ...tables.history_options import HistoryOptions, history_table
from ...tables.share_reader import read_share
from ...tables.source_options import DEFAULT_PARALLELISM, SourceOptions, Starting
from ..pyspark_internals import active_session, driver_interpreter
from .history import HISTORY_SCHEMAS, HistoryTableReader
from .stream import StreamReader
from .tables import SCHEMAS

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
