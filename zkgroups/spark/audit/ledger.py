"""The contents of an audit: each commit with the previous offset, and the committed offsets at any time.

See `journal.py` for the files. Forbidden nodes are counted. If a group has one, the next batch reads all offsets of the
group, and not only the changed ones. So the last commit to the node is recorded once the node can be read. Commits
that are already recorded are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ...core.selection import check_expression
from ...core.times import utc
from ...exceptions import InvalidOptionError, RefusedError
from ...storage.audit_pieces import Piece
from ...tables.history_options import HistoryOptions
from ..errors import translated
from .journal import MERGE_FACTOR, Journal
from .with_logs import with_logs

KEY: Final = ("group", "topic", "partition")

_ROWS_OF_A_FILE: Final = 1_000_000

_FEW: Final = 100_000
"""Up to this many keys are broadcast to every process."""


def _column(name: str, kind: DataType, about: str, *, nullable: bool = True) -> StructField:
    return StructField(name, kind, nullable, {"comment": about})


_KEY: Final = [
    _column("group", StringType(), "the group"),
    _column("topic", StringType(), "the topic"),
    _column("partition", IntegerType(), "the partition"),
]

COMMITS: Final = StructType(
    [
        *_KEY,
        _column("before", LongType(), "the previous offset in the audit; null if this is the first"),
        _column("offset", LongType(), "the next message to read; null if malformed, see `problem`"),
        _column("commit_count", IntegerType(), "how often the node was written since its creation"),
        _column("committed_at", TimestampType(), "when it was written, by the server's clock"),
        _column("zxid", LongType(), "the transaction that wrote it"),
        _column("problem", StringType(), "the reason why the offset is malformed; null if it is not"),
        _column("read_at", TimestampType(), "when it was read, by the clock of the reader"),
        _column("batch", LongType(), "the batch in which it was read"),
    ]
)
"""The columns of a recorded commit."""

STANDING: Final = StructType([*_KEY, *(COMMITS[name] for name in ("offset", "committed_at", "zxid", "batch"))])
"""The columns of the last recorded commit of a partition."""

_READ: Final = [name for name in COMMITS.names if name not in {"before", "batch"}]
"""The columns to read from the source."""

ReadGroups: TypeAlias = Callable[[SparkSession, list[str]], DataFrame]
"""Reads all current offsets of the groups with these names."""


def read_audit(spark: SparkSession, destination: str, *, logs: HistoryOptions | None = None) -> DataFrame:
    """Return every recorded commit of an audit.

    The columns are group, topic, partition, `before` (the previous offset in the audit), `offset` (null if malformed),
    `commit_count`, `committed_at`, `zxid`, `problem` (why it is malformed), `read_at` and `batch`.

    With `logs`, the result also has every commit in the transaction logs of the same ZooKeeper, each commit once. They
    fill the audit where it missed commits between two reads. `read_at` and `batch` are null for a commit from the logs.
    """
    journal = Journal(spark, destination)
    journal.check_exists()
    commits = journal.read(journal.pieces(), COMMITS)
    return commits if logs is None else with_logs(commits, logs)


def offsets_at(spark: SparkSession, destination: str, at: datetime, group: str | None = None) -> DataFrame:
    """Return the offsets committed at a time, of one group or of all: group, topic, partition, offset, committed_at.

    For each partition the result has the last recorded commit made at or before `at`. The true offset may be newer,
    because an audit does not see commits that are overwritten between two batches; it is never older. Offsets that were
    deleted before `at` are included. Partitions whose last commit is malformed are left out, and so are commits made
    before the audit started over with another ZooKeeper. Raise RefusedError for a time after the last batch.
    """
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidOptionError("at", str(at), "it must be a datetime with a time zone")
    journal = Journal(spark, destination)
    journal.check_exists()
    _check_not_after_last_read(journal, at)
    commits = journal.read(journal.pieces(), COMMITS)
    commits = commits.where((f.col("committed_at") <= f.lit(at)) & (f.col("batch") >= journal.first_batch()))
    if group is not None:
        commits = commits.where(f.col("group") == group)
    last = f.max_by(f.struct("offset", "committed_at"), "batch").alias("last")
    found = commits.groupBy(*KEY).agg(last).select(*KEY, "last.*")
    return found.where(f.col("offset").isNotNull())


def _check_not_after_last_read(journal: Journal, at: datetime) -> None:
    last_read = journal.last_read_ms()
    if last_read is None:
        raise RefusedError(f"the audit in {journal} has no finished batch yet: try again later")
    if at.timestamp() * 1000 > last_read:
        raise RefusedError(
            f"the audit in {journal} last read offsets at {utc(last_read)} and does not know later commits: choose an "
            "earlier time"
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one batch."""

    commits: int
    problems: int
    """The number of malformed commits."""
    forbidden: int = 0
    """The number of forbidden nodes."""


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


