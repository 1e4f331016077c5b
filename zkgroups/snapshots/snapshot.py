"""What snapshots have in common, whatever engine writes them: their counts, their summary, and the steps.

See `layout.py` for the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core.ensemble_position import EnsemblePosition
from ..core.layouts.legacy import LEGACY
from ..core.selection import Selection
from ..core.table_columns import Table
from ..core.znodes.paths import Part
from ..core.znodes.values import ForbiddenNode
from ..datadir.data_dir import DataDirState
from ..exceptions import ZkgroupsException
from ..storage.snapshot_folder import LagSummary, Summary, TableSummary
from ..tables import data_dir_reader
from ..tables.share_reader import read_share
from ..tables.source_options import SourceOptions
from ..tables.sums import TaskSum
from ..tables.table_reader import check_brokers, lags
from ..zookeeper.reading import tree_walk
from ..zookeeper.reading.layouts import read_offsets
from ..zookeeper.registry import Registry
from ..zookeeper.session.session import context_of
from ..zookeeper.zookeeper_source import ensemble_position
from .digest import digest
from .layout import SnapshotLayout, UnfinishedSnapshot

# The counts of a table, and the digest of its rows, added up batch by batch while it is written.
#
# Spark adds up the counts of its tasks with an accumulator: see `zkgroups/tables/sums.py`.


@dataclass(frozen=True, slots=True)
class TableCounts:
    """The counts of some rows, and the xor of their hashes. Lags count only if the rows have log ends."""

    rows: int = 0
    problems: int = 0
    """The number of rows with a problem."""
    forbidden: int = 0
    """The number of rows of forbidden nodes."""
    hashes: int = 0
    known_lags: int = 0
    total_lag: int = 0
    unknown_lags: int = 0

    @classmethod
    def of(cls, rows: Any) -> TableCounts:
        """Count the rows of an Arrow table or batch."""
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        problem, raw = rows.column("problem"), rows.column("raw")
        problems = len(rows) - problem.null_count
        forbidden = pc.sum(pc.and_(pc.is_valid(problem), pc.is_null(raw))).as_py() if problems else 0
        counts = cls(len(rows), problems, forbidden, int(digest(batches), 16))
        return counts + _lag_counts(rows) if "log_end" in rows.schema.names else counts

    def __add__(self, other: TableCounts) -> TableCounts:
        return TableCounts(
            self.rows + other.rows,
            self.problems + other.problems,
            self.forbidden + other.forbidden,
            self.hashes ^ other.hashes,
            self.known_lags + other.known_lags,
            self.total_lag + other.total_lag,
            self.unknown_lags + other.unknown_lags,
        )

    @property
    def digest(self) -> str:
        """The digest of all rows."""
        return f"{self.hashes:X}"

    @property
    def lag(self) -> LagSummary:
        """The lag of all offsets."""
        fits = self.known_lags > 0 and self.total_lag < 2**63
        return LagSummary(self.total_lag if fits else None, self.unknown_lags)


def _lag_counts(rows: Any) -> TableCounts:
    offsets, ends = rows.column("offset"), rows.column("log_end")
    if ends.null_count == len(rows):
        return TableCounts(unknown_lags=len(rows) - offsets.null_count)
    found = lags(offsets, ends)
    known = len(found) - found.null_count
    total = pc.sum(found.cast(pa.decimal128(38))).as_py() or 0
    return TableCounts(known_lags=known, total_lag=int(total), unknown_lags=len(rows) - offsets.null_count - known)


_MOST_CLUSTERS: Final = 20
"""How many of the latest snapshots to look at for the previous one of the same cluster."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A completed snapshot.

    - `name`, `destination`: its name, which is the time of its start, and its folder.
    - `groups`, `offsets`, `owners`, `members`: how many it has of each.
    - `problems`, `forbidden`: the number of rows for unreadable nodes, and how many of them are forbidden.
    - `lag`, `unknown_lags`: the sum of the known lags, and the number of offsets whose lag is unknown. None if no
      brokers were given, or if they did not answer: `log_ends_problem` is the reason.
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
    lag: int | None = None
    unknown_lags: int | None = None
    log_ends_problem: str | None = None


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


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """The counts of a written table, and its columns."""

    counts: TableCounts
    columns: str


TableWriter: TypeAlias = Callable[[UnfinishedSnapshot], Mapping[Table, WrittenTable]]
"""Writes all tables to an unfinished snapshot."""


@dataclass(frozen=True, slots=True)
class SnapshotBegin:
    """The state of the source when a snapshot begins."""

    source: SourceOptions
    groups: int
    position: EnsemblePosition | None = None
    """None with a data directory, and without a quorum."""
    log_ends_problem: str | None = None
    """Why the brokers did not answer. Then the source has none."""


def begin(source: SourceOptions) -> SnapshotBegin:
    """Count the groups. With a data directory, also fix the state, so that all tables are read at the same zxid."""
    if source.files is None:
        with source.connect() as registry:
            return begin_connected(registry, source)
    state = data_dir_reader.find_state(source.files, source.zxid)
    seen = data_dir_reader.count(source, state)
    return SnapshotBegin(replace(source, zxid=state.zxid, parallelism=source.parallelism or 1), seen.groups)


def begin_connected(registry: Registry, source: SourceOptions) -> SnapshotBegin:
    """Count the groups of a server, and leave out brokers that do not answer."""
    problem = check_brokers(source)
    if problem is not None:
        source = source.without_brokers()
    position = None if registry.server_is_read_only else ensemble_position(registry)
    return SnapshotBegin(source, len(source.selected_groups(registry)), position, problem)


