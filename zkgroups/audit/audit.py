"""Record commits batch by batch.

A batch reads all offsets, and records those that were written since the position of the last one. It has four steps:

1. Read the position of ZooKeeper. All transactions up to it are in what is read next.
2. Take the number of the batch.
3. Read the offsets, and add the new commits as a piece: see `Ledger`. With Spark, its tasks read the offsets.
4. Write the position of step 1. The next batch starts there, so it reads what was committed meanwhile again.

If the run is killed, the next batch starts at the position before, and skips the commits that are already recorded. So
a commit is never missed, and never recorded twice.

Forbidden nodes are counted. If a group has one, the next batch reads all offsets of the group, and not only the changed
ones. So the last commit to the node is recorded once the node can be read.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..core.ensemble_position import EnsemblePosition
from ..core.selection import Selection
from ..core.table_columns import COMMITS, KEY, READ, STANDING, Table
from ..exceptions import InvalidOptionError, RefusedError, UnavailableError, ZkgroupsException
from ..tables.arrow import arrow_schema
from ..tables.source_options import SourceOptions
from ..tables.table_reader import check_brokers, read_selected, with_log_ends, written_after
from ..zookeeper.registry import Registry
from ..zookeeper.zookeeper_source import ensemble_position
from .journal import LOCK, MERGE_FACTOR, AuditDescription, FinishedBatch, FollowedEnsemble, Journal, Piece


@dataclass(frozen=True, slots=True)
class AuditStep:
    """The progress of an audit: a finished batch, or an error that the audit will retry.

    - `batch`: the number of the batch; None for an error.
    - `commits`, `problems`: the number of commits in the batch, and how many of them are malformed.
    - `forbidden`: the number of forbidden nodes. Their commits are recorded in the first batch after they become
      readable.
    - `log_ends_problem`: why the commits have no log ends, although brokers were given.
    - `trouble`: the message of the error.
    """

    batch: int | None = None
    commits: int = 0
    problems: int = 0
    forbidden: int = 0
    log_ends_problem: str | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The totals of a finished audit.

    - `destination`: its folder.
    - `batches`, `commits`: the numbers of batches and of commits that it has recorded.
    - `problems`: how many of these commits are malformed.
    - `forbidden`: the number of forbidden nodes in the last batch.
    - `log_ends_problem`: why the last batch has no log ends, although brokers were given.
    """

    destination: str
    batches: int
    commits: int
    problems: int
    forbidden: int
    log_ends_problem: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch to record: the commits after a transaction, and all of some groups that had forbidden nodes."""

    number: int
    after: int
    were_forbidden: tuple[str, ...]
    first: int
    """The first batch of this ZooKeeper. Commits of earlier batches do not count."""
    with_log_ends: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of new commits and of malformed ones among them, and the forbidden nodes of each group."""

    commits: int
    problems: int
    forbidden: dict[str, int] = field(default_factory=dict)


class Interrupted(Exception):
    """Raised by a ledger whose batch was interrupted, because the audit is to stop."""


