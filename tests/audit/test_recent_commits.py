"""The last commits of an audit, from its files alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zkgroups.audit.arrow_journal import ArrowJournal
from zkgroups.audit.pieces import Piece
from zkgroups.audit.recent_commits import KEPT, recent_commits
from zkgroups.audit.state import AuditDescription
from zkgroups.core.audit_columns import COMMITS
from zkgroups.tables.arrow_schema import arrow_schema

NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.fixture
def journal(tmp_path: Path) -> ArrowJournal:
    found = ArrowJournal.at(str(tmp_path))
    found.begin(AuditDescription(None, None))
    return found


def add(journal: ArrowJournal, batch: int, *commits: tuple[int, timedelta], count: int = 1) -> None:
    """Add a batch with offsets and their ages, each so many times."""
    values = {"group": "g", "topic": "t", "partition": 0, "commit_count": 1, "cluster": "c", "zxid": 1, "batch": batch}
    given: list[dict[str, Any]] = [{**values, "offset": offset, "committed_at": NOW - age} for offset, age in commits]
    rows = pa.Table.from_pylist(given, arrow_schema(COMMITS))
    journal.write_commits(pa.concat_tables([rows] * count), Piece(batch, batch))


def offsets(folder: Path) -> list[int]:
    return [commit.offset for sweep in recent_commits(str(folder)) for commit in sweep.commits]


def test_an_audit_in_one_large_piece_is_not_read_as_a_whole(journal: ArrowJournal, tmp_path: Path) -> None:
    for batch in range(15):
        add(journal, batch, (batch, timedelta(days=15 - batch)), count=20_000)
    add(journal, 15, (15, timedelta()))
    journal.merge(journal.pieces(), Piece(0, 15, level=1))
    whole = journal.read(journal.pieces()).nbytes
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        assert offsets(tmp_path) == [15]
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < whole / 4


def test_commits_of_the_last_hour_are_found_in_several_pieces_and_older_pieces_are_not_read(
    journal: ArrowJournal, tmp_path: Path
) -> None:
    minute = timedelta(minutes=1)
    for batch, commits in enumerate(
        [
            [(0, KEPT + 2 * minute)],
            [(1, KEPT + minute)],
            [(2, KEPT), (3, KEPT + minute)],
            [],
            [(4, 2 * minute), (5, 3 * minute)],
            [(6, timedelta()), (7, timedelta())],
        ]
    ):
        add(journal, batch, *commits)
    for file in (tmp_path / "commits" / Piece(0, 0).name).glob("*.parquet"):
        file.write_bytes(b"?" * file.stat().st_size)
    assert offsets(tmp_path) == [2, 5, 4, 6, 7]


def test_an_audit_without_rows_has_no_recent_commits(journal: ArrowJournal, tmp_path: Path) -> None:
    add(journal, 0)
    assert offsets(tmp_path) == []
