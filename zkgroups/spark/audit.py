"""Record commits with Spark, as Parquet on any file system.

    run_audit(spark, "/data/audit", "zk1:2181/kafka", every=10.0)
    read_audit(spark, "/data/audit").where("offset < before").show()

See `zkgroups/audit/journal.py` for the files, and `zkgroups/audit/audit.py` for the steps and the guarantees.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import and_
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType

from ..audit.audit import AuditResult, AuditStep, Batch, Counts, Recording, check_interval
from ..audit.journal import COMMITS as COMMITS_FOLDER
from ..audit.journal import CURE, Journal, Piece
from ..core.layouts.legacy import LEGACY
from ..core.selection import check_expression
from ..core.table_columns import COMMITS, KEY, READ, STANDING
from ..exceptions import InvalidOptionError, RefusedError, SparkStoppedError
from ..tables.source_options import MAX_PARALLELISM, HistoryOptions, SourceOptions
from ..zookeeper.registry import Registry
from .data_source import NAME, read_shares, register, spark_schema
from .errors import translated
from .files import SparkFolder, check_shared, write_and_list
from .pyspark_internals import active_session, is_stopped
from .session import stoppable
from .snapshots import session_beside

# The rows of an audit as tables of Spark. `zkgroups/audit/journal.py` describes the files.


COMMIT_SCHEMA: Final = spark_schema(COMMITS)
STANDING_SCHEMA: Final = spark_schema(STANDING)

_ROWS_OF_A_FILE: Final = 1_000_000


class SparkJournal(SparkFolder, Journal):
    """The folder of one audit, with its rows as tables of Spark."""

    def read(self, pieces: Iterable[Piece]) -> DataFrame:
        """Return the commits of pieces, after a check that their files are there."""
        return self.read_folders([(COMMITS_FOLDER, piece.name) for piece in pieces], COMMIT_SCHEMA, CURE)

    def known(self, first: int) -> DataFrame | None:
        """Return commits, with the last one of each partition, without those before the batch `first`; None if none."""
        folders = self.known_folders()
        if not folders:
            return None
        return self.read_folders(folders, STANDING_SCHEMA, CURE).where(f.col("batch") >= first)

    def write_commits(self, rows: DataFrame, count: int, piece: Piece) -> None:
        """Add a piece."""
        with self.new_piece(piece) as path:
            write_and_list(rows.coalesce(_files(count)), path)

    def write_standing(self, rows: DataFrame, batch: int) -> None:
        """Add the last commit of each partition."""
        with self.new_standing(batch) as path:
            write_and_list(rows.coalesce(_files(rows.count())), path)


def _files(rows: int) -> int:
    return -(-rows // _ROWS_OF_A_FILE) or 1


# Records the batches of an audit with Spark. `zkgroups/audit/audit.py` has the steps.


_FEW: Final = 100_000
"""Up to this many keys are broadcast to every process."""

_STANDING: Final = [each.name for each in STANDING]


class SparkLedger:
    """Records the batches of one audit. `Ledger` describes the methods."""

    def __init__(self, spark: SparkSession, destination: str, source: SourceOptions) -> None:
        self._spark = spark
        self._source = replace(source, with_owners=False, start_over=False)
        self.journal = SparkJournal(spark, destination)

    def add(self, _registry: Registry, batch: Batch) -> Counts:
        with translated(f"batch {batch.number} could not be written to {self.journal}"), active_session(self._spark):
            source = self._source if batch.with_log_ends else self._source.without_brokers()
            rows = read_shares(self._spark, replace(source, starting_zxid=batch.after))
            if batch.were_forbidden:
                groups = "|".join(map(re.escape, batch.were_forbidden))
                rows = rows.unionByName(read_shares(self._spark, replace(source, groups=groups)))
            with _cached(rows.select(*READ)) as (read, found):
                forbidden = _forbidden(read) if found.forbidden else {}
                if not found.commits:
                    return Counts(0, 0, forbidden)
                commits = _newest(read.where(_is_commit())) if batch.were_forbidden else read.where(_is_commit())
                new = self._write_new(commits, batch, few=found.commits <= _FEW)
                return Counts(new.commits, new.problems, forbidden)

    def _write_new(self, read: DataFrame, batch: Batch, *, few: bool) -> _RowCounts:
        with _cached(self._new(read, batch, few=few)) as (commits, new):
            if new.commits:
                self.journal.write_commits(commits, new.commits, Piece(batch.number, batch.number))
            return new

    def _new(self, read: DataFrame, batch: Batch, *, few: bool) -> DataFrame:
        """Return the commits that are not in the audit yet, with the previous offset of each partition.

        Only the partitions in `read` are looked up, so a small batch sorts few rows.
        """
        read = read.withColumn("batch", f.lit(batch.number).cast(LongType()))
        known = self.journal.known(batch.first)
        if known is None:
            return read.withColumn("before", f.lit(None).cast(LongType())).select(*COMMIT_SCHEMA.names)
        wanted = read.select(*KEY)
        wanted = f.broadcast(wanted) if few else wanted
        last = _last(known.join(wanted, [*KEY], "leftsemi"))
        before = last.select(*KEY, f.struct("offset", "zxid", "committed_at").alias("last"))
        together = read.join(before, [*KEY], "left")
        same_zxid = f.col("last.zxid").eqNullSafe(f.col("zxid"))
        # The time is null if the server's clock was out of range.
        same_time = f.col("last.committed_at").eqNullSafe(f.col("committed_at"))
        new = together.where(~(same_zxid & same_time))
        return new.withColumn("before", f.col("last.offset")).select(*COMMIT_SCHEMA.names)

    def write_standing(self, batch: int, first: int) -> None:
        if (known := self.journal.known(first)) is not None:
            self.journal.write_standing(_last(known), batch)

    def merge(self, pieces: list[Piece], into: Piece) -> None:
        rows = self.journal.read(pieces)
        self.journal.write_commits(rows, rows.count(), into)


@dataclass(frozen=True, slots=True)
class _RowCounts:
    """The numbers of commits, of malformed ones among them, and of rows that report forbidden nodes."""

    commits: int
    problems: int
    forbidden: int


@contextmanager
def _cached(rows: DataFrame) -> Iterator[tuple[DataFrame, _RowCounts]]:
    """Cache rows for the block, and count them."""
    cached = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        problems = f.count_if(_is_commit() & f.col("problem").isNotNull())
        counted = cached.agg(f.count_if(_is_commit()), problems, f.count_if(f.col("zxid").isNull())).collect()
        yield cached, _RowCounts(*counted[0])
    finally:
        cached.unpersist()


def _is_commit() -> Column:
    """Select the rows of commits. A forbidden node has no zxid, and a directory has no partition."""
    return f.col("zxid").isNotNull() & f.col("topic").isNotNull() & f.col("partition").isNotNull()


def _newest(commits: DataFrame) -> DataFrame:
    """Return the newer row of each partition that was read twice."""
    values = [name for name in commits.columns if name not in KEY]
    last = f.max_by(f.struct(*values), "zxid").alias("last")
    return commits.groupBy(*KEY).agg(last).select(*KEY, "last.*")


def _forbidden(rows: DataFrame) -> dict[str, int]:
    """Return how many forbidden nodes each group has. Each problem names its node, so it is counted once."""
    found = rows.where(f.col("zxid").isNull()).groupBy("group").agg(f.count_distinct("problem")).collect()
    return {row[0]: row[1] for row in found}


def _last(found: DataFrame) -> DataFrame:
    """Return the last commit of each partition."""
    values = [name for name in _STANDING if name not in KEY]
    last = f.max_by(f.struct(*values), "batch").alias("last")
    return found.groupBy(*KEY).agg(last).select(*KEY, "last.*")


# The commits of an audit together with those in the transaction logs of its ZooKeeper, each of them once.


_SAME: Final = ("group", "topic", "partition", "zxid", "committed_at")
"""The columns that two rows of one commit share. A ZooKeeper that was wiped uses the numbers of transactions again."""


def with_logs(commits: DataFrame, logs: HistoryOptions) -> DataFrame:
    """Return the recorded commits, and all commits in the logs. A commit that is in both is taken from the logs."""
    spark = commits.sparkSession
    register(spark)
    with active_session(spark):
        logged = spark.read.format(NAME).options(**logs.as_text()).load().where("event != 'deleted'")
    same = reduce(and_, (f.col(f"recorded.{name}").eqNullSafe(f.col(f"logged.{name}")) for name in _SAME))
    only_recorded = commits.alias("recorded").join(logged.alias("logged"), same, "left_anti")
    shared = logged.select(*(name for name in commits.columns if name in logged.columns))
    return only_recorded.unionByName(shared.withColumn("layout", f.lit(LEGACY.text)), allowMissingColumns=True)


# The commits of an audit as a table, and the offsets that were committed at a time.


def read_audit(spark: SparkSession, destination: str, *, logs: HistoryOptions | None = None) -> DataFrame:
    """Return every recorded commit of an audit.

    The columns are group, topic, partition, `before` (the previous offset in the audit), `offset` (null if malformed),
    `commit_count`, `committed_at`, `zxid`, `layout`, `log_start`, `log_end`, `problem` (why it is malformed), `read_at`
    and `batch`.

    With `logs`, the result also has every commit in the transaction logs of the same ZooKeeper, each commit once. They
    fill the audit where it missed commits between two reads. `read_at` and `batch` are null for a commit from the logs.
    Unless `logs` says which groups and topics, they are those of the audit. Raise RefusedError for another layout.
    """
    journal = SparkJournal(spark, destination)
    journal.check_exists()
    commits = journal.read(journal.pieces())
    return commits if logs is None else with_logs(commits, _selected(logs, journal))


def _selected(logs: HistoryOptions, journal: SparkJournal) -> HistoryOptions:
    """Select the groups and topics of the audit in the logs."""
    audit = journal.description()
    if audit.layout != LEGACY.text:
        raise RefusedError(f"the audit in {journal} has the layout {audit.layout}, which is not read from logs")
    return replace(logs, groups=logs.groups or audit.groups, topics=logs.topics or audit.topics)


def offsets_at(spark: SparkSession, destination: str, at: datetime, group: str | None = None) -> DataFrame:
    """Return the offsets committed at a time, of one group or of all: group, topic, partition, offset, committed_at.

    For each partition the result has the last recorded commit made at or before `at`. The true offset may be newer,
    because an audit does not see commits that are overwritten between two batches; it is never older. Offsets that were
    deleted before `at` are included. Partitions whose last commit is malformed are left out, and so are commits made
    before the audit started over with another ZooKeeper. Raise RefusedError for a time after the last batch.
    """
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidOptionError("at", str(at), "it must be a datetime with a time zone")
    journal = SparkJournal(spark, destination)
    journal.check_exists()
    journal.check_has_read(at)
    commits = journal.read(journal.pieces())
    first = journal.description().first_batch
    commits = commits.where((f.col("committed_at") <= f.lit(at)) & (f.col("batch") >= first))
    if group is not None:
        commits = commits.where(f.col("group") == group)
    last = f.max_by(f.struct("offset", "committed_at"), "batch").alias("last")
    found = commits.groupBy(*KEY).agg(last).select(*KEY, "last.*")
    return found.where(f.col("offset").isNotNull())


def find_commits(
    spark: SparkSession,
    destination: str,
    *,
    groups: str | None = None,
    topics: str | None = None,
    logs: HistoryOptions | None = None,
) -> Iterator[dict[str, Any]]:
    """Return the commits of groups and topics whose whole names match, oldest first. See `read_audit` for `logs`."""
    commits = read_audit(spark, destination, logs=logs)
    for column, expression in (("group", groups), ("topic", topics)):
        check_expression(f"{column}s", expression)
        if expression is not None:
            names = [row[0] for row in commits.select(column).distinct().toLocalIterator()]
            matching = re.compile(expression, re.DOTALL)  # Java's regular expressions differ slightly
            commits = commits.where(f.col(column).isin([name for name in names if matching.fullmatch(name)]))
    with translated(f"the audit in {destination} cannot be read"):
        for row in commits.orderBy(*([] if logs else ["batch"]), "zxid", *KEY).toLocalIterator():
            yield row.asDict()


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
    - `on_progress`: called with an `AuditStep` after each batch, and after an error, on another thread.
    - `stop`: set it to stop the audit; a batch that is being recorded is interrupted, and continued by the next run.

    While ZooKeeper is unreachable it retries, unless `once` is set.
    """
    if is_stopped(spark):
        raise SparkStoppedError("cannot run an audit: this Spark session was stopped; create a new one")
    check_interval(every)
    check_shared(spark, destination)
    source = SourceOptions(zookeeper=source) if isinstance(source, str) else source
    cores = min(spark.sparkContext.defaultParallelism, MAX_PARALLELISM)
    source = replace(source, parallelism=source.parallelism or cores)
    ledger = SparkLedger(session_beside(spark), destination, source)
    return stoppable(spark, lambda ended: Recording(ledger, source, every, once, on_progress, ended).go(), stop)
