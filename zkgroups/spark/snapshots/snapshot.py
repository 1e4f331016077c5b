"""Write all offsets, owners and members as Parquet with Spark. A snapshot appears completely or not at all.

    taken = zkgroups.spark.take_snapshot(spark, "/data/groups", "zk1:2181/kafka")
    zkgroups.spark.read_snapshot(spark, "/data/groups").where("problem is not null").show()

See `zkgroups/snapshots/layout.py` for the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, cast

from pyspark import AccumulatorParam
from pyspark.sql import DataFrame, SparkSession

from ...core.table_columns import COLUMNS, columns_json
from ...core.tables import Table
from ...exceptions import InvalidOptionError, SparkStoppedError
from ...snapshots.layout import UnfinishedSnapshot
from ...snapshots.snapshot import Snapshot, SnapshotBegin, WrittenTable, as_options, begin, write_snapshot
from ...snapshots.table_counts import CountAddition, TableCounts
from ...storage.snapshot_folder import IN_ORDER
from ...tables.source_options import MAX_PARALLELISM, SourceOptions
from ..errors import translated
from ..pyspark_internals import active_session, is_stopped
from ..source.read_shares import read_shares
from ..spark_thread import interruptible, run_in_parallel
from ..storage.writing import check_row_count, check_shared, write_plain
from .layout import Layout

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
