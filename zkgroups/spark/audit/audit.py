"""An audit: the stream of commits, kept as Parquet.

    audit(spark, "/data/audit", "zk1:2181/kafka", every=10.0)
    read_audit(spark, "/data/audit").where("offset < before").show()

`journal.py` says where the files are, `ledger.py` what is in them, and `spark/source/stream.py` what may be missing.

Spark's checkpoint says which batches were planned, each from one position to another, before it is read. So whoever is
killed, wherever that is, begins again with the batch that was not finished, which is written once: a batch that is in
place is left as it is.
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
from ...zookeeper.reading.position import position
from ..errors import translated
from ..snapshots.snapshot import session_beside
from ..source.data_source import NAME, active
from ..source.options import MAX_PARALLELISM, SourceOptions, Starting
from ..storage.writing import check_shared
from .followed_ensemble import Whose
from .journal import CHECKPOINT, Journal
from .ledger import Ledger, read_audit, standing_at

__all__ = ["AuditStep", "Audited", "locked", "read_audit", "run_audit", "standing_at"]

_SLICE: Final = 0.2
"""In seconds: so often it is looked whether all is well, and whether to stop."""

_OF_ANOTHER: Final = ("CONCURRENT_STREAM_LOG_UPDATE", "CONCURRENT_QUERY")
"""What Spark calls it when two write to one checkpoint."""


@dataclass(frozen=True, slots=True)
class AuditStep:
    """What an audit has just done: a batch with so many commits, `problems` of which are no offsets.

    `denied` nodes may not be read. What is committed there is found with the first batch after they may be.

    Or `trouble` that it hopes to get over, and then goes on.
    """

    batch: int | None = None
    commits: int = 0
    problems: int = 0
    denied: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit has done until it ended, and where that is; `denied` nodes could not be read in the last batch."""

    destination: str
    batches: int
    commits: int
    problems: int
    denied: int


def run_audit(
    spark: SparkSession,
    destination: str,
    source: SourceOptions | str,
    *,
    every: float = 10.0,
    once: bool = False,
    told: Callable[[AuditStep], None] = lambda _step: None,
    stop: threading.Event | None = None,
) -> Audited:
    """Write down all commits from now on, with those that stand, until `stop` is set; or `once`, those until now.

    An audit that was ended in whatever way goes on where it was. While ZooKeeper cannot be reached, it tries again;
    `once` it does not. `told` hears of each step.
    """
    if spark.sparkContext._jsc is None:
        raise SparkStoppedError("no audit can be made: this Spark was stopped")
    if not 0 <= every < float("inf"):
        raise InvalidOptionError("every", every, "it must be a number of seconds")
    check_shared(spark, destination)
    source = SourceOptions(zookeeper=source) if isinstance(source, str) else source
    cores = min(spark.sparkContext.defaultParallelism, MAX_PARALLELISM)
    source = replace(source, parallelism=source.parallelism or cores)
    own = session_beside(spark)
    run = _Run(own, Ledger(own, destination), source, every, once, told, stop or threading.Event())
    return run.go()


@dataclass
class _Run:
    """One call of `audit`."""

    spark: SparkSession
    ledger: Ledger
    source: SourceOptions
    every: float
    once: bool
    told: Callable[[AuditStep], None]
    stop: threading.Event
    batches: int = 0
    commits: int = 0
    problems: int = 0
    denied: int = 0
    failed: Exception | None = None
    """What went wrong in a batch; Spark would only say it as text."""

    def go(self) -> Audited:
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
                    self.told(AuditStep(trouble=str(error)))
                    self.stop.wait(max(self.every, 1.0))
        return Audited(str(journal), self.batches, self.commits, self.problems, self.denied)

    def _check_whose(self) -> None:
        """What it has followed is of one ZooKeeper, so that nobody takes it for what another one had.

        A stream alone does not know what its ZooKeeper is called: it takes one whose groups were made after its
        position for that which it knew, when its groups were deleted and made anew.
        """
        journal, name = self.ledger.journal, self.source.shown_cluster
        with closing(self.source.connect()) as registry:
            now = position(registry)
        known = journal.whose()
        if known is None:
            journal.say_whose(Whose(name, now))
        elif known.is_that(name, now):
            journal.say_whose(known.seen(now))
        elif self.source.begin_anew:
            journal.begin_anew()
            journal.say_whose(Whose(name, now))
        else:
            raise RefusedError(
                f"the audit in {journal} is of {known.cluster}, and {name} is another ZooKeeper, or was wiped: to "
                "write down all that it has, begin anew"
            )

    def _follow(self) -> None:
        self.failed = None
        self._check_whose()
        with self._explained():
            query = self._start()
        try:
            while not self.stop.is_set() and query.isActive:
                self.stop.wait(_SLICE)
        finally:
            query.stop()
        if self.stop.is_set():
            return  # what was in the midst of a batch was interrupted
        if self.failed is not None:
            raise self.failed
        with self._explained():
            query.awaitTermination()

    def _start(self) -> StreamingQuery:
        rows = self.spark.readStream.format(NAME).options(**self.source.as_text()).load()
        writer = rows.writeStream.foreachBatch(self._write)
        writer = writer.option("checkpointLocation", self.ledger.journal.path(CHECKPOINT))
        if self.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{max(1, round(1000 * self.every))} milliseconds").start()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        where = self.ledger.journal
        with active(self.spark), translated(f"the audit in {where} stopped"):
            try:
                yield
            except PySparkException as error:
                if any(name in str(error) for name in _OF_ANOTHER):
                    raise _conflict(where) from error
                raise

    def _write(self, rows: DataFrame, batch: int) -> None:
        """Called by Spark with each batch, on a thread of its own."""
        began_ms = time.time_ns() // 1_000_000
        try:
            with translated(f"batch {batch} could not be written to {self.ledger.journal}"):
                counts = self.ledger.add(rows, batch, self._whole)
                if counts is not None:
                    self.ledger.journal.put_looked(began_ms)
                self.ledger.put_together()
        except Exception as error:
            self.failed = error
            raise
        if counts is not None:
            self.batches += 1
            self.commits += counts.commits
            self.problems += counts.problems
            self.denied = counts.denied
            self.told(AuditStep(batch, counts.commits, counts.problems, counts.denied))

    def _whole(self, spark: SparkSession, groups: list[str]) -> DataFrame:
        """All that stands in these groups."""
        names = "|".join(map(re.escape, groups))
        source = replace(self.source, groups=names, starting_zxid=Starting.EARLIEST, begin_anew=False)
        with active(spark):
            return spark.read.format(NAME).options(**source.as_text()).load()


@contextmanager
def locked(journal: Journal) -> Iterator[None]:
    """Keep others out, where a file can do that; elsewhere Spark's checkpoint does, once the other has planned."""
    folder = journal.local_path()
    if folder is None:
        yield
        return
    with translated(f"{journal} cannot be written to"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = Path(folder, "_lock").open("a")  # noqa: SIM115 -- what it may not do is told apart from what is done in it
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _conflict(journal) from error
        yield


def _conflict(journal: Journal) -> ConflictError:
    return ConflictError(f"another audit writes to {journal}")
