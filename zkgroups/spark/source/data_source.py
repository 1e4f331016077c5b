"""`spark.read.format("zkgroups")`: the data source, and its registration with a Spark session.

    zkgroups.spark.register(spark)
    spark.read.format("zkgroups").option("zookeeper", "zk1:2181/kafka").load()

The driver plans shares, workers read them: each opens a session of its own, lists the groups, and reads what is in its
share. See `options.py` for the options and `tables.py` for the columns. `stream.py` is the same as a stream.

Conditions of a query are left to Spark, also where it would hand them to us (`filterPushdown`). Up to 4.3 it keeps what
was planned for one query and uses it for the next one on the same DataFrame, which then misses rows: tried, and the
tests have the queries. The options `groups` and `topics` say what not to read.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ...datadir.data_dir import State
from ...exceptions import InvalidOptionError
from . import data_dir_reader
from .options import DEFAULT_PARALLELISM, SourceOptions, Starting
from .selection import Selection
from .stream import StreamReader
from .table_reader import read_batches
from .tables import SCHEMAS

NAME: Final = "zkgroups"


class ZkgroupsSource(DataSource):
    """Offsets, owners and members of legacy consumer groups."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = SourceOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """What stands in `format`."""
        return NAME

    def schema(self) -> StructType:
        """The columns of the table asked for."""
        return SCHEMAS[self._options.table]

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads the table; the columns are the table's own."""
        self._check_columns(schema)
        if self._options.starting_zxid is not Starting.EARLIEST or self._options.begin_anew:
            raise InvalidOptionError("startingZxid", self._options.starting_zxid, "only a stream begins somewhere")
        return Reader(self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """What reads offsets as they are committed; the columns are those of the table."""
        self._check_columns(schema)
        return StreamReader(self._options)

    def _check_columns(self, schema: StructType) -> None:
        if _columns(schema) != _columns(self.schema()):
            reason = "each table has columns of its own: leave the schema out"
            raise InvalidOptionError("schema", schema.simpleString(), reason)


def _columns(schema: StructType) -> list[tuple[object, ...]]:
    return [(each.name, each.dataType, each.nullable) for each in schema]


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task reads: of a server as it is then, or of a data directory as it was found by the driver."""

    selection: Selection
    state: State | None = None


class Reader(DataSourceReader):
    """Reads a table in shares."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """On the driver: one share for each task. That ZooKeeper can be reached is found out here, once."""
        options, state = self._options, None
        if options.files is None:
            options.connect().close()
        else:
            state = data_dir_reader.found(options.files, options.zxid)
        shares = options.parallelism or (DEFAULT_PARALLELISM if state is None else 1)
        return [Share(Selection(options.groups, options.topics, number, shares), state) for number in range(shares)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """On a worker: the rows of one share, as Arrow batches."""
        assert isinstance(partition, Share)
        if partition.state is not None:
            return data_dir_reader.read_batches(self._options, partition.selection, partition.state)
        return read_batches(self._options, partition.selection)


_CHOOSING: Final = threading.Lock()
"""The interpreter is a matter of the whole context, for a moment."""


def register(spark: SparkSession) -> None:
    """Make `format("zkgroups")` known to a session.

    Its workers run this interpreter, in which zkgroups is installed, unless PYSPARK_PYTHON or spark.pyspark.python says
    otherwise. Other functions of the session are left as they are.
    """
    with active(spark), our_interpreter(spark.sparkContext):
        spark.dataSource.register(ZkgroupsSource)


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make it the active session of this thread for a while: in that one Spark looks for the sources that it knows."""
    sessions = SparkSession._get_j_spark_session_class(cast(Any, spark.sparkContext._jvm))
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


@contextmanager
def our_interpreter(context: SparkContext) -> Iterator[None]:
    """What is registered, or made a function of a job, meanwhile runs ours, unless somebody chose another."""
    with _CHOOSING:
        usual = context.pythonExec
        if not (os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")):
            context.pythonExec = sys.executable
        try:
            yield
        finally:
            context.pythonExec = usual