class Ledger:
    """Reads the rows of the batches of an audit, and records those that are new."""

    def __init__(self, journal: Journal, source: SourceOptions, stop: threading.Event) -> None:
        self.journal = journal
        self._source = replace(source, with_owners=False, start_over=False, table=Table.OFFSETS)
        self._stop = stop

    def add(self, registry: Registry, batch: Batch) -> Counts:
        """Record the commits of a batch that are not recorded yet, each with the previous offset."""
        source = self._source if batch.with_log_ends else self._source.without_brokers()
        batches = [each.select(READ).cast(_READ) for each in self.read(registry, source, batch)]
        read = pa.Table.from_batches(batches, _READ).combine_chunks()
        new = self._new(read.filter(_is_commit(read)), batch)
        if len(new):
            self.journal.write_commits([new], Piece(batch.number, batch.number))
        return Counts(len(new), len(new) - new.column("problem").null_count, _forbidden(read))

    def read(self, registry: Registry, source: SourceOptions, batch: Batch) -> Iterator[Any]:
        """Read the offsets written after the batch before, and all of the groups that had forbidden nodes."""
        return with_log_ends(self._offsets(registry, source, batch), source)

    def _offsets(self, registry: Registry, source: SourceOptions, batch: Batch) -> Iterator[Any]:
        for found in read_selected(registry, source, Selection(source.groups, source.topics)):
            if self._stop.is_set():
                raise Interrupted
            yield written_after(found, batch.after, or_in=batch.were_forbidden)

    def _new(self, commits: Any, batch: Batch) -> Any:
        """Return the commits that are not in the audit yet, with the previous offset of each partition."""
        last = self._last(commits, batch.first)
        same_zxid = pc.equal(last["zxid"], commits.column("zxid"))
        # The time is null if the server's clock was out of range.
        times = last["committed_at"], commits.column("committed_at")
        same_time = pc.if_else(pc.is_valid(times[0]), pc.equal(*times), pc.is_null(times[1]))
        is_new = pc.invert(pc.fill_null(pc.and_(same_zxid, pc.fill_null(same_time, False)), False))
        numbers = pa.repeat(pa.scalar(batch.number, pa.int64()), len(commits))
        columns = {"before": last["offset"], "batch": numbers}
        columns |= {name: commits.column(name) for name in READ}
        return pa.table({name: columns[name] for name in _COMMITS.names}, _COMMITS).filter(is_new)

    def _last(self, commits: Any, first: int) -> dict[str, Any]:
        """Return the last recorded commit of each of these partitions, as columns; null if there is none.

        Only as many folders are read as are needed to find all.
        """
        keys, left = _keys(commits), pa.array(range(len(commits)), pa.int64())
        places, found = [], []
        for known in self.journal.known(first) if len(commits) else ():
            rows = pc.index_in(keys, value_set=_keys(known))  # the first one of each key, and so the latest
            hit = pc.is_valid(rows)
            places.append(left.filter(hit))
            found.append(known.select(_LAST).take(rows.drop_null()))
            keys, left = keys.filter(pc.invert(hit)), left.filter(pc.invert(hit))
            if not len(left):
                break
        nothing = pa.table({name: pa.nulls(len(left), _COMMITS.field(name).type) for name in _LAST})
        order = pc.sort_indices(pa.concat_arrays([*places, left]))
        together = pa.concat_tables([*found, nothing]).take(order)
        return {name: together.column(name) for name in _LAST}

    def write_standing(self, batch: int, first: int) -> None:
        """Write the last commit of each partition after a batch, without those before the batch `first`."""
        last = arrow_schema(STANDING).empty_table()
        for known in self.journal.known(first):
            keys = _keys(known)
            is_first = pc.equal(pc.index_in(keys, value_set=keys), pa.array(range(len(known)), pa.int32()))
            is_older = pc.is_in(keys, value_set=_keys(last))
            last = pa.concat_tables([last, known.filter(pc.and_(is_first, pc.invert(is_older)))])
        self.journal.write_standing(last, batch)


_COMMITS: Final = arrow_schema(COMMITS)
_READ: Final = pa.schema([_COMMITS.field(name) for name in READ])
_LAST: Final = ("offset", "zxid", "committed_at")
"""The columns of the last recorded commit that the next one is compared with."""


def _is_commit(rows: Any) -> Any:
    """Select the rows of commits. A forbidden node has no zxid, and a directory has no partition."""
    zxid, topic, partition = (pc.is_valid(rows.column(name)) for name in ("zxid", "topic", "partition"))
    return pc.and_(zxid, pc.and_(topic, partition))


def _forbidden(rows: Any) -> dict[str, int]:
    """Return how many forbidden nodes each group has. Each problem names its node, so it is counted once."""
    found = rows.filter(pc.is_null(rows.column("zxid"))).select(["group", "problem"]).to_pylist()
    return Counter(group for group, _problem in {(row["group"], row["problem"]) for row in found})


def _keys(rows: Any) -> Any:
    """Return one text for each row that identifies its partition. Names contain no slash."""
    group, topic, partition = (rows.column(name) for name in KEY)
    joined = pc.binary_join_element_wise(group, topic, partition.cast(pa.string()), "/")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def check_interval(every: float) -> None:
    """Raise InvalidOptionError unless this is a number of seconds."""
    if not 0 <= every < float("inf"):
        raise InvalidOptionError("every", every, "it must be a number of seconds")


