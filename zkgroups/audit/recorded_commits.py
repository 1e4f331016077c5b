"""Read the commits that an audit has recorded, and the last ones in a folder of snapshots."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..core.commit_record import Commit
from ..core.selection import Selection, check_expression
from ..core.table_columns import COMMITS, KEY, STANDING, Table
from ..core.times import to_ms
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import NotFoundError
from ..snapshots.local_snapshot import ArrowLayout
from ..tables.arrow import TIMESTAMP, arrow_schema, where_name
from .journal import DESCRIPTION, Journal, Piece

_ORDER: Final = [(name, "ascending") for name in ("batch", "zxid", *KEY)]
_BATCH_ROWS: Final = 10_000


def read_commits(destination: str) -> Any:
    """Return every recorded commit as an Arrow table, in the order of batches and transactions."""
    journal = Journal.at(destination)
    journal.check_exists()
    rows = [each for piece in journal.pieces() for each in journal.commits(piece)]
    return pa.concat_tables([arrow_schema(COMMITS).empty_table(), *rows]).sort_by(_ORDER)


@dataclass(frozen=True, slots=True)
class LastCommits:
    """A function from commits to the last commit of each partition until a time, of these groups or of all.

    It has a bounded number of rows in memory: an audit has every commit, and few are needed. Commits of batches before
    `first_batch` do not count.
    """

    at: datetime
    first_batch: int
    groups: Collection[str] | None = None

    def __call__(self, found: Iterable[Any]) -> Iterator[Any]:
        last = arrow_schema(STANDING).empty_table()
        for rows in found:
            in_time = pc.less_equal(rows.column("committed_at"), pa.scalar(self.at, TIMESTAMP))
            wanted = pc.and_(in_time, pc.greater_equal(rows.column("batch"), self.first_batch))
            if self.groups is not None:
                names = pa.array(self.groups, pa.string())
                wanted = pc.and_(wanted, pc.is_in(rows.column("group"), value_set=names))
            if isinstance(rows, pa.RecordBatch):
                rows = pa.Table.from_batches([rows])
            rows = pa.concat_tables([last, rows.filter(wanted).cast(last.schema)]).sort_by("batch")
            numbered = rows.select(KEY).append_column("row", pa.array(range(len(rows)), pa.int64()))
            last = rows.take(numbered.group_by(KEY).aggregate([("row", "max")]).column("row_max"))
        yield from last.to_batches()


def offsets_at(journal: Journal, at: datetime, groups: Collection[str] | None = None) -> Any:
    """Return the offsets committed at a time, of these groups or of all, as an Arrow table.

    `zkgroups.spark.offsets_at` has the rules.
    """
    journal.check_exists()
    journal.check_has_read(at)
    last = LastCommits(at, journal.description().first_batch)
    return standing(
        last(rows for piece in journal.pieces() for rows in journal.commits(piece, STANDING, groups=groups))
    )


def standing(last: Iterable[Any]) -> Any:
    """Return the last commits as a table, without malformed ones."""
    found = pa.Table.from_batches(last, arrow_schema(STANDING))
    return found.filter(pc.is_valid(found.column("offset")))


def count_commits(destination: str) -> int:
    """Return the number of recorded commits. Reads no rows."""
    journal = Journal.at(destination)
    journal.check_exists()
    return journal.count()


def find_commits(destination: str, *, groups: str | None = None, topics: str | None = None) -> Iterator[dict[str, Any]]:
    """Return the commits of groups and topics whose whole names match, oldest first."""
    check_expression("groups", groups)
    check_expression("topics", topics)
    selection, commits = Selection(groups, topics), read_commits(destination)
    commits = commits.filter(where_name(commits.column("group"), selection.has_group))
    commits = commits.filter(where_name(commits.column("topic"), lambda topic: selection.has_topic("", topic)))
    for batch in commits.to_batches(max_chunksize=_BATCH_ROWS):
        yield from batch.to_pylist()


# The last commits in a folder of snapshots, or in the folder of an audit, without Spark.
#
# For programs that need to know the recent past when they start. Rows of unreadable nodes are left out.


MOST_SNAPSHOTS: Final = 16
MOST_PIECES: Final = 16

KEPT: Final = timedelta(hours=1)
"""Earlier commits of an audit say nothing about the present."""

_COLUMNS: Final = ["group", "topic", "partition", "offset", "commit_count", "committed_at"]
_READ: Final = [each for each in COMMITS if each.name in _COLUMNS]


class PastCommit(NamedTuple):
    """A committed offset as it was at some time. `created_ms` is 0 if it was not recorded."""

    group: str
    at: TopicPartition
    offset: int
    version: int
    committed_ms: int
    created_ms: int

    def as_read(self) -> Commit:
        """Return the commit without its place."""
        return Commit(self.offset, self.version, self.committed_ms, self.created_ms)


@dataclass(frozen=True, slots=True)
class PastSweep:
    """Commits that were seen at one time, in milliseconds."""

    ms: int
    commits: Iterator[PastCommit]


def recent_commits(destination: str) -> Iterator[PastSweep]:
    """Yield the last snapshots of a destination, or the last batches of an audit, oldest first."""
    if Path(destination, DESCRIPTION).exists():
        yield from _of_audit(destination)
        return
    layout = ArrowLayout.at(destination)
    for name in layout.snapshots()[-MOST_SNAPSHOTS:]:
        found = layout.read_intact(Table.OFFSETS, name)
        read_at = found.column("read_at")
        ms = to_ms(max((time for time in read_at.to_pylist() if time is not None), default=None))
        yield PastSweep(ms, _rows(found))


def _of_audit(destination: str) -> Iterator[PastSweep]:
    """Yield the last commits of an audit, each as seen when it was written to ZooKeeper."""
    journal = Journal.at(destination)
    pieces = journal.pieces()
    if not pieces:
        raise NotFoundError(f"no commits in the audit in {destination}")
    for commit in _rows(_last_rows(journal, pieces[-MOST_PIECES:]).sort_by("committed_at")):
        yield PastSweep(commit.committed_ms, iter([commit]))


def _last_rows(journal: Journal, pieces: Sequence[Piece]) -> Any:
    """Return the rows within `KEPT` of the newest. Stop at the first piece without any: those before it are older."""
    nothing = arrow_schema(_READ).empty_table()
    kept, newest = [nothing], pc.max(nothing.column("committed_at"))
    for piece in reversed(pieces):
        rows = recent = 0
        for part in journal.commits(piece, _READ, latest_first=True):
            newest = pc.max(pa.array([newest.as_py(), pc.max(part.column("committed_at")).as_py()], newest.type))
            kept.append(_since(newest, part))
            rows, recent = rows + len(part), recent + len(kept[-1])
        if rows and not recent:
            break
    return _since(newest, pa.concat_tables(reversed(kept)))


def _since(newest: Any, found: Any) -> Any:
    return found.filter(pc.greater_equal(found.column("committed_at"), pc.subtract(newest, pa.scalar(KEPT))))


def _rows(found: Any) -> Iterator[PastCommit]:
    names = [*_COLUMNS, *(["created_at"] if "created_at" in found.column_names else [])]
    for batch in found.select(names).to_batches(max_chunksize=10_000):
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            group, topic, partition, offset, version, committed, *created = values
            if topic is not None and partition is not None and offset is not None:
                yield PastCommit(
                    group, TopicPartition(topic, partition), offset, version or 0, _ms(committed), _ms(*created)
                )


def _ms(at: datetime | None = None) -> int:
    return to_ms(at)
