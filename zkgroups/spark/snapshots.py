"""Snapshots on any file system of Spark: write, list and verify them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial, reduce
from typing import Any, Final, cast

import pyarrow as pa
from pyspark import AccumulatorParam
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType, TimestampType

from ..core.table_columns import COLUMNS, Table, column_types, columns_json
from ..exceptions import InvalidOptionError, SparkJobError, SparkStoppedError
from ..snapshots.layout import ListedSnapshot, RowCounts, SnapshotReader, UnfinishedSnapshot
from ..snapshots.layout import listing as listing_by
from ..snapshots.snapshot import (
    CountAddition,
    Snapshot,
    SnapshotBegin,
    TableCounts,
    WrittenTable,
    as_options,
    begin,
    write_snapshot,
)
from ..snapshots.verify import KEY, VerifiedSnapshot
from ..snapshots.verify import verify as verify_with
from ..storage.snapshot_folder import IN_ORDER
from ..tables.source_options import MAX_PARALLELISM, SourceOptions
from .data_source import SCHEMAS, read_shares, strict_reader, to_current_columns
from .errors import translated
from .files import SparkFolder, check_row_count, check_shared, write_plain
from .pyspark_internals import active_session, arrow_schema, is_stopped, literal_paths
from .session import interruptible, run_in_parallel

# The digest of a table in the summary of a snapshot, computed by Spark.


def digest(columns: StructType) -> Column:
    """Return an order-independent digest of all rows."""
    return f.hex(f.coalesce(f.bit_xor(row_hash(columns)), f.lit(0)))


def row_hash(columns: StructType) -> Column:
    """Return a hash of one row. Maps become lists, because Spark cannot hash maps."""
    return f.xxhash64(
        *(f.map_entries(f.col(c.name)) if isinstance(c.dataType, MapType) else f.col(c.name) for c in columns)
    )


# The snapshots of a destination as tables of Spark. `zkgroups/snapshots/layout.py` describes the files.


class Layout(SparkFolder, SnapshotReader):
    """The snapshots of one destination, as tables of Spark."""

    def offsets(self, names: Sequence[str], columns: Sequence[str], groups: Collection[str] | None = None) -> Any:
        paths = [self.table(Table.OFFSETS, name) for name in names]
        wanted = [each for each in SCHEMAS[Table.OFFSETS] if each.name in columns]
        schema = StructType([*wanted, StructField("snapshot", StringType())])
        with translated(f"the snapshots in {self} cannot be read"):
            reader = strict_reader(self._spark).schema(schema).option("basePath", paths[0].rpartition("/")[0])
            rows = reader.parquet(*paths)
            return (rows if groups is None else rows.where(f.col("group").isin(list(groups)))).toArrow()

    def read_intact(self, table: Table, name: str) -> DataFrame:
        """Check the files of a table, and return its rows in the columns of this version."""
        self.check_intact(table, name, self.summary(name))
        return to_current_columns(self.read_as_written(table, name), table, f"snapshot {name} in {self}")

    def read_as_written(self, table: Table, name: str) -> DataFrame:
        """Return the rows of a table with the columns that it was written with."""
        with translated(f"snapshot {name} cannot be read"):
            return strict_reader(self._spark).parquet(self.table(table, name))


# List the snapshots of a destination on any file system of Spark. `zkgroups/snapshots/layout.py` reads the summaries.
#
# Snapshots of earlier versions have no summary. One job counts the rows of all of them.


LISTING: Final = StructType(
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
    return spark.createDataFrame(pa.Table.from_pylist(rows, arrow_schema(LISTING)), LISTING)


def listing(spark: SparkSession, destination: str) -> list[ListedSnapshot]:
    """Return the snapshots of a destination, oldest first. Raise NotFoundError if it does not exist."""
    layout = Layout(spark, destination)
    return listing_by(layout, lambda files: _counted(spark, layout, files))


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


# Verify snapshots on any file system of Spark. `zkgroups/snapshots/verify.py` has the checks.


CHECKS: Final = StructType(
    [
        StructField("severity", StringType(), False),
        StructField("snapshot", StringType(), False),
        StructField("table", StringType()),
        StructField("finding", StringType(), False),
        StructField("detail", StringType(), False),
    ]
)


def verify_snapshots(spark: SparkSession, destination: str, at: str | None = None) -> DataFrame:
    """Verify all snapshots, or the one chosen by `at`, and return the findings: no rows if all is well.

    `at` is "latest", "previous", a name, or a time. The columns are severity, snapshot, table, finding and detail. A
    snapshot without findings of the severity `error` is intact.
    """
    findings = [finding for each in verify(spark, destination, at) for finding in each.findings]
    columns = {name: [getattr(each, name) for each in findings] for name in CHECKS.names}
    return spark.createDataFrame(pa.table(columns, pa.schema([(name, pa.string()) for name in columns])), CHECKS)


def verify(spark: SparkSession, destination: str, at: str | None = None) -> Iterator[VerifiedSnapshot]:
    """Verify snapshots one after the other, and yield each result; incomplete snapshots come last."""
    layout = Layout(spark, destination)
    return verify_with(layout, lambda table, name: _SparkTable(table, layout.read_as_written(table, name)), at)


class _SparkTable:
    """A table of a snapshot, which Spark reads. `StoredTable` describes the methods."""

    def __init__(self, table: Table, rows: DataFrame) -> None:
        self._table = table
        self._rows = rows

    @property
    def columns(self) -> Mapping[str, str]:
        return column_types(self._rows.schema.json())

    def check_types(self) -> None:
        self._current()

    def _current(self) -> DataFrame:
        return to_current_columns(self._rows, self._table, "the table")

    def counts(self, columns: Sequence[str], cluster: str | None) -> Mapping[str, Any]:
        problem = f.col("problem") if "problem" in self._rows.columns else f.lit(None)
        counts = self._rows.agg(
            f.count(f.lit(1)).alias("rows"),
            f.count(problem).alias("problems"),
            f.count_if(f.col("cluster") != f.lit(cluster)).alias("others"),
            digest(StructType([self._rows.schema[name] for name in columns])).alias("digest"),
        )
        with translated("its rows cannot be read"):
            return counts.collect()[0].asDict()

    def duplicates(self) -> tuple[int, Mapping[str, Any]]:
        found = self._current().where("partition is not null").groupBy(*KEY).count().where("count > 1")
        with translated("its rows cannot be read"):
            [row] = found.agg(f.count(f.lit(1)).alias("partitions"), f.min(f.struct(*KEY)).alias("first")).collect()
        return row["partitions"], row["first"]


# Write all offsets, owners and members as Parquet with Spark. A snapshot appears completely or not at all.
#
#     taken = zkgroups.spark.take_snapshot(spark, "/data/groups", "zk1:2181/kafka")
#     zkgroups.spark.read_snapshot(spark, "/data/groups").where("problem is not null").show()
#
# See `zkgroups/snapshots/layout.py` for the files.


_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 is deprecated, and takes twice as long
    "spark.sql.adaptive.enabled": "false",  # adaptive execution only slows down plain writes
}

_WITHOUT_SIZES: Final = {"parquet.size.statistics.enabled": "false"}
"""Few readers use the statistics of sizes, which are expensive. Those of values stay."""


def take_snapshot(
    spark: SparkSession,
    destination: str,
    source: SourceOptions | str,
    *,
    on_progress: Callable[[str], None] | None = None,
) -> Snapshot:
    """Read all offsets, owners and members, and write them to a new snapshot in the destination, as Parquet.

    - `destination`: a folder for any number of snapshots, e.g. "/data/groups" or "hdfs:///groups". Spark's driver and
      workers must see the same folder. A folder that all machines have mounted must be declared:
      `spark.conf.set("spark.zkgroups.sharedFileSystem", "true")`.
    - `source`: the address of ZooKeeper, or `SourceOptions` that also select groups and topics.
    - `on_progress`: called with the name of each step when it starts.

    A snapshot appears completely or not at all. Read it with `read_snapshot`, compare two with `diff_snapshots`.
    """
    if is_stopped(spark):
        raise SparkStoppedError("cannot take a snapshot: this Spark session was stopped; create a new one")
    start = begin(as_options(source))  # fails fast, before any job starts
    return interruptible(spark, lambda step: _take(spark, destination, start, step), on_progress)


def _take(spark: SparkSession, destination: str, start: SnapshotBegin, on_progress: Callable[[str], None]) -> Snapshot:
    check_shared(spark, destination)
    cores = min(spark.sparkContext.defaultParallelism, MAX_PARALLELISM)
    source = replace(start.source, parallelism=start.source.parallelism or cores)
    own = session_beside(spark)
    write_tables = partial(_write_all, own, source)
    return write_snapshot(Layout(own, destination), replace(start, source=source), write_tables, on_progress)


def session_beside(spark: SparkSession) -> SparkSession:
    """Return a new session on the same context, so that the caller's settings and sources do not change."""
    own = spark.newSession()
    for setting, value in _SETTINGS.items():
        own.conf.set(setting, value)
    # The default of 200 is too many for small aggregations.
    own.conf.set("spark.sql.shuffle.partitions", str(2 * spark.sparkContext.defaultParallelism))
    return own


