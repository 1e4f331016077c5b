"""What is in an audit: each batch of commits with what stood before, and what stood at any time.

`journal.py` says where it is. What may not be read is no commit, and is counted. The groups in which there was such are
read whole with the next batch, whenever their offsets were written, so that what was committed where it could not be
read is found once it can be. What the audit has of them already is left out, as always.
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

from ...core.times import utc
from ...exceptions import InvalidOptionError, RefusedError
from ..errors import translated
from ..source.options import check_expression
from .journal import TOGETHER, Journal, Piece

KEY: Final = ("group", "topic", "partition")

_ROWS_OF_A_FILE: Final = 1_000_000

_FEW: Final = 100_000
"""So many keys may be in the memory of each process."""


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
        _column("before", LongType(), "the offset that the audit had before; null where it had none"),
        _column("offset", LongType(), "the next message to read; null where it is no offset, as `problem` says"),
        _column("commit_count", IntegerType(), "how often it was written since the node was made"),
        _column("committed_at", TimestampType(), "when it was written, by the server's clock"),
        _column("zxid", LongType(), "the transaction that wrote it"),
        _column("problem", StringType(), "what is wrong; null where all is well"),
        _column("read_at", TimestampType(), "when it was read, by the clock of the reader"),
        _column("batch", LongType(), "the batch in which it was read"),
    ]
)
"""A commit that was found by an audit."""

STANDING: Final = StructType([*_KEY, *(COMMITS[name] for name in ("offset", "committed_at", "zxid", "batch"))])
"""The last of a partition that was found."""

_READ: Final = [name for name in COMMITS.names if name not in {"before", "batch"}]
"""The columns of the source that are kept."""

WholeGroups: TypeAlias = Callable[[SparkSession, list[str]], DataFrame]
"""Reads all that stands in groups of these names."""


def read_audit(spark: SparkSession, destination: str) -> DataFrame:
    """Every commit that an audit has found; see `COMMITS` for the columns."""
    journal = Journal(spark, destination)
    journal.check_there()
    return journal.read(journal.pieces(), COMMITS)


def standing_at(spark: SparkSession, destination: str, at: datetime, group: str | None = None) -> DataFrame:
    """What was committed at a time, of one group or of all: group, topic, partition, offset, committed_at.

    That is the last commit until then of those that the audit has found, so not of those that were followed by another
    before it looked: an offset may be older than it was at that time, and is never newer. What was deleted by then is
    among them, too. A partition whose last commit was no offset is left out, and so is what was found in a ZooKeeper
    before the audit was begun anew with another one. Of a time after its last look it knows nothing, and says so.
    """
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidOptionError("at", str(at), "it must be a datetime that has a zone")
    journal = Journal(spark, destination)
    journal.check_there()
    _check_looked(journal, at)
    commits = journal.read(journal.pieces(), COMMITS)
    commits = commits.where((f.col("committed_at") <= f.lit(at)) & (f.col("batch") >= journal.first_batch()))
    if group is not None:
        commits = commits.where(f.col("group") == group)
    last = f.max_by(f.struct("offset", "committed_at"), "batch").alias("last")
    found = commits.groupBy(*KEY).agg(last).select(*KEY, "last.*")
    return found.where(f.col("offset").isNotNull())


def _check_looked(journal: Journal, at: datetime) -> None:
    looked = journal.looked_ms()
    if looked is None:
        raise RefusedError(f"the audit in {journal} has not looked yet")
    if at.timestamp() * 1000 > looked:
        raise RefusedError(
            f"the audit in {journal} has last looked at {utc(looked)}: what was committed after that is not in it, and "
            "no later time can be asked for"
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """How many commits were found in a batch; `problems` of them are no offsets; and how many nodes may not be read."""

    commits: int
    problems: int
    denied: int = 0


def chosen_commits(
    spark: SparkSession, destination: str, *, groups: str | None = None, topics: str | None = None
) -> Iterator[dict[str, Any]]:
    """The commits of groups and topics whose whole names match, oldest first."""
    commits = read_audit(spark, destination)
    for column, expression in (("group", groups), ("topic", topics)):
        check_expression(f"{column}s", expression)
        if expression is not None:
            names = [row[0] for row in commits.select(column).distinct().toLocalIterator()]
            matching = re.compile(expression, re.DOTALL)  # Java's expressions are not quite the same
            commits = commits.where(f.col(column).isin([name for name in names if matching.fullmatch(name)]))
    with translated(f"the audit in {destination} cannot be read"):
        for row in commits.orderBy("batch", "zxid", *KEY).toLocalIterator():
            yield row.asDict()


class Ledger:
    """Writes batch after batch, each once."""

    def __init__(self, spark: SparkSession, destination: str) -> None:
        self._spark = spark
        self.journal = Journal(spark, destination)

    def add(self, rows: DataFrame, batch: int, whole: WholeGroups) -> Counts | None:
        """Write what was committed in a batch; the counts of it, or None where that was done before.

        A batch comes again after a crash, from the same position: what was found at first counts.
        """
        if any(piece.first <= batch <= piece.last for piece in self.journal.pieces()):
            return None
        again = self.journal.denied(batch)
        rows = rows.unionByName(whole(rows.sparkSession, again)) if again else rows
        with _kept(rows.select(*_READ)) as (read, found):
            denied = _denied(read) if found.denied else {}
            self.journal.put_denied(sorted(denied), batch)  # before the commits, after which nobody comes back to it
            if not found.commits:
                return Counts(0, 0, sum(denied.values()))
            commits = read.where(_is_commit()).withColumn("batch", f.lit(batch).cast(LongType()))
            new = self._put_new(_newest(commits) if again else commits, batch, few=found.commits <= _FEW)
            return replace(new, denied=sum(denied.values()))

    def _put_new(self, read: DataFrame, batch: int, *, few: bool) -> Counts:
        with _kept(self._new(read, batch, few=few)) as (commits, new):
            if new.commits:
                self.journal.put_commits(commits.coalesce(_files(new.commits)), Piece(batch, batch))
            return new

    def _new(self, read: DataFrame, batch: int, *, few: bool) -> DataFrame:
        """What the audit does not have yet, with what it has of each partition.

        That is only looked up for what was read, so that where that is little, little has to be sorted.
        """
        known = self._known(read.sparkSession, batch)
        if known is None:
            return read.withColumn("before", f.lit(None).cast(LongType())).select(*COMMITS.names)
        wanted = read.select(*KEY)
        wanted = f.broadcast(wanted) if few else wanted
        last = _last(known.join(wanted, [*KEY], "leftsemi"))
        before = last.select(*KEY, f.struct("offset", "zxid", "committed_at").alias("last"))
        together = read.join(before, [*KEY], "left")
        when = f.col("last.committed_at").eqNullSafe(f.col("committed_at"))  # null where the clock said no time
        new = together.where(~(f.col("last.zxid").eqNullSafe(f.col("zxid")) & when))
        return new.withColumn("before", f.col("last.offset")).select(*COMMITS.names)

    def _known(self, spark: SparkSession, until: int) -> DataFrame | None:
        """What was found before a batch; of each partition the last is among it."""
        journal = Journal(spark, str(self.journal))
        standing = journal.standing()
        since = [piece for piece in journal.pieces() if piece.last > (-1 if standing is None else standing)]
        found = [journal.read(since, COMMITS).select(*STANDING.names)] if since else []
        if standing is not None:
            found.append(journal.read_standing(standing, STANDING))
        if not found:
            return None
        known = found[0] if len(found) == 1 else found[0].unionByName(found[1])
        return known.where(f.col("batch").between(journal.first_batch(), until - 1))

    def put_together(self) -> None:
        """Make few pieces of many, where there are."""
        level = 0
        while len(some := [piece for piece in self.journal.pieces() if piece.level == level]) >= TOGETHER:
            if level == 0:
                self._write_standing(some[-1].last)
                self.journal.throw_away_replaced()
            rows = self.journal.read(some, COMMITS)
            whole = Piece(some[0].first, some[-1].last, level + 1)
            self.journal.put_commits(rows.coalesce(_files(rows.count())), whole)
            level += 1

    def _write_standing(self, batch: int) -> None:
        known = self._known(self._spark, batch + 1)
        if known is not None and self.journal.standing() != batch:
            rows = _last(known)
            self.journal.put_standing(rows.coalesce(_files(rows.count())), batch)


@contextmanager
def _kept(rows: DataFrame) -> Iterator[tuple[DataFrame, Counts]]:
    """Rows that are made once, however often they are used meanwhile; and their counts."""
    kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        problems = f.count_if(_is_commit() & f.col("problem").isNotNull())
        counted = kept.agg(f.count_if(_is_commit()), problems, f.count_if(f.col("zxid").isNull())).collect()
        yield kept, Counts(*counted[0])
    finally:
        kept.unpersist()


def _files(rows: int) -> int:
    return -(-rows // _ROWS_OF_A_FILE) or 1


def _is_commit() -> Column:
    """What may not be read has no zxid; what is none of a partition is nobody's commit."""
    return f.col("zxid").isNotNull() & f.col("topic").isNotNull() & f.col("partition").isNotNull()


def _newest(commits: DataFrame) -> DataFrame:
    """Of each partition that was read twice, what was read last."""
    values = [name for name in commits.columns if name not in KEY]
    last = f.max_by(f.struct(*values), "zxid").alias("last")
    return commits.groupBy(*KEY).agg(last).select(*KEY, "last.*")


def _denied(rows: DataFrame) -> dict[str, int]:
    """In which groups something may not be read, and how many nodes; each has a problem of its own."""
    found = rows.where(f.col("zxid").isNull()).groupBy("group").agg(f.count_distinct("problem")).collect()
    return {row[0]: row[1] for row in found}


def _last(found: DataFrame) -> DataFrame:
    """The last of each partition."""
    values = [name for name in STANDING.names if name not in KEY]
    last = f.max_by(f.struct(*values), "batch").alias("last")
    return found.groupBy(*KEY).agg(last).select(*KEY, "last.*")
