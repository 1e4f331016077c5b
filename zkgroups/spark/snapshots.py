"""Snapshots on any file system of Spark: write, list, verify and compare them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final, cast

import pyarrow as pa
from pyspark import AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from ..core.offsets.changes import SummaryLevel
from ..core.table_columns import COLUMNS, Table, columns_json
from ..exceptions import InvalidOptionError, SparkStoppedError
from ..snapshots.diff import diff
from ..snapshots.layout import UnfinishedSnapshot, listing
from ..snapshots.local_snapshot import ArrowLayout
from ..snapshots.snapshot import (
    Snapshot,
    SnapshotBegin,
    TableCounts,
    WrittenTable,
    as_options,
    begin,
    write_snapshot,
)
from ..snapshots.verify import verify
from ..storage.snapshot_folder import IN_ORDER, LATEST, PREVIOUS
from ..tables.source_options import MAX_PARALLELISM, SourceOptions
from ..tables.sums import Addition
from .data_source import SCHEMAS, read_shares, strict_reader, to_current_columns
from .errors import translated
from .files import HadoopFiles, check_row_count, check_shared, write_plain
from .pyspark_internals import active_session, arrow_schema, is_stopped
from .session import interruptible, run_in_parallel


class Layout(ArrowLayout):
    """The snapshots of one destination on any file system of Spark."""

    def __init__(self, spark: SparkSession, destination: str) -> None:
        self._spark = spark
        super().__init__(HadoopFiles(spark, destination), destination)

    def offsets(self, names: Sequence[str], columns: Sequence[str], groups: Collection[str] | None = None) -> Any:
        """Let Spark find the rows: the files of hundreds of snapshots need not be copied to this machine."""
        paths = [self.table(Table.OFFSETS, name) for name in names]
        wanted = [each for each in SCHEMAS[Table.OFFSETS] if each.name in columns]
        schema = StructType([*wanted, StructField("snapshot", StringType())])
        with translated(f"the snapshots in {self} cannot be read"):
            reader = strict_reader(self._spark).schema(schema).option("basePath", paths[0].rpartition("/")[0])
            rows = reader.parquet(*paths)
            return (rows if groups is None else rows.where(f.col("group").isin(list(groups)))).toArrow()


# List, verify and compare the snapshots of a destination.


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
    rows = [asdict(each) for each in listing(Layout(spark, destination))]
    return spark.createDataFrame(pa.Table.from_pylist(rows, arrow_schema(LISTING)), LISTING)


def verify_snapshots(spark: SparkSession, destination: str, at: str | None = None) -> DataFrame:
    """Verify all snapshots, or the one chosen by `at`, and return the findings: no rows if all is well.

    `at` is "latest", "previous", a name, or a time. The columns are severity, snapshot, table, finding and detail. A
    snapshot without findings of the severity `error` is intact.
    """
    findings = [finding for each in verify(Layout(spark, destination), at) for finding in each.findings]
    columns = {name: [getattr(each, name) for each in findings] for name in _FINDING}
    return spark.createDataFrame(pa.table(columns, pa.schema([(name, pa.string()) for name in columns])))


_FINDING: Final = ("severity", "snapshot", "table", "finding", "detail")


def diff_snapshots(
    spark: SparkSession,
    destination: str,
    before: str = PREVIOUS,
    after: str = LATEST,
    *,
    by: SummaryLevel | str = SummaryLevel.GROUP,
    cluster: str | None = None,
    groups: str | None = None,
    topics: str | None = None,
) -> DataFrame:
    """Compare the offsets of two snapshots.

    - `before`, `after`: the snapshots: "latest", "previous", a name, or a time such as "2026-01-31 12:00" in UTC, which
      means the latest snapshot at or before it.
    - `by`: one row per "group", "topic" or "partition".
    - `cluster`: the value of the column `cluster`, if the destination has snapshots of several.
    - `groups`, `topics`: regular expressions that must match the whole names.

    By partition, the columns are cluster, group, topic, partition, `state`, the offsets `before` and `after`, `delta`,
    `rate`, `commits`, `recreated`, `held`, `stalled`, `lag`, `lag_delta` and `committed_at`. The states are:

        moved       the offset is higher, by `delta`
        unchanged   the offset is the same; `held` is true if the partition is owned
        went-back   the offset is lower
        new         the offset is only in the second snapshot
        gone        the offset is only in the first snapshot
        unreadable  in one snapshot the node is malformed or forbidden

    `stalled` is true if the offset is unchanged, and was behind the log end in both snapshots. `lag` is that of the
    second snapshot, and `lag_delta` its change. They are null if unknown, for example without log ends.

    By group and topic, the columns are the number of `partitions`, the numbers of them in each state (`moved`,
    `unchanged`, `went_back`, `new`, `gone`, `unreadable`), `unchanged_held`, `stalled`, and `recreated`; then the sums
    `delta`, `rate`, `lag` and `lag_delta`, and the last `committed_at`. `rate` is in messages per second, between the
    two commits. Sums are of the known values, and null if none is known.
    """
    layout = Layout(spark, destination)
    pair = layout.choose_pair(before, after, cluster=cluster)
    return spark.createDataFrame(diff(layout, pair, by=by, groups=groups, topics=topics))


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
    counted = spark.sparkContext.accumulator(TableCounts(), cast("AccumulatorParam[TableCounts]", Addition()))
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
    layout.check_intact(Table(table), found, layout.summary(found))
    with translated(f"snapshot {found} cannot be read"):
        rows = strict_reader(spark).parquet(layout.table(Table(table), found))
    return to_current_columns(rows, Table(table), f"snapshot {found} in {layout}")