def _write_all(
    spark: SparkSession, source: SourceOptions, unfinished: UnfinishedSnapshot
) -> Mapping[Table, WrittenTable]:
    """Write all tables concurrently, because writing a small table is mostly waiting."""
    calls = [partial(_write, spark, replace(source, table=table), unfinished) for table in IN_ORDER]
    return dict(zip(IN_ORDER, run_in_parallel(spark, calls), strict=True))


def _write(spark: SparkSession, source: SourceOptions, unfinished: UnfinishedSnapshot) -> WrittenTable:
    """Write one table. Its tasks count the rows."""
    path = unfinished.table(source.table)
    counted = spark.sparkContext.accumulator(TableCounts(), cast("AccumulatorParam[TableCounts]", CountAddition()))
    with active_session(spark), translated(f"the table {source.table} could not be written"):
        write_plain(read_shares(spark, source, counted), path, **_WITHOUT_SIZES)
        check_row_count(spark, path, counted.value.rows)
    return WrittenTable(counted.value, columns_json(COLUMNS[source.table]))


def snapshot_names(spark: SparkSession, destination: str) -> list[str]:
    """Return the names of the snapshots in a destination, oldest first. A name is the time of the start."""
    return Layout(spark, destination).snapshots()


def read_snapshot(
    spark: SparkSession, destination: str, name: str | None = None, *, table: Table | str = Table.OFFSETS
) -> DataFrame:
    """Return a table of the snapshot with this name, by default of the latest. `Table` lists the columns.

    A snapshot of an earlier version is converted to the columns of this one. Raise DamagedFileError if a file of the
    table is missing or truncated. The other tables are not checked.
    """
    if table not in set(Table):
        raise InvalidOptionError("table", table, f"it must be one of {', '.join(Table)}")
    layout = Layout(spark, destination)
    found = layout.latest() if name is None else name if layout.has(name) else None
    if found is None:
        raise layout.no_snapshot(f" {name}" if name else "")
    return layout.read_intact(Table(table), found)
