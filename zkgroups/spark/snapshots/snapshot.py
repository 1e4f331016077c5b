"""Write all offsets, owners and members as Parquet with Spark. A snapshot appears completely or not at all.

    taken = zkgroups.spark.take_snapshot(spark, "/data/groups", "zk1:2181/kafka")
    zkgroups.spark.read_snapshot(spark, "/data/groups").where("problem is not null").show()

See `layout.py` for the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ...core.ensemble_position import EnsemblePosition
from ...core.selection import Selection
from ...core.tables import Table
from ...core.znodes.paths import Part
from ...exceptions import InvalidOptionError, SparkStoppedError, ZkgroupsException
from ...storage.snapshot_folder import IN_ORDER
from ...storage.snapshot_summary import Summary, TableSummary
from ...zookeeper.reading import tree_walk
from ...zookeeper.reading.ensemble_position import ensemble_position
from ...zookeeper.session.registry_context import context_of
from ..errors import translated
from ..pyspark_internals import active_session, is_stopped
from ..source import data_dir_reader
from ..source.data_source import NAME, register
from ..source.options import MAX_PARALLELISM, SourceOptions
from ..spark_thread import interruptible, run_in_parallel
from ..storage.writing import check_shared, write
from .digest import columns_of, digest
from .layout import Layout, UnfinishedSnapshot

_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 is deprecated, and takes twice as long
    "spark.sql.adaptive.enabled": "false",  # adaptive execution only slows down plain writes
}


_MOST_CLUSTERS: Final = 20
"""How many of the latest snapshots to look at for the previous one of the same cluster."""

TableCounts = Mapping[str, Any]
"""The counts of a written table."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A completed snapshot.

    - `name`, `destination`: its name, which is the time of its start, and its folder.
    - `groups`, `offsets`, `owners`, `members`: how many it has of each.
    - `problems`, `forbidden`: the number of rows for unreadable nodes, and how many of them are forbidden.
    - `seconds`: how long it took.
    - `restored_since`: the name of the previous snapshot of this ZooKeeper in the destination, if ZooKeeper was
      restored from a backup, wiped or replaced since then. Not always detected; None if not.
    """

    name: str
    destination: str
    groups: int
    offsets: int
    owners: int
    members: int
    problems: int
    forbidden: int
    seconds: float
    restored_since: str | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """The contents that a snapshot would have: the numbers of `groups`, `topics`, `offsets`, `owners` and `members`.

    `forbidden` is the number of directories that may not be listed.
    """

    groups: int
    topics: int
    offsets: int
    owners: int
    members: int
    forbidden: int


STEPS: Final = 2
"""The number of calls of `on_progress`: writing the tables, and moving them into place."""


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
    begin = _begin(_as_options(source))  # fails fast, before any job starts
    return interruptible(spark, lambda step: _take(spark, destination, begin, step), on_progress)


@dataclass(frozen=True, slots=True)
class _Begin:
    """The state of the source when a snapshot begins."""

    source: SourceOptions
    groups: int
    position: EnsemblePosition | None = None
    """None with a data directory, and without a quorum."""


def _begin(source: SourceOptions) -> _Begin:
    """Count the groups. With a data directory, also fix the state, so that all tables are read at the same zxid."""
    if source.files is None:
        with source.connect() as registry:
            position = None if registry.server_is_read_only else ensemble_position(registry)
            return _Begin(source, len(_chosen(registry.groups(), source)), position)
    state = data_dir_reader.find_state(source.files, source.zxid)
    seen = data_dir_reader.count(source, state)
    return _Begin(replace(source, zxid=state.zxid, parallelism=source.parallelism or 1), seen.groups)


def _take(spark: SparkSession, destination: str, begin: _Begin, on_progress: Callable[[str], None]) -> Snapshot:
    began = time.monotonic()
    check_shared(spark, destination)
    cores = min(spark.sparkContext.defaultParallelism, MAX_PARALLELISM)
    source = replace(begin.source, parallelism=begin.source.parallelism or cores)
    own = session_beside(spark)
    layout = Layout(own, destination)
    restored_since = _restored_since(layout, source.shown_cluster, begin.position)
    unfinished = layout.begin(datetime.now(UTC))
    try:
        on_progress("writing")
        written = _write_all(own, source, unfinished)
        unfinished.summarize(_summary(source, begin, written, unfinished))
        on_progress("moving into place")
        unfinished.finish()
    except BaseException:
        unfinished.discard()
        raise
    return Snapshot(
        name=unfinished.name,
        destination=str(layout),
        groups=begin.groups,
        offsets=written[Table.OFFSETS]["rows"],
        owners=written[Table.OWNERS]["rows"],
        members=written[Table.MEMBERS]["rows"],
        problems=sum(counts["problems"] for counts in written.values()),
        forbidden=sum(counts["forbidden"] for counts in written.values()),
        seconds=time.monotonic() - began,
        restored_since=restored_since,
    )


def _restored_since(layout: Layout, cluster: str, now: EnsemblePosition | None) -> str | None:
    """Return the name of the previous snapshot of this cluster, if the cluster cannot have been in that state."""
    if now is None:
        return None
    for name in islice(layout.latest_first(), _MOST_CLUSTERS):
        with suppress(ZkgroupsException):  # a damaged snapshot does not prevent another one
            summary = layout.summary(name)
            if summary is not None and summary.cluster == cluster and summary.position is not None:
                return None if summary.position.may_precede(now) else name
    return None


def session_beside(spark: SparkSession) -> SparkSession:
    """Return a new session on the same context, so that the caller's settings and sources do not change."""
    own = spark.newSession()
    for setting, value in _SETTINGS.items():
        own.conf.set(setting, value)
    # The default of 200 is too many for small aggregations.
    own.conf.set("spark.sql.shuffle.partitions", str(2 * spark.sparkContext.defaultParallelism))
    register(own)
    return own


