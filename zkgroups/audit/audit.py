"""Record commits batch by batch: the steps that both engines share.

A batch reads all offsets, and records those that were written since the position of the last one. It has four steps:

1. Read the position of ZooKeeper. All transactions up to it are in what is read next.
2. Take the number of the batch.
3. Read the offsets, and add the new commits as a piece. Only this step depends on the engine: see `Ledger`.
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
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..core.ensemble_position import EnsemblePosition
from ..exceptions import InvalidOptionError, RefusedError, UnavailableError, ZkgroupsException
from ..tables.source_options import SourceOptions
from ..tables.table_reader import check_brokers
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
    """Raised by an engine whose batch was interrupted, because the audit is to stop."""


class Ledger(Protocol):
    """An engine that reads and writes the rows of an audit."""

    @property
    def journal(self) -> Journal:
        """The folder of the audit."""

    def add(self, registry: Registry, batch: Batch) -> Counts:
        """Record the commits of a batch that are not recorded yet, each with the previous offset."""

    def write_standing(self, batch: int, first: int) -> None:
        """Write the last commit of each partition after a batch, without those before the batch `first`."""

    def merge(self, pieces: list[Piece], into: Piece) -> None:
        """Write the commits of these pieces as one."""


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
            self.ledger.merge(pieces, Piece(pieces[0].first, pieces[-1].last, level + 1))
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
