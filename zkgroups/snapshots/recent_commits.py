"""The last commits in a folder of snapshots, or in the folder of an audit, without Spark.

For programs that need to know the recent past when they start. Rows of unreadable nodes are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from ..core.health.commit_record import Commit
from ..core.tables import Table
from ..core.times import to_ms
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import NotFoundError
from ..storage.audit_pieces import Piece, outermost
from .arrow_layout import ArrowLayout, arrow_errors

MOST_SNAPSHOTS: Final = 16
MOST_PIECES: Final = 16

KEPT: Final = timedelta(hours=1)
"""Earlier commits of an audit say nothing about the present."""

_COLUMNS: Final = ["group", "topic", "partition", "offset", "commit_count", "committed_at"]


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
    if Path(destination, "_audit.json").exists():
        yield from _of_audit(Path(destination))
        return
    layout = ArrowLayout.at(destination)
    for name in layout.snapshots()[-MOST_SNAPSHOTS:]:
        found = layout.read_intact(Table.OFFSETS, name)
        read_at = found.column("read_at")
        ms = to_ms(max((time for time in read_at.to_pylist() if time is not None), default=None))
        yield PastSweep(ms, _rows(found))


def _of_audit(folder: Path) -> Iterator[PastSweep]:
    """Yield the last commits of an audit, each as seen when it was written to ZooKeeper."""
    with arrow_errors(f"the audit in {folder} cannot be read"):
        tables = [
            parquet.read_table(file, columns=_COLUMNS)
            for piece in _last_pieces(folder / "commits")
            for file in sorted((folder / "commits" / piece.name).glob("*.parquet"))
        ]
        found = pa.concat_tables(tables, promote_options="default")  # Spark's merged pieces differ in nullability
    if not len(found):
        return
    earliest = pc.subtract(pc.max(found.column("committed_at")), pa.scalar(KEPT))
    found = found.filter(pc.greater_equal(found.column("committed_at"), earliest)).sort_by("committed_at")
    for commit in _rows(found):
        yield PastSweep(commit.committed_ms, iter([commit]))


def _last_pieces(commits: Path) -> list[Piece]:
    """Return the last complete pieces, oldest first."""
    names = [path.name for path in commits.iterdir() if (path / "_SUCCESS").exists()]
    pieces = outermost(piece for name in names if (piece := Piece.parse(name)) is not None)
    if not pieces:
        raise NotFoundError(f"no commits in the audit in {commits.parent}")
    return pieces[-MOST_PIECES:]


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