def _write_all(spark: SparkSession, source: SourceOptions, unfinished: UnfinishedSnapshot) -> dict[Table, TableCounts]:
    """Write all tables concurrently, because writing a small table is mostly waiting."""
    calls = [partial(_write, spark, replace(source, table=table), unfinished) for table in IN_ORDER]
    return dict(zip(IN_ORDER, run_in_parallel(spark, calls), strict=True))


def _write(spark: SparkSession, source: SourceOptions, unfinished: UnfinishedSnapshot) -> TableCounts:
    """Write one table, and count its rows meanwhile."""
    with active_session(spark), translated(f"the table {source.table} could not be written"):
        rows = spark.read.format(NAME).options(**source.as_text()).load()
        problem = f.col("problem").isNotNull()
        counts = write(
            rows,
            unfinished.table(source.table),
            f.count("problem").alias("problems"),
            f.count_if(problem & f.col("raw").isNull()).alias("forbidden"),
            digest(rows.schema).alias("digest"),
        )
        return {**counts, "columns": columns_of(rows)}


def _summary(
    source: SourceOptions, begin: _Begin, written: Mapping[Table, TableCounts], unfinished: UnfinishedSnapshot
) -> Summary:
    tables = {
        table: TableSummary(
            rows=counts["rows"],
            problems=counts["problems"],
            digest=counts["digest"],
            files=unfinished.files(table),
            columns=counts["columns"],
        )
        for table, counts in written.items()
    }
    shares = source.parallelism or 0
    return Summary(source.shown_cluster, begin.groups, tables, shares, source.zxid, begin.position)


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


def survey(source: SourceOptions | str) -> Survey:
    """Count what a snapshot of this source would read. From a server, only names are read."""
    source = _as_options(source)
    if source.files is not None:
        counts = data_dir_reader.count(source, data_dir_reader.find_state(source.files, source.zxid))
        return Survey(**asdict(counts), forbidden=0)
    selection = Selection(source.groups, source.topics)
    with source.connect() as registry:
        groups, context = _chosen(registry.groups(), source), context_of(registry)
        offsets, owners = (
            list(tree_walk.partitions(context, groups, part, selection.has_topic))
            for part in (Part.OFFSETS, Part.OWNERS)
        )
        members = list(tree_walk.instances(context, groups))
    found = (*offsets, *owners, *members)
    return Survey(
        groups=len(groups),
        topics=len({(each.key.group, each.key.topic) for each in offsets if each.key.topic}),
        offsets=sum(len(each.names) for each in offsets),
        owners=sum(len(each.names) for each in owners),
        members=sum(len(each.names) for each in members),
        forbidden=sum(each.key.forbidden is not None for each in found),
    )


def _as_options(source: SourceOptions | str) -> SourceOptions:
    return SourceOptions(zookeeper=source) if isinstance(source, str) else source


def _chosen(groups: list[str], source: SourceOptions) -> list[str]:
    return list(filter(Selection(source.groups, source.topics).has_group, groups))
