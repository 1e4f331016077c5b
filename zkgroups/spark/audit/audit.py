"""Record the stream of commits as Parquet.

    run_audit(spark, "/data/audit", "zk1:2181/kafka", every=10.0)
    read_audit(spark, "/data/audit").where("offset < before").show()

See `journal.py` for the files, `ledger.py` for their contents, and `spark/source/stream.py` for the guarantees.

Spark's checkpoint records each planned batch, with its start and end position, before the batch is read. So an audit
that is killed at any point continues with the unfinished batch. Each batch is written once: a batch that is already in
place is skipped.
"""

from __future__ import annotations

import fcntl
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ...exceptions import ConflictError, InvalidOptionError, RefusedError, SparkStoppedError, UnavailableError
from ...tables.source_options import MAX_PARALLELISM, SourceOptions, Starting
from ...zookeeper.reading.ensemble_position import ensemble_position
from ..errors import translated
from ..pyspark_internals import active_session, is_stopped
from ..snapshots.snapshot import session_beside
from ..source.data_source import NAME
from ..storage.writing import check_shared
from .followed_ensemble import FollowedEnsemble
from .journal import CHECKPOINT, Journal
from .ledger import Ledger, offsets_at, read_audit

__all__ = ["AuditResult", "AuditStep", "locked", "offsets_at", "read_audit", "run_audit"]

_POLL_INTERVAL: Final = 0.2
"""The interval in seconds for checking the query and the stop event."""

_CONCURRENT_WRITE: Final = ("CONCURRENT_STREAM_LOG_UPDATE", "CONCURRENT_QUERY")
"""Spark's error classes for two queries with one checkpoint."""


