"""The last commits in a folder of snapshots, or in the folder of an audit, without Spark.

For programs that need to know the recent past when they start. Rows of unreadable nodes are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..core.audit_columns import COMMITS
from ..core.health.commit_record import Commit
from ..core.tables import Table
from ..core.times import to_ms
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import NotFoundError
from ..snapshots.arrow_layout import ArrowLayout
from ..tables.arrow_schema import arrow_schema
from .arrow_journal import ArrowJournal
from .journal import DESCRIPTION
from .pieces import Piece

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
    journal = ArrowJournal.at(destination)
    pieces = journal.pieces()
    if not pieces:
        raise NotFoundError(f"no commits in the audit in {destination}")
    for commit in _rows(_last_rows(journal, pieces[-MOST_PIECES:]).sort_by("committed_at")):
        yield PastSweep(commit.committed_ms, iter([commit]))


def _last_rows(journal: ArrowJournal, pieces: Sequence[Piece]) -> Any:
    """Return the rows within `KEPT` of the newest. Stop at the first piece without any: those before it are older."""
    nothing = arrow_schema(_READ).empty_table()
    kept, newest = [nothing], pc.max(nothing.column("committed_at"))
    for piece in reversed(pieces):
        rows = recent = 0
        for part in journal.latest_first(piece, _READ):
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
