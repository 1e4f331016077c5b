"""`spark.read.format("zkgroups")`: the data source, and its registration with a Spark session.

    zkgroups.spark.register(spark)
    spark.read.format("zkgroups").option("zookeeper", "zk1:2181/kafka").load()

The driver plans shares, workers read them: each opens a session of its own, lists the groups, and reads what is in its
share. See `options.py` for the options and `tables.py` for the columns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from .options import DEFAULT_PARALLELISM, SourceOptions
from .reading import read_batches
from .selection import Condition, Selection, Test
from .tables import SCHEMAS, Table

NAME: Final = "zkgroups"

_PUSHDOWN_PROGRAM: Final = "pyspark.sql.worker.data_source_pushdown_filters"


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

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002, nobody can give another than ours
        """One that takes conditions, where this session hands them out; where it does not, it refuses such a reader."""
        return (SelectiveReader if _conditions_are_handed_out() else Reader)(self._options)


def _conditions_are_handed_out() -> bool:
    """Spark plans in one of two programs, which it names to the process that runs them."""
    return _PUSHDOWN_PROGRAM in sys.argv


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task reads."""

    selection: Selection


class Reader(DataSourceReader):
    """Reads a table in shares."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._selection = Selection(options.groups, options.topics)

    def partitions(self) -> Sequence[InputPartition]:
        """On the driver: one share for each task. That ZooKeeper can be reached is found out here, once."""
        self._options.connect().close()
        shares = self._options.parallelism or DEFAULT_PARALLELISM
        return [Share(replace(self._selection, share=number, shares=shares)) for number in range(shares)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """On a worker: the rows of one share, as Arrow batches."""
        assert isinstance(partition, Share)
        return read_batches(self._options, partition.selection)


class SelectiveReader(Reader):
    """Reads only the groups and topics that a query asks for."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the conditions on group and topic, and hand back the others."""
        has_topics = self._options.table is not Table.MEMBERS
        for each in filters:
            column, condition = _condition(each)
            if condition is not None and column == "group":
                taken = (*self._selection.group_conditions, condition)
                self._selection = replace(self._selection, group_conditions=taken)
            elif condition is not None and column == "topic" and has_topics:
                taken = (*self._selection.topic_conditions, condition)
                self._selection = replace(self._selection, topic_conditions=taken)
            else:
                yield each


_TESTS: Final[dict[type[Filter], Test]] = {
    EqualTo: Test.IS,
    In: Test.IS_ONE_OF,
    StringStartsWith: Test.STARTS_WITH,
    StringEndsWith: Test.ENDS_WITH,
    StringContains: Test.CONTAINS,
}


def _condition(given: Filter) -> tuple[str, Condition | None]:
    """The column and the condition on it, None for one that we leave to Spark."""
    test = _TESTS.get(type(given))
    if test is None:
        return "", None
    column, value = given.attribute[-1], given.value  # type: ignore[attr-defined]
    values = tuple(value) if test is Test.IS_ONE_OF else (value,)
    return column, Condition(test, values) if all(isinstance(text, str) for text in values) else None


def register(spark: SparkSession) -> None:
    """Make `format("zkgroups")` known to a session.

    Its workers run this interpreter, in which zkgroups is installed, unless PYSPARK_PYTHON or spark.pyspark.python says
    otherwise. Other functions of the session are left as they are.
    """
    context = spark.sparkContext
    usual = context.pythonExec
    if not (os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")):
        context.pythonExec = sys.executable
    try:
        spark.dataSource.register(ZkgroupsSource)
    finally:
        context.pythonExec = usual
