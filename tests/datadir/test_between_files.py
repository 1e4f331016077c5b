"""Damage that is visible only across files: deletions during a snapshot, and missing last transactions of a leader."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from struct import pack, unpack_from

import pytest

from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.snapshot_file import END_OF_NODES
from zkgroups.exceptions import DamagedDataError

from ..lasting import lasting_client
from .server_files import tree_in_files
from .small_directories import Small, make, named, records, server_of

pytestmark = pytest.mark.zookeeper

GOES = "/consumers/g/offsets/t/1"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """A directory of 3.4, whose snapshots have no digest."""
    return make(tmp_path_factory.mktemp("whole") / "data", "3.4.14")


@pytest.fixture
def small(whole: Small, tmp_path: Path) -> Small:
    """A copy of the directory for this test."""
    return whole.copy(tmp_path / "data")


# Snapshots


def without(snapshot: bytes, path: str) -> bytes:
    """Remove a node from a snapshot, as if it was deleted after its parent was written."""
    at = snapshot.index(pack(">i", len(path)) + path.encode())
    [length] = unpack_from(">i", snapshot, at + 4 + len(path))
    end = at + 4 + len(path) + 4 + length + 8 + 60
    cut = snapshot[:at] + snapshot[end : -len(END_OF_NODES) - 8]
    return cut + pack(">q", zlib.adler32(cut)) + END_OF_NODES


def test_a_snapshot_with_a_later_deletion_is_not_used_for_an_earlier_state(small: Small) -> None:
    """The snapshot itself shows no trace of the deletion. With two such snapshots, the older one is used."""
    with server_of(small.folder, "3.4.14") as server, lasting_client(server.address) as client:
        client.set("/consumers/g/offsets/t/0", b"1")
        before = client.last_zxid
        client.delete(GOES)
        gone = client.last_zxid
        client.set("/consumers/g/offsets/t/0", b"2")
        server.kill()
    newest = small.snapshots[-1]
    assert named(newest) < before
    true = {zxid: tree_in_files(small.folder, zxid) for zxid in (before, gone, gone + 1)}
    newest.write_bytes(without(newest.read_bytes(), GOES))
    assert {zxid: tree_in_files(small.folder, zxid) for zxid in true} == true
    data = DataDir(str(small.folder))
    assert data.state(before).snapshot != newest.name
    assert data.state(gone).snapshot == data.state().snapshot == newest.name


# Leaders


def relabelled(small: Small, folder: Path, zxid: Callable[[int], int | None]) -> Path:
    """Renumber the transactions with several leaders, each with its own log; drop transactions without a new number."""
    (version := folder / "version-2").mkdir(parents=True)
    logs: dict[int, bytes] = {}
    for log in small.logs:
        for data, at in records(log):
            [length, old] = [unpack_from(">i", data, at + 8)[0], unpack_from(">q", data, at + 24)[0]]
            if (new := zxid(old)) is not None:
                record = data[at + 12 : at + 24] + pack(">q", new) + data[at + 32 : at + 12 + length]
                sealed = pack(">qi", zlib.adler32(record), length) + record + b"B"
                first = min([new, *(each for each in logs if each >> 32 == new >> 32)])
                logs[first] = logs.get(first, b"ZKLG\0\0\0\2" + bytes(8)) + sealed
    for first, written in logs.items():
        (version / f"log.{first:x}").write_bytes(written)
    return folder


def test_missing_last_transactions_of_a_leader_are_detected_by_a_snapshot(small: Small, tmp_path: Path) -> None:
    """The logs alone cannot show it: a leader may start anywhere."""
    middle = small.last - 3

    def zxid(old: int) -> int | None:
        if old < middle:
            return 1 << 32 | old
        return 2 << 32 | (old - middle) if old > middle else None

    folder = relabelled(small, tmp_path / "leaders", zxid)
    assert DataDir(str(folder)).state().zxid == 2 << 32 | 3
    between = folder / "version-2" / f"snapshot.{1 << 32 | middle:x}"
    between.write_bytes(b"not whole, and it need not be")
    for asked in (None, 1 << 32 | middle, 2 << 32 | 2):
        with pytest.raises(DamagedDataError, match=f"but {between.name} is from in between") as caught:
            DataDir(str(folder)).state(asked)
        assert caught.value.last_zxid == 1 << 32 | middle - 1


def test_the_log_of_an_ensemble_starts_with_its_first_leader(small: Small, tmp_path: Path) -> None:
    """The log of a standalone server starts with 1, that of an ensemble with 1 of an epoch."""
    folder = relabelled(small, tmp_path / "leaders", lambda old: 1 << 32 | old)
    found = tree_in_files(folder)
    assert {key: node.data for key, node in found.items()} == {
        key: node.data for key, node in tree_in_files(small.folder).items()
    }
