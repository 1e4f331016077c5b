"""List the snapshots of a destination, with the counts from their summaries.

Snapshots of earlier versions have no summary. One job counts the rows of all of them. The number of groups is then
unknown, because groups without rows count, too.
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
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from ...core.tables import Table
from ...exceptions import SparkJobError
from ...storage.snapshot_summary import Summary
from ...storage.timestamps import parse_timestamp
from ..errors import translated
from ..pyspark_internals import arrow_schema, literal_paths
from .layout import Layout


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """A snapshot with its start time, cluster and counts; None if unknown.

    `problems` is the number of rows for unreadable nodes. `size` is the size of the files in bytes.
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
    """The zxid of the state, if it was read from files."""


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

RowCounts: TypeAlias = Mapping[tuple[str, str], Any]
"""The counts by snapshot and table name."""


def list_snapshots(spark: SparkSession, destination: str) -> DataFrame:
    """Return the snapshots of a destination, oldest first.

    The columns are name, `time` (of its start), cluster, the numbers of groups, offsets, owners, members and
    `problems` (unreadable nodes), `size` in bytes, and `zxid` if it was read from a data directory.
    """
    rows = [asdict(each) for each in listing(spark, destination)]
    return spark.createDataFrame(pa.Table.from_pylist(rows, arrow_schema(SCHEMA)), SCHEMA)


def listing(spark: SparkSession, destination: str) -> list[ListedSnapshot]:
    """Return the snapshots of a destination, oldest first. Raise NotFoundError if it does not exist."""
    layout = Layout(spark, destination)
    layout.check_exists()
    summaries = {name: _summary(layout, name) for name in layout.snapshots()}
    without_summary = {
        name: {table: layout.files(table, name) for table in Table}
        for name, summary in summaries.items()
        if summary is None
    }
    counts = _counted(spark, layout, without_summary)
    return [
        _without_summary(name, without_summary[name], counts) if summary is None else _with_summary(name, summary)
        for name, summary in summaries.items()
    ]


def _summary(layout: Layout, name: str) -> Summary | None:
    with suppress(SparkJobError):  # a damaged summary must not prevent a listing: see `verify.py`
        return layout.summary(name)
    return None


def _with_summary(name: str, summary: Summary) -> ListedSnapshot:
    tables = summary.tables
    return ListedSnapshot(
        name,
        parse_timestamp(name),
        summary.cluster,
        summary.groups,
        offsets=tables[Table.OFFSETS].rows,
        owners=tables[Table.OWNERS].rows,
        members=tables[Table.MEMBERS].rows,
        problems=sum(each.problems for each in tables.values()),
        size=sum(sum(each.files.values()) for each in tables.values()),
        zxid=summary.zxid,
    )


def _without_summary(name: str, files: Mapping[Table, Mapping[str, int]], counts: RowCounts) -> ListedSnapshot:
    rows = {table: counts[name, table]["rows"] if (name, table) in counts else None for table in Table}
    found = [counts[name, table] for table in Table if (name, table) in counts]
    return ListedSnapshot(
        name,
        parse_timestamp(name),
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


def _counted(
    spark: SparkSession, layout: Layout, without_summary: Mapping[str, Mapping[Table, Collection[str]]]
) -> RowCounts:
    """Count the rows of these snapshots; return nothing if one cannot be read, which must not prevent a listing."""
    there = {table: [name for name, files in without_summary.items() if files[table]] for table in Table}
    counts = {(name, str(table)): _EMPTY_TABLE for table, names in there.items() for name in names}
    if not counts:
        return {}
    with suppress(SparkJobError), translated(f"the snapshots in {layout} cannot be read"):
        frames = [_read(spark, layout, table, names) for table, names in there.items() if names]
        rows = reduce(DataFrame.union, frames).collect()
        return counts | {(row["snapshot"], row["table"]): row for row in rows}
    return {}


_EMPTY_TABLE: Final = {"cluster": None, "rows": 0, "problems": 0}
"""The counts of an empty table, for which the query returns no row."""


def _read(spark: SparkSession, layout: Layout, table: Table, names: Sequence[str]) -> DataFrame:
    paths = [layout.table(table, name) for name in names]
    rows = literal_paths(spark.read.schema(_COUNTED)).option("basePath", paths[0].rpartition("/")[0])
    return (
        rows.parquet(*paths)
        .groupBy("snapshot")
        .agg(f.max("cluster").alias("cluster"), f.count(f.lit(1)).alias("rows"), f.count("problem").alias("problems"))
        .withColumn("table", f.lit(table.value))
    )
