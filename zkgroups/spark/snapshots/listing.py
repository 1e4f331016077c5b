"""List the snapshots of a destination on any file system of Spark. `zkgroups/snapshots/listing.py` reads the summaries.

Snapshots of earlier versions have no summary. One job counts the rows of all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from ...core.tables import Table
from ...exceptions import SparkJobError
from ...snapshots import listing as snapshots_listing
from ...snapshots.listing import ListedSnapshot, RowCounts
from ..errors import translated
from ..pyspark_internals import arrow_schema, literal_paths
from .layout import Layout

SCHEMA: Final = StructType(
    [
        StructField("name", StringType(), False),
        StructField("time", TimestampType(), False),
        StructField("cluster", StringType()),
        *(StructField(name, LongType()) for name in ("groups", "offsets", "owners", "members", "problems")),
        StructField("size", LongType(), False),
        *(StructField(name, LongType()) for name in ("zxid", "lag", "unknown_lags")),
    ]
)


def list_snapshots(spark: SparkSession, destination: str) -> DataFrame:
    """Return the snapshots of a destination, oldest first.

    The columns are name, `time` (of its start), cluster, the numbers of groups, offsets, owners, members and
    `problems` (unreadable nodes), `size` in bytes, `zxid` if it was read from a data directory, and `lag` and
    `unknown_lags` if it has log ends.
    """
    rows = [asdict(each) for each in listing(spark, destination)]
    return spark.createDataFrame(pa.Table.from_pylist(rows, arrow_schema(SCHEMA)), SCHEMA)


def listing(spark: SparkSession, destination: str) -> list[ListedSnapshot]:
    """Return the snapshots of a destination, oldest first. Raise NotFoundError if it does not exist."""
    layout = Layout(spark, destination)
    return snapshots_listing.listing(layout, lambda files: _counted(spark, layout, files))


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
        return counts | {(row["snapshot"], row["table"]): row.asDict() for row in rows}
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