def write_snapshot(
    layout: SnapshotLayout, start: SnapshotBegin, write_tables: TableWriter, on_progress: Callable[[str], None]
) -> Snapshot:
    """Write all tables, and move them into place. After an error, nothing is left."""
    began = time.monotonic()
    restored_since = _restored_since(layout, start)
    unfinished = layout.begin(datetime.now(UTC))
    try:
        on_progress("writing")
        written = write_tables(unfinished)
        unfinished.summarize(_summary(start, written, unfinished))
        on_progress("moving into place")
        unfinished.finish()
    except BaseException:
        unfinished.discard()
        raise
    counts = {table: each.counts for table, each in written.items()}
    lag = _lag(start, written)
    return Snapshot(
        name=unfinished.name,
        destination=str(layout),
        groups=start.groups,
        offsets=counts[Table.OFFSETS].rows,
        owners=counts[Table.OWNERS].rows,
        members=counts[Table.MEMBERS].rows,
        problems=sum(each.problems for each in counts.values()),
        forbidden=sum(each.forbidden for each in counts.values()),
        seconds=time.monotonic() - began,
        restored_since=restored_since,
        lag=None if lag is None else lag.total,
        unknown_lags=None if lag is None else lag.unknown,
        log_ends_problem=start.log_ends_problem,
    )


def _restored_since(layout: SnapshotLayout, start: SnapshotBegin) -> str | None:
    """Return the name of the previous snapshot of this cluster, if the cluster cannot have been in that state."""
    if start.position is None:
        return None
    for name in islice(layout.latest_first(), _MOST_CLUSTERS):
        with suppress(ZkgroupsException):  # a damaged snapshot does not prevent another one
            summary = layout.summary(name)
            if summary is not None and summary.cluster == start.source.shown_cluster and summary.position is not None:
                return None if summary.position.may_precede(start.position) else name
    return None


def _summary(start: SnapshotBegin, written: Mapping[Table, WrittenTable], unfinished: UnfinishedSnapshot) -> Summary:
    tables = {
        table: TableSummary(
            rows=each.counts.rows,
            problems=each.counts.problems,
            digest=each.counts.digest,
            files=unfinished.files(table),
            columns=each.columns,
        )
        for table, each in written.items()
    }
    source = start.source
    return Summary(
        source.shown_cluster,
        start.groups,
        tables,
        source.parallelism or 0,
        source.zxid,
        start.position,
        _lag(start, written),
        source.layout,
    )


def _lag(start: SnapshotBegin, written: Mapping[Table, WrittenTable]) -> LagSummary | None:
    return None if start.source.brokers is None else written[Table.OFFSETS].counts.lag


def survey(source: SourceOptions | str) -> Survey:
    """Count what a snapshot of this source would read. From a server, only names are read, except in other layouts."""
    source = as_options(source)
    if source.files is not None:
        counts = data_dir_reader.count(source, data_dir_reader.find_state(source.files, source.zxid))
        return Survey(**asdict(counts), forbidden=0)
    layout, has_topic = source.parsed_layout, Selection(topics=source.topics).has_topic
    with source.connect() as registry:
        groups, context = source.selected_groups(registry), context_of(registry)
        registered = groups if layout.has_registrations else ()
        owners = list(tree_walk.partitions(context, registered, Part.OWNERS, has_topic))
        members = list(tree_walk.instances(context, registered))
        if layout == LEGACY:
            partitions = list(tree_walk.partitions(context, groups, Part.OFFSETS, has_topic))
            topics = {(each.key.group, each.key.topic) for each in partitions if each.key.topic}
            offsets = sum(len(each.names) for each in partitions)
            forbidden = sum(each.key.forbidden is not None for each in partitions)
        else:
            rows = [each for _, found in read_offsets(context, layout, groups, has_topic) for each in found]
            topics = {(each.group, each.topic) for each in rows if each.topic}
            offsets = len(rows)
            forbidden = sum(isinstance(each.found, ForbiddenNode) for each in rows)
    return Survey(
        groups=len(groups),
        topics=len(topics),
        offsets=offsets,
        owners=sum(len(each.names) for each in owners),
        members=sum(len(each.names) for each in members),
        forbidden=forbidden + sum(each.key.forbidden is not None for each in (*owners, *members)),
    )


def as_options(source: SourceOptions | str) -> SourceOptions:
    """Return the options for a source, which may be an address."""
    return SourceOptions(zookeeper=source) if isinstance(source, str) else source


# Reads the shares of a table in the tasks of Spark.


@dataclass(frozen=True, slots=True)
class TableShares:
    """A function from batches with the numbers of shares to the rows of these shares.

    - `options`, `shares`: what to read, and in how many shares.
    - `state`: the state of a data directory, which the driver has found.
    - `counted`: adds up the rows.
    - `always`: groups whose rows are read even if they are older than the `starting_zxid` of the options.
    """

    options: SourceOptions
    shares: int
    state: DataDirState | None = None
    counted: TaskSum[TableCounts] | None = None
    always: tuple[str, ...] = ()

    def __call__(self, numbers: Iterator[Any]) -> Iterator[Any]:
        for some in numbers:
            for number in some.column(0).to_pylist():
                yield from self._share(number)

    def _share(self, number: int) -> Iterator[Any]:
        selection = Selection(self.options.groups, self.options.topics, number, self.shares)
        for batch in read_share(self.options, selection, self.state, self.always):
            if self.counted is not None:
                self.counted.add(TableCounts.of(batch))
            yield batch
