"""Truncated files, flipped bits and missing files give an error, or a state that the server really had."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from struct import pack, unpack_from

import pytest

from tests.datadir.small_directories import (
    Small,
    make,
    named,
    records,
    server_of,
    tree_in_files,
    tree_of,
    written,
    zxid_of,
)
from tests.lasting import lasting_client
from tests.seeds import seed, seeds
from zkgroups.core.znodes.paths import Part
from zkgroups.datadir.data_dir import DataDir, DataDirState
from zkgroups.datadir.files import END_OF_NODES, DataFile, check_snapshot
from zkgroups.exceptions import DamagedDataError, NotFoundError

pytestmark = pytest.mark.zookeeper
GZIP, SNAPPY = (f"-Dzookeeper.snapshot.compression.method={method}" for method in ("gz", "snappy"))
KINDS = {"3.4": ("3.4.14",), "3.9": (None,), "gzip": (None, GZIP), "snappy": (None, SNAPPY)}
PACKED = [pytest.param(kind, marks=pytest.mark.soak) for kind in ("gzip", "snappy")]  # also decompressed


@pytest.fixture(scope="module", params=["3.4", "3.9", *PACKED])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make(tmp_path_factory.mktemp("whole") / "data", *KINDS[request.param])


@pytest.fixture
def small(whole: Small, tmp_path: Path) -> Small:
    """A copy of the directory for this test."""
    return whole.copy(tmp_path / "data")


def found(small: Small) -> DataDirState | None:
    """Return the zxid of the state, after reading all of it; None for an error."""
    data = DataDir(str(small.folder))
    try:
        state = data.state()
        tree = tree_of(data.groups(state, set(Part)).blocks())
    except (DamagedDataError, NotFoundError):
        return None
    assert tree == small.states[state.zxid]
    return state


def some(length: int) -> range:
    """Every seventh position. The first one depends on the seed."""
    return range(seed() % 7, length, 7)


def test_the_state_after_each_transaction_is_the_same_from_any_snapshot(small: Small) -> None:
    assert len(small.snapshots) > 2
    assert len({str(state) for state in small.states}) > 10
    for zxid, state in enumerate(small.states):
        assert tree_in_files(small.folder, zxid) == state
    while small.snapshots:
        assert found(small) == DataDirState(small.last, small.snapshots[-1].name)
        small.snapshots[-1].unlink()
    assert found(small) == DataDirState(small.last, None)


def test_a_truncated_snapshot_is_skipped_with_a_note(small: Small) -> None:
    newest, before = small.snapshots[-1], small.snapshots[-2]
    data = newest.read_bytes()
    earlier_form = 0
    for length in some(len(data)):
        newest.write_bytes(data[:length])
        state = found(small)
        assert state is not None
        if state.snapshot == newest.name:
            earlier_form += 1
        else:
            assert state == DataDirState(small.last, before.name)
            assert state.notes == (f"{newest} is damaged and was skipped",)
    # Without its last seals it is as valid as before 3.6 or 3.9.
    assert earlier_form <= 2


def test_a_snapshot_with_a_flipped_bit_does_not_change_the_result(small: Small) -> None:
    newest, before = small.snapshots[-1], small.snapshots[-2]
    data = newest.read_bytes()
    used = [0, 0]
    for at in some(len(data)):
        newest.write_bytes(turned(data, at))
        state = found(small)
        assert state is not None
        assert state.zxid == small.last
        used[state.snapshot == before.name] += 1
    # Some bytes of a compressed file have no meaning, or decompress to the same data.
    assert used[0] <= (len(data) / 10 if newest.suffix in {".gz", ".snappy"} else 0)


def turned(data: bytes, at: int) -> bytes:
    """Flip one bit of a byte."""
    return data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


# Logs


def test_a_truncated_last_log_ends_with_its_last_complete_transaction(small: Small) -> None:
    log, base = small.logs[-1], named(small.snapshots[-1])
    ends = {at + 13 + int.from_bytes(data[at + 8 : at + 12]): zxid_of(data, at) for data, at in records(log)}
    data = log.read_bytes()
    for length in some(written(data) + 30):
        log.write_bytes(data[:length])
        state = found(small)
        whole = max((zxid for end, zxid in ends.items() if end <= length), default=base)
        assert state == DataDirState(whole, small.snapshots[-1].name)
        behind = data[max([16, *(end for end in ends if end <= length)]) : length]
        torn = f"{log} ends within a record: the last complete transaction is 0x{whole:x}"
        assert state.notes == ((torn,) if length < 16 or behind.strip(b"\0") else ())


def test_logs_with_a_flipped_bit_are_an_error_or_a_consistent_state(small: Small) -> None:
    """Without the latest snapshot, so that two logs are needed. At most the last transaction may be lost silently."""
    small.snapshots[-1].unlink()
    for log in small.logs[-2:]:
        data = log.read_bytes()
        errors = 0
        for at in some(written(data) + 30):
            log.write_bytes(turned(data, at))
            state = found(small)
            errors += state is None
            assert state is None or state.zxid >= small.last - 1
            assert state is None or state.zxid == small.last or state.notes
        assert errors > written(data) / 14
        log.write_bytes(data)


def test_a_damage_error_names_the_last_readable_state(small: Small) -> None:
    small.snapshots[-1].unlink()
    log = small.logs[-1]
    (data, first), (_, at), *_ = records(log)
    log.write_bytes(turned(data, at + 40))
    with pytest.raises(DamagedDataError, match="a record has a wrong checksum") as caught:
        tree_in_files(small.folder)
    last = zxid_of(data, first)
    assert caught.value.last_zxid == last
    assert f"the data is intact up to zxid 0x{last:x}: read up to it" in str(caught.value)
    assert tree_in_files(small.folder, last) == small.states[last]


def test_a_missing_log_is_an_error_unless_a_snapshot_covers_it(small: Small) -> None:
    missing = small.logs[-2]
    missing.unlink()
    assert found(small) == DataDirState(small.last, small.snapshots[-1].name)
    small.snapshots[-1].unlink()
    with pytest.raises(DamagedDataError, match="transactions are missing") as caught:
        tree_in_files(small.folder)
    last = caught.value.last_zxid
    assert last is not None
    assert last >= named(missing) - 1
    assert tree_in_files(small.folder, last) == small.states[last]


def test_the_named_state_is_readable_even_if_a_snapshot_reaches_beyond_the_damage(
    small: Small,
) -> None:
    """A snapshot with nodes newer than its name is useless without the transactions in between."""
    newest, missing = small.snapshots[-1], small.logs[-2]
    reaches, name = named(newest), newest.name.split(".")
    newest.rename(newest.with_name(".".join([name[0], f"{reaches - 3:x}", *name[2:]])))
    missing.unlink()
    with pytest.raises(DamagedDataError, match=f"follows 0x{reaches - 3:x}: transactions are missing") as caught:
        tree_in_files(small.folder)
    last = caught.value.last_zxid
    assert last == named(missing) - 1
    assert f"the data is intact up to zxid 0x{last:x}: read up to it" in str(caught.value)
    assert tree_in_files(small.folder, last) == small.states[last]


@pytest.mark.parametrize("seed", seeds(8))
def test_with_any_files_missing_a_state_is_correct_or_an_error(small: Small, seed: int) -> None:
    rng = random.Random(seed)
    files = [*small.snapshots, *small.logs]
    for file in rng.sample(files, rng.randint(1, len(files) - 1)):
        file.unlink()
    promised: set[int | None] = set()
    for zxid in [None, *range(0, small.last + 2, 3)]:
        try:
            found = tree_in_files(small.folder, zxid)
        except NotFoundError:
            continue
        except DamagedDataError as error:
            promised.add(error.last_zxid)
            continue
        assert found in (small.states if zxid is None else [small.states[zxid]])
    for last in promised - {None}:
        assert last is not None
        assert tree_in_files(small.folder, last) == small.states[last]


def test_without_a_snapshot_to_start_from_reading_is_an_error(small: Small) -> None:
    for snapshot in small.snapshots:
        snapshot.write_bytes(b"")
    small.logs[0].unlink()
    with pytest.raises(DamagedDataError, match=r"it has no snapshot to start from: .*snapshot.* is damaged") as caught:
        tree_in_files(small.folder)
    assert f"its logs begin with 0x{named(small.logs[0]):x}" in str(caught.value)
    for snapshot in small.snapshots:
        snapshot.unlink()
    with pytest.raises(DamagedDataError, match="it has no snapshot"):
        tree_in_files(small.folder)
    for log in small.logs:
        log.unlink()
    with pytest.raises(NotFoundError, match="is not a ZooKeeper data directory"):
        tree_in_files(small.folder)


def test_a_snapshot_without_its_logs_is_refused(small: Small, tmp_path: Path) -> None:
    """The logs may be in a separate directory that was not given, or old ones were left behind."""
    elsewhere = tmp_path / "elsewhere" / "version-2"
    elsewhere.mkdir(parents=True)
    newest, first, *others = named(small.snapshots[-1]), *small.logs
    for log in (first, *others):
        log.rename(elsewhere / log.name)
    with pytest.raises(NotFoundError, match="has no log for snapshot"):
        tree_in_files(small.folder)
    assert DataDir(str(small.folder), log_folder=str(elsewhere.parent)).state().zxid == small.last
    (elsewhere / first.name).rename(first)
    [note] = DataDir(str(small.folder)).state().notes
    assert f"before the snapshot of 0x{newest:x}: later transactions may be in a separate dataLogDir" in note


def test_a_snapshot_whose_digest_proves_its_zxid_needs_no_log(small: Small) -> None:
    """Before 3.6 no snapshot proves its zxid; of later releases the newest one does, see `make`."""
    for log in small.logs:
        log.unlink()
    refused: dict[Path, str] = {}
    for snapshot in small.snapshots:
        zxid = named(snapshot)
        try:
            assert tree_in_files(small.folder, zxid) == small.states[zxid]
        except NotFoundError as error:
            refused[snapshot] = str(error)
    assert all(f"{snapshot.name} may contain later changes" in said for snapshot, said in refused.items())
    newest = small.snapshots[-1]
    whole = check_snapshot(DataFile(newest, named(newest)))
    assert whole is not None
    assert (newest in refused) == (whole.digest is None)
    with pytest.raises(NotFoundError):
        tree_in_files(small.folder, named(newest) + 1)


def test_states_outside_of_the_files_are_not_found(small: Small) -> None:
    with pytest.raises(NotFoundError, match=f"ends with transaction 0x{small.last:x}, before 0x{small.last + 1:x}"):
        tree_in_files(small.folder, small.last + 1)
    for file in (*small.snapshots[:-1], small.logs[0]):
        file.unlink()
    with pytest.raises(NotFoundError, match="does not go back to 0x3: it has no snapshot that old"):
        tree_in_files(small.folder, 3)


def test_a_snapshot_with_later_nodes_needs_the_logs_up_to_them(small: Small) -> None:
    """Snapshots written while the tree changed have such nodes."""
    newest, older = small.snapshots[-1], small.snapshots[-2]
    reaches, name = named(newest), newest.name.split(".")
    zxid = reaches - 3
    fuzzy = newest.rename(newest.with_name(".".join([name[0], f"{zxid:x}", *name[2:]])))
    assert found(small) == DataDirState(small.last, fuzzy.name)
    assert tree_in_files(small.folder, reaches) == small.states[reaches]
    for earlier in range(zxid, reaches):
        assert DataDir(str(small.folder)).state(earlier).snapshot == older.name
        assert tree_in_files(small.folder, earlier) == small.states[earlier]
    for log in small.logs:
        for data, at in records(log):
            if zxid_of(data, at) >= reaches - 1:
                log.write_bytes(data[:at])
                break
    with pytest.raises(
        DamagedDataError, match=f"contains changes up to 0x{reaches:x}, but the logs end with 0x{reaches - 2:x}"
    ):
        tree_in_files(small.folder)


# Damage that is visible only across files


GOES = "/consumers/g/offsets/t/1"


@pytest.fixture(scope="module")
def whole_of_3_4(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """A directory of 3.4, whose snapshots have no digest."""
    return make(tmp_path_factory.mktemp("whole_of_3_4") / "data", "3.4.14")


@pytest.fixture
def old(whole_of_3_4: Small, tmp_path: Path) -> Small:
    """A copy of the directory for this test."""
    return whole_of_3_4.copy(tmp_path / "data")


# Snapshots


def without(snapshot: bytes, path: str) -> bytes:
    """Remove a node from a snapshot, as if it was deleted after its parent was written."""
    at = snapshot.index(pack(">i", len(path)) + path.encode())
    [length] = unpack_from(">i", snapshot, at + 4 + len(path))
    end = at + 4 + len(path) + 4 + length + 8 + 60
    cut = snapshot[:at] + snapshot[end : -len(END_OF_NODES) - 8]
    return cut + pack(">q", zlib.adler32(cut)) + END_OF_NODES


def test_a_snapshot_with_a_later_deletion_is_not_used_for_an_earlier_state(old: Small) -> None:
    """The snapshot itself shows no trace of the deletion. With two such snapshots, the older one is used."""
    with server_of(old.folder, "3.4.14") as server, lasting_client(server.address) as client:
        client.set("/consumers/g/offsets/t/0", b"1")
        before = client.last_zxid
        client.delete(GOES)
        gone = client.last_zxid
        client.set("/consumers/g/offsets/t/0", b"2")
        server.kill()
    newest = old.snapshots[-1]
    assert named(newest) < before
    true = {zxid: tree_in_files(old.folder, zxid) for zxid in (before, gone, gone + 1)}
    newest.write_bytes(without(newest.read_bytes(), GOES))
    assert {zxid: tree_in_files(old.folder, zxid) for zxid in true} == true
    data = DataDir(str(old.folder))
    assert data.state(before).snapshot != newest.name
    assert data.state(gone).snapshot == data.state().snapshot == newest.name


# Leaders


def relabelled(old: Small, folder: Path, zxid: Callable[[int], int | None]) -> Path:
    """Renumber the transactions with several leaders, each with its own log; drop transactions without a new number."""
    (version := folder / "version-2").mkdir(parents=True)
    logs: dict[int, bytes] = {}
    for log in old.logs:
        for data, at in records(log):
            [length, old] = [unpack_from(">i", data, at + 8)[0], unpack_from(">q", data, at + 24)[0]]
            if (new := zxid(old)) is not None:
                record = data[at + 12 : at + 24] + pack(">q", new) + data[at + 32 : at + 12 + length]
                sealed = pack(">qi", zlib.adler32(record), length) + record + b"B"
                first = min([new, *(each for each in logs if each >> 32 == new >> 32)])
                logs[first] = logs.get(first, b"ZKLG\0\0\0\2" + bytes(8)) + sealed
    for first, each in logs.items():
        (version / f"log.{first:x}").write_bytes(each)
    return folder


def test_missing_last_transactions_of_a_leader_are_detected_by_a_snapshot(old: Small, tmp_path: Path) -> None:
    """The logs alone cannot show it: a leader may start anywhere."""
    middle = old.last - 3

    def zxid(old: int) -> int | None:
        if old < middle:
            return 1 << 32 | old
        return 2 << 32 | (old - middle) if old > middle else None

    folder = relabelled(old, tmp_path / "leaders", zxid)
    assert DataDir(str(folder)).state().zxid == 2 << 32 | 3
    between = folder / "version-2" / f"snapshot.{1 << 32 | middle:x}"
    between.write_bytes(b"not whole_of_3_4, and it need not be")
    for asked in (None, 1 << 32 | middle, 2 << 32 | 2):
        with pytest.raises(DamagedDataError, match=f"but {between.name} is from in between") as caught:
            DataDir(str(folder)).state(asked)
        assert caught.value.last_zxid == 1 << 32 | middle - 1


def test_the_log_of_an_ensemble_starts_with_its_first_leader(old: Small, tmp_path: Path) -> None:
    """The log of a standalone server starts with 1, that of an ensemble with 1 of an epoch."""
    folder = relabelled(old, tmp_path / "leaders", lambda old: 1 << 32 | old)
    found = tree_in_files(folder)
    assert {key: node.data for key, node in found.items()} == {
        key: node.data for key, node in tree_in_files(old.folder).items()
    }