@dataclass
class Recording:
    """One run of an audit. `go` records until `stop` is set, or only one batch with `once`."""

    ledger: Ledger
    source: SourceOptions
    every: float
    once: bool
    on_progress: Callable[[AuditStep], None] | None
    stop: threading.Event
    _previous: int | None = None
    _batches: int = 0
    _commits: int = 0
    _problems: int = 0
    _forbidden: int = 0
    _log_ends_problem: str | None = None

    @property
    def journal(self) -> Journal:
        return self.ledger.journal

    def go(self) -> AuditResult:
        """Record, and return the totals. While ZooKeeper is unreachable it retries, unless `once` is set."""
        with locked(self.journal):
            source = self.source
            self.journal.begin(AuditDescription(source.groups, source.topics, layout=source.layout))
            while not self.stop.is_set():
                try:
                    self._follow()
                    break
                except UnavailableError as error:
                    if self.once:
                        raise
                    self._report(AuditStep(trouble=str(error)))
                    self.stop.wait(max(self.every, 1.0))
        counts = self._batches, self._commits, self._problems, self._forbidden
        return AuditResult(str(self.journal), *counts, self._log_ends_problem)

    def _follow(self) -> None:
        """Record batches over one connection."""
        with closing(self.source.connect()) as registry:
            self._check_ensemble(ensemble_position(registry))
            while not self.stop.is_set():
                began = time.monotonic()
                try:
                    self._record(registry)
                except (Interrupted, ZkgroupsException):
                    if self.stop.is_set():
                        return
                    raise
                if self.once:
                    return
                self.stop.wait(max(0.0, began + self.every - time.monotonic()))

    def _record(self, registry: Registry) -> None:
        """Record one batch. Without a transaction since the last one, there is nothing to read."""
        began_ms = time.time_ns() // 1_000_000
        now, first = ensemble_position(registry), self.journal.description().first_batch
        last = self.journal.finished_batch()
        if last is not None and last.number < first:
            last = None  # of the ZooKeeper before
        if last is not None and last.position == now:
            return
        after = 0 if last is None else self._start(last.position, now)
        self._previous = number = self.journal.claim_batch(self._previous)
        self._log_ends_problem = check_brokers(self.source)
        were_forbidden = () if last is None else last.forbidden
        counts = self.ledger.add(
            registry, Batch(number, after, were_forbidden, first, with_log_ends=self._log_ends_problem is None)
        )
        self.journal.write_finished_batch(FinishedBatch(number, now, began_ms, tuple(sorted(counts.forbidden))))
        self._count(number, counts)
        self._merge(first)

    def _count(self, number: int, counts: Counts) -> None:
        self._batches += 1
        self._commits += counts.commits
        self._problems += counts.problems
        self._forbidden = sum(counts.forbidden.values())
        self._report(AuditStep(number, counts.commits, counts.problems, self._forbidden, self._log_ends_problem))

    def _report(self, step: AuditStep) -> None:
        if self.on_progress is not None:
            self.on_progress(step)

    def _merge(self, first: int) -> None:
        """Merge all pieces of a level into one of the next level, once there are `MERGE_FACTOR` of them."""
        level = 0
        while len(pieces := [piece for piece in self.journal.pieces() if piece.level == level]) >= MERGE_FACTOR:
            if level == 0:
                if self.journal.standing_batch() != pieces[-1].last:
                    self.ledger.write_standing(pieces[-1].last, first)
                self.journal.delete_merged()
            self.journal.merge(pieces, Piece(pieces[0].first, pieces[-1].last, level + 1))
            level += 1

    # The ZooKeeper

    def _check_ensemble(self, now: EnsemblePosition) -> None:
        """Raise RefusedError if ZooKeeper was replaced or wiped since the audit began.

        A position alone cannot always detect this: another ZooKeeper may look like the old one with recreated groups.
        """
        journal, name = self.journal, self.source.shown_cluster
        known = journal.description().ensemble
        if known is None:
            journal.save_ensemble(FollowedEnsemble(name, now))
        elif known.is_same(name, now):
            journal.save_ensemble(known.updated(now))
        elif self.source.start_over:
            journal.start_over(FollowedEnsemble(name, now))
        else:
            raise RefusedError(
                f"the audit in {journal} follows {known.cluster}, but {name} is another ZooKeeper or was wiped: use "
                "another folder, or --start-over (in Python `start_over`) to record all of its offsets here"
            )

    def _start(self, before: EnsemblePosition, now: EnsemblePosition) -> int:
        """Return the transaction after which to read. Raise RefusedError unless ZooKeeper went on from a position.

        To start over, read all offsets once: the position does not show that ZooKeeper was restored from a backup if it
        has processed as many transactions since.
        """
        continues, begins = before.may_precede(now), self._previous is None
        if self.source.start_over:
            return before.zxid if continues and not begins else 0
        if continues:
            return before.zxid
        raise RefusedError(
            f"the audit in {self.journal} has read {self.source.shown_cluster} up to transaction {before.zxid:#x}, but "
            f"it is now at {now.zxid:#x}: it was restored, replaced or wiped; use another folder, or --start-over (in "
            "Python `start_over`) to record all of its offsets here"
        )


@contextmanager
def locked(journal: Journal) -> Iterator[None]:
    """Lock a local destination with a file. Elsewhere `claim_batch` detects a concurrent audit."""
    folder = journal.local_path()
    if folder is None:
        yield
        return
    with journal.translated(f"{journal} cannot be written to"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = Path(folder, LOCK).open("a")  # noqa: SIM115 -- errors in the block must not be translated
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise journal.conflict() from error
        yield


def run_audit(
    destination: str,
    source: SourceOptions | str,
    *,
    every: float = 10.0,
    once: bool = False,
    on_progress: Callable[[AuditStep], None] | None = None,
    stop: threading.Event | None = None,
) -> AuditResult:
    """Record commits in a folder of this machine. `zkgroups.spark.run_audit` explains the arguments."""
    check_interval(every)
    source = SourceOptions(zookeeper=source) if isinstance(source, str) else source
    stop = stop or threading.Event()
    return Recording(Ledger(Journal.at(destination), source, stop), source, every, once, on_progress, stop).go()
