"""What there is: the snapshots of a destination, each with what is in it, as its summary says.

Those of earlier versions say nothing of themselves. Their rows are counted, in one job for all of them, and how many
groups there were is not known, because one that has no rows was counted, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from ...exceptions import SparkJobError
from ..errors import translated
from ..source.tables import Table
from .layout import Layout, snapshot_time
from .summary import Summary


@dataclass(frozen=True, slots=True)
class Listed:
    """A snapshot: when it was begun, whose groups are in it, and how much; None is not known.

    `problems` are the rows that say what is wrong with a node, `size` is that of its files in bytes.
    """

    name: str
    time: datetime
    cluster: str | None
    groups: int | None
    offsets: int | None
    owners: int | None
    members: int | None
    problems: int | None
    size: int
    zxid: int | None = None
    """Of files, after which transaction; None of a server, which was read at that time."""


SCHEMA: Final = StructType(
    [
        StructField("name", StringType(), False),
        StructField("time", TimestampType(), False),
        StructField("cluster", StringType()),
        *(StructField(name, LongType()) for name in ("groups", "offsets", "owners", "members", "problems")),
        StructField("size", LongType(), False),
        StructField("zxid", LongType()),
    ]
)

Counts: TypeAlias = Mapping[tuple[str, str], Any]
"""What was counted, by the names of snapshots and tables."""


def list_snapshots(spark: SparkSession, destination: str) -> DataFrame:
    """The snapshots of a destination, oldest first; the columns are the fields of `Listed`."""
    rows = [asdict(each) for each in listing(spark, destination)]
    return spark.createDataFrame(pa.Table.from_pylist(rows, to_arrow_schema(SCHEMA, timezone="UTC")), SCHEMA)


def listing(spark: SparkSession, destination: str) -> list[Listed]:
    """The same as objects; an error if there is no such folder."""
    layout = Layout(spark, destination)
    layout.check_there()
    summaries = {name: _summary(layout, name) for name in layout.snapshots()}
    silent = {
        name: {table: layout.files(table, name) for table in Table}
        for name, summary in summaries.items()
        if summary is None
    }
    counts = _counted(spark, layout, silent)
    return [
        _without_summary(name, silent[name], counts) if summary is None else _with_summary(name, summary)
        for name, summary in summaries.items()
    ]


def _summary(layout: Layout, name: str) -> Summary | None:
    with suppress(SparkJobError):  # a list is there, whatever has happened to a file: see `verify.py`
        return layout.summary(name)
    return None


def _with_summary(name: str, summary: Summary) -> Listed:
    tables = summary.tables
    return Listed(
        name,
        snapshot_time(name),
        summary.cluster,
        summary.groups,
        offsets=tables[Table.OFFSETS].rows,
        owners=tables[Table.OWNERS].rows,
        members=tables[Table.MEMBERS].rows,
        problems=sum(each.problems for each in tables.values()),
        size=sum(sum(each.files.values()) for each in tables.values()),
        zxid=summary.zxid,
    )


def _without_summary(name: str, files: Mapping[Table, Mapping[str, int]], counts: Counts) -> Listed:
    rows = {table: counts[name, table]["rows"] if (name, table) in counts else None for table in Table}
    found = [counts[name, table] for table in Table if (name, table) in counts]
    return Listed(
        name,
        snapshot_time(name),
        cluster=next((each["cluster"] for each in found if each["cluster"] is not None), None),
        groups=None,
        offsets=rows[Table.OFFSETS],
        owners=rows[Table.OWNERS],
        members=rows[Table.MEMBERS],
        problems=sum(each["problems"] for each in found) if len(found) == len(Table) else None,
        size=sum(sum(each.values()) for each in files.values()),
    )


# Counting


_COUNTED: Final = StructType([StructField(name, StringType()) for name in ("cluster", "problem", "snapshot")])


def _counted(spark: SparkSession, layout: Layout, silent: Mapping[str, Mapping[Table, Collection[str]]]) -> Counts:
    """The rows of these snapshots; nothing, where one of them cannot be read, which is no reason to have no list."""
    there = {table: [name for name, files in silent.items() if files[table]] for table in Table}
    counts = {(name, str(table)): _NONE for table, names in there.items() for name in names}
    if not counts:
        return {}
    with suppress(SparkJobError), translated(f"the snapshots in {layout} cannot be read"):
        frames = [_read(spark, layout, table, names) for table, names in there.items() if names]
        rows = reduce(DataFrame.union, frames).collect()
        return counts | {(row["snapshot"], row["table"]): row for row in rows}
    return {}


_NONE: Final = {"cluster": None, "rows": 0, "problems": 0}
"""What is counted of a table that is empty: nothing comes of it."""


def _read(spark: SparkSession, layout: Layout, table: Table, names: Sequence[str]) -> DataFrame:
    paths = [layout.table(table, name) for name in names]
    rows = spark.read.schema(_COUNTED).option("__globPaths__", "false").option("basePath", paths[0].rpartition("/")[0])
    return (
        rows.parquet(*paths)
        .groupBy("snapshot")
        .agg(f.max("cluster").alias("cluster"), f.count(f.lit(1)).alias("rows"), f.count("problem").alias("problems"))
        .withColumn("table", f.lit(table.value))
    )
