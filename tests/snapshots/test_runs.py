"""The runs in one destination: killed, with a taken name, and beside other files. Both engines share these rules."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from zkgroups.core.table_columns import Table
from zkgroups.exceptions import StorageError
from zkgroups.snapshots.layout import SnapshotLayout, UnfinishedSnapshot
from zkgroups.storage.files import LocalFiles, parse_timestamp, timestamp_text
from zkgroups.storage.snapshot_folder import IN_ORDER

from ..spark.model import LONG_AGO, NOT_SO_LONG_AGO


@pytest.fixture
def layout(tmp_path: Path) -> SnapshotLayout:
    return SnapshotLayout(LocalFiles(), str(tmp_path))


def written(layout: SnapshotLayout, destination: Path, name: str) -> UnfinishedSnapshot:
    """Write a snapshot without moving it into place."""
    unfinished = layout.begin(parse_timestamp(name))
    assert unfinished.name == name
    return filled(unfinished, name)


def filled(unfinished: UnfinishedSnapshot, name: str) -> UnfinishedSnapshot:
    """Write a file for each table."""
    for table in IN_ORDER:
        folder = Path(unfinished.table(table).removeprefix("file:"))
        folder.mkdir()
        (folder / "part-0.parquet").write_text(name)
    return unfinished


@pytest.mark.parametrize("moved", range(len(IN_ORDER) + 1))
def test_a_run_killed_while_moving_leaves_no_snapshot_and_is_deleted_after_a_week(
    layout: SnapshotLayout, tmp_path: Path, moved: int
) -> None:
    for name in (LONG_AGO, NOT_SO_LONG_AGO):
        unfinished = written(layout, tmp_path, name)
        for table in IN_ORDER[:moved]:
            unfinished._move(table)
    assert list(tmp_path.glob("table=offsets/*")) == [] or moved == len(IN_ORDER), "whoever sees offsets sees all"
    assert layout.snapshots() == []
    assert layout.latest() is None
    assert not layout.has(LONG_AGO)
    names = sorted({path.name for path in tmp_path.glob("table=*/*")})
    assert names == ([f"snapshot={LONG_AGO}", f"snapshot={NOT_SO_LONG_AGO}"] if moved else [])
    layout.begin(datetime.now(UTC)).discard()
    assert {path.name for path in tmp_path.glob("table=*/*")} <= {f"snapshot={NOT_SO_LONG_AGO}"}
    assert [path.name.partition("-")[0] for path in tmp_path.glob("_unfinished/*")] == [NOT_SO_LONG_AGO]


def test_runs_started_in_the_same_millisecond_get_different_names(layout: SnapshotLayout, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    one, other = (layout.begin(now) for _ in range(2))
    assert one.name == timestamp_text(now) != other.name
    other.discard()
    one.discard()
    done = written(layout, tmp_path, timestamp_text(now))
    done.finish()
    assert layout.begin(now).name != done.name, "a finished snapshot keeps its name"


def test_complete_snapshots_and_foreign_files_are_never_deleted(layout: SnapshotLayout, tmp_path: Path) -> None:
    finished = written(layout, tmp_path, LONG_AGO)
    finished.finish()
    others = [
        f"_unfinished/{LONG_AGO}",
        f"_unfinished/{LONG_AGO}-x",
        f"_unfinished/{LONG_AGO}-0123456g",
        "_unfinished/20209999T000000.000Z-01234567",
        "_unfinished/mine",
        f"snapshot={LONG_AGO}",
        f"table=others/snapshot={LONG_AGO}",
        "table=offsets/snapshot=20200101T000000.000Z",
        "table=owners/mine",
    ]
    for name in (*others, f"_unfinished/{LONG_AGO}-01234567"):  # left by a completed snapshot
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("mine")
    layout.begin(datetime.now(UTC)).discard()
    assert all((tmp_path / name / "file").read_text() == "mine" for name in others)
    assert not (tmp_path / f"_unfinished/{LONG_AGO}-01234567").exists()
    assert layout.snapshots() == [LONG_AGO]
    assert all((tmp_path / f"table={table}/snapshot={LONG_AGO}/part-0.parquet").exists() for table in Table)


def test_a_run_with_a_taken_name_fails_without_damage(layout: SnapshotLayout, tmp_path: Path) -> None:
    first = written(layout, tmp_path, NOT_SO_LONG_AGO)
    (tmp_path / "_unfinished" / f"{NOT_SO_LONG_AGO}-01234567").mkdir()
    second = filled(UnfinishedSnapshot(layout, NOT_SO_LONG_AGO, f"{NOT_SO_LONG_AGO}-01234567"), NOT_SO_LONG_AGO)
    first.finish()
    with pytest.raises(StorageError, match="already exists"):
        second.finish()
    second.discard()
    assert layout.snapshots() == [NOT_SO_LONG_AGO]
    assert len(list(tmp_path.glob("table=*/*/*.parquet"))) == 3
    assert list(tmp_path.glob("_unfinished/*")) == []