@dataclass(frozen=True, slots=True)
class AuditStep:
    """The progress of an audit: a finished batch, or an error that the audit will retry.

    - `batch`: the number of the batch; None for an error.
    - `commits`, `problems`: the number of commits in the batch, and how many of them are malformed.
    - `forbidden`: the number of forbidden nodes. Their commits are recorded in the first batch after they become
      readable.
    - `trouble`: the message of the error.
    """

    batch: int | None = None
    commits: int = 0
    problems: int = 0
    forbidden: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The totals of a finished audit.

    - `destination`: its folder.
    - `batches`, `commits`: the numbers of batches and of commits that it has recorded.
    - `problems`: how many of these commits are malformed.
    - `forbidden`: the number of forbidden nodes in the last batch.
    """

    destination: str
    batches: int
    commits: int
    problems: int
    forbidden: int


def run_audit(
    spark: SparkSession,
    destination: str,
    source: SourceOptions | str,
    *,
    every: float = 10.0,
    once: bool = False,
    on_progress: Callable[[AuditStep], None] | None = None,
    stop: threading.Event | None = None,
) -> AuditResult:
    """Record all current offsets as Parquet, then every commit, until `stop` is set.

    - `destination`: a folder that Spark's driver and workers can see. An interrupted audit continues there.
    - `source`: the address of ZooKeeper, or `SourceOptions` that also select groups and topics.
    - `every`: how often to look for commits, in seconds. A commit that is overwritten between two looks is not seen.
    - `once`: stop after one batch.
    - `on_progress`: called with an `AuditStep` after each batch, and after an error.

    While ZooKeeper is unreachable it retries, unless `once` is set.
    """
    if is_stopped(spark):
        raise SparkStoppedError("cannot run an audit: this Spark session was stopped; create a new one")
    if not 0 <= every < float("inf"):
        raise InvalidOptionError("every", every, "it must be a number of seconds")
    check_shared(spark, destination)
    source = SourceOptions(zookeeper=source) if isinstance(source, str) else source
    cores = min(spark.sparkContext.defaultParallelism, MAX_PARALLELISM)
    source = replace(source, parallelism=source.parallelism or cores)
    own = session_beside(spark)
    run = _Run(own, Ledger(own, destination), source, every, once, on_progress, stop or threading.Event())
    return run.go()


@dataclass
class _Run:
    """One call of `run_audit`."""

    spark: SparkSession
    ledger: Ledger
    source: SourceOptions
    every: float
    once: bool
    on_progress: Callable[[AuditStep], None] | None
    stop: threading.Event
    batches: int = 0
    commits: int = 0
    problems: int = 0
    forbidden: int = 0
    failed: Exception | None = None
    """The error of a batch. Spark would report it only as text."""

    def _report(self, step: AuditStep) -> None:
        if self.on_progress is not None:
            self.on_progress(step)

    def go(self) -> AuditResult:
        journal = self.ledger.journal
        with locked(journal):
            journal.begin(self.source.groups, self.source.topics)
            while not self.stop.is_set():
                try:
                    self._follow()
                    break
                except UnavailableError as error:
                    if self.once:
                        raise
                    self._report(AuditStep(trouble=str(error)))
                    self.stop.wait(max(self.every, 1.0))
        return AuditResult(str(journal), self.batches, self.commits, self.problems, self.forbidden)

    def _check_ensemble(self) -> None:
        """Raise RefusedError if ZooKeeper was replaced or wiped since the audit began.

        The stream alone cannot always detect this: it knows positions but no names. So another ZooKeeper may look
        like the old one with recreated groups.
        """
        journal, name = self.ledger.journal, self.source.shown_cluster
        with closing(self.source.connect()) as registry:
            now = ensemble_position(registry)
        known = journal.followed_ensemble()
        if known is None:
            journal.save_ensemble(FollowedEnsemble(name, now))
        elif known.is_same(name, now):
            journal.save_ensemble(known.updated(now))
        elif self.source.start_over:
            journal.start_over()
            journal.save_ensemble(FollowedEnsemble(name, now))
        else:
            raise RefusedError(
                f"the audit in {journal} follows {known.cluster}, but {name} is another ZooKeeper or was wiped: use "
                "another folder, or --start-over (in Python `start_over`) to record all of its offsets here"
            )

    def _follow(self) -> None:
        self.failed = None
        self._check_ensemble()
        with self._translated():
            query = self._start()
        try:
            while not self.stop.is_set() and query.isActive:
                self.stop.wait(_POLL_INTERVAL)
        finally:
            query.stop()
        if self.stop.is_set():
            return  # errors are expected if a batch was interrupted
        if self.failed is not None:
            raise self.failed
        with self._translated():
            query.awaitTermination()

    def _start(self) -> StreamingQuery:
        rows = self.spark.readStream.format(NAME).options(**self.source.as_text()).load()
        writer = rows.writeStream.foreachBatch(self._write)
        writer = writer.option("checkpointLocation", self.ledger.journal.path(CHECKPOINT))
        if self.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{max(1, round(1000 * self.every))} milliseconds").start()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        where = self.ledger.journal
        with active_session(self.spark), translated(f"the audit in {where} stopped"):
            try:
                yield
            except PySparkException as error:
                if any(name in str(error) for name in _CONCURRENT_WRITE):
                    raise _conflict(where) from error
                raise

    def _write(self, rows: DataFrame, batch: int) -> None:
        """Called by Spark with each batch, on a thread of its own."""
        began_ms = time.time_ns() // 1_000_000
        try:
            with translated(f"batch {batch} could not be written to {self.ledger.journal}"):
                counts = self.ledger.add(rows, batch, self._read_groups)
                if counts is not None:
                    self.ledger.journal.write_last_read(began_ms)
                self.ledger.merge()
        except Exception as error:
            self.failed = error
            raise
        if counts is not None:
            self.batches += 1
            self.commits += counts.commits
            self.problems += counts.problems
            self.forbidden = counts.forbidden
            self._report(AuditStep(batch, counts.commits, counts.problems, counts.forbidden))

    def _read_groups(self, spark: SparkSession, groups: list[str]) -> DataFrame:
        """Read all current offsets of these groups."""
        names = "|".join(map(re.escape, groups))
        source = replace(self.source, groups=names, starting_zxid=Starting.EARLIEST, start_over=False)
        with active_session(spark):
            return spark.read.format(NAME).options(**source.as_text()).load()


@contextmanager
def locked(journal: Journal) -> Iterator[None]:
    """Lock a local destination with a file. Elsewhere Spark's checkpoint detects a concurrent audit."""
    folder = journal.local_path()
    if folder is None:
        yield
        return
    with translated(f"{journal} cannot be written to"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = Path(folder, "_lock").open("a")  # noqa: SIM115 -- errors in the block must not be translated
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _conflict(journal) from error
        yield


def _conflict(journal: Journal) -> ConflictError:
    return ConflictError(f"another audit is writing to {journal}: stop it, or use another folder")