class Ledger:
    """Writes the batches of an audit, each once."""

    def __init__(self, spark: SparkSession, destination: str) -> None:
        self._spark = spark
        self.journal = Journal(spark, destination)

    def add(self, rows: DataFrame, batch: int, read_groups: ReadGroups) -> Counts | None:
        """Write the commits of a batch and return their counts; return None if the batch is already written.

        After a crash Spark repeats the batch from the same position. The first result is kept.
        """
        if any(piece.first <= batch <= piece.last for piece in self.journal.pieces()):
            return None
        were_forbidden = self.journal.forbidden_groups(batch)
        if were_forbidden:
            rows = rows.unionByName(read_groups(rows.sparkSession, were_forbidden))
        with _cached(rows.select(*_READ)) as (read, found):
            forbidden = _forbidden(read) if found.forbidden else {}
            self.journal.write_forbidden_groups(
                sorted(forbidden), batch
            )  # before the commits, which complete the batch
            if not found.commits:
                return Counts(0, 0, sum(forbidden.values()))
            commits = read.where(_is_commit()).withColumn("batch", f.lit(batch).cast(LongType()))
            new = self._write_new(_newest(commits) if were_forbidden else commits, batch, few=found.commits <= _FEW)
            return replace(new, forbidden=sum(forbidden.values()))

    def _write_new(self, read: DataFrame, batch: int, *, few: bool) -> Counts:
        with _cached(self._new(read, batch, few=few)) as (commits, new):
            if new.commits:
                self.journal.write_commits(commits.coalesce(_files(new.commits)), Piece(batch, batch))
            return new

    def _new(self, read: DataFrame, batch: int, *, few: bool) -> DataFrame:
        """Return the commits that are not in the audit yet, with the previous offset of each partition.

        Only the partitions in `read` are looked up, so a small batch sorts few rows.
        """
        known = self._known(read.sparkSession, batch)
        if known is None:
            return read.withColumn("before", f.lit(None).cast(LongType())).select(*COMMITS.names)
        wanted = read.select(*KEY)
        wanted = f.broadcast(wanted) if few else wanted
        last = _last(known.join(wanted, [*KEY], "leftsemi"))
        before = last.select(*KEY, f.struct("offset", "zxid", "committed_at").alias("last"))
        together = read.join(before, [*KEY], "left")
        same_zxid = f.col("last.zxid").eqNullSafe(f.col("zxid"))
        # The time is null if the server's clock was out of range.
        same_time = f.col("last.committed_at").eqNullSafe(f.col("committed_at"))
        new = together.where(~(same_zxid & same_time))
        return new.withColumn("before", f.col("last.offset")).select(*COMMITS.names)

    def _known(self, spark: SparkSession, until: int) -> DataFrame | None:
        """Return commits recorded before a batch, including the last of each partition."""
        journal = Journal(spark, str(self.journal))
        standing = journal.standing_batch()
        since = [piece for piece in journal.pieces() if piece.last > (-1 if standing is None else standing)]
        found = [journal.read(since, COMMITS).select(*STANDING.names)] if since else []
        if standing is not None:
            found.append(journal.read_standing(standing, STANDING))
        if not found:
            return None
        known = found[0] if len(found) == 1 else found[0].unionByName(found[1])
        return known.where(f.col("batch").between(journal.first_batch(), until - 1))

    def merge(self) -> None:
        """Merge all pieces of a level into one of the next level, once there are `MERGE_FACTOR` of them."""
        level = 0
        while len(pieces := [piece for piece in self.journal.pieces() if piece.level == level]) >= MERGE_FACTOR:
            if level == 0:
                self._write_standing(pieces[-1].last)
                self.journal.delete_merged()
            rows = self.journal.read(pieces, COMMITS)
            merged = Piece(pieces[0].first, pieces[-1].last, level + 1)
            self.journal.write_commits(rows.coalesce(_files(rows.count())), merged)
            level += 1

    def _write_standing(self, batch: int) -> None:
        known = self._known(self._spark, batch + 1)
        if known is not None and self.journal.standing_batch() != batch:
            rows = _last(known)
            self.journal.write_standing(rows.coalesce(_files(rows.count())), batch)


@contextmanager
def _cached(rows: DataFrame) -> Iterator[tuple[DataFrame, Counts]]:
    """Cache rows for the block, and count them."""
    cached = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        problems = f.count_if(_is_commit() & f.col("problem").isNotNull())
        counted = cached.agg(f.count_if(_is_commit()), problems, f.count_if(f.col("zxid").isNull())).collect()
        yield cached, Counts(*counted[0])
    finally:
        cached.unpersist()


def _files(rows: int) -> int:
    return -(-rows // _ROWS_OF_A_FILE) or 1


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
    values = [name for name in STANDING.names if name not in KEY]
    last = f.max_by(f.struct(*values), "batch").alias("last")
    return found.groupBy(*KEY).agg(last).select(*KEY, "last.*")
