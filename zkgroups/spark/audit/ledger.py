"""Records the batches of an audit with Spark. `zkgroups/audit/audit.py` has the steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType

from ...audit.audit import Batch, Counts
from ...audit.pieces import Piece
from ...core.audit_columns import KEY, READ, STANDING
from ...tables.source_options import SourceOptions
from ...zookeeper.registry import Registry
from ..errors import translated
from ..pyspark_internals import active_session
from ..source.read_shares import read_shares
from .journal import COMMIT_SCHEMA, SparkJournal

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
