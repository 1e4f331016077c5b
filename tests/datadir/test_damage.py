"""Truncated files and flipped bits give an error or a state that the server really had."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from zkgroups.core.znodes.paths import Part
from zkgroups.datadir.data_dir import DataDir, DataDirState
from zkgroups.datadir.files import DataFile
from zkgroups.datadir.snapshot_file import check_snapshot
from zkgroups.exceptions import DamagedDataError, NotFoundError

from ..seeds import seeds
from .server_files import tree_in_files, tree_of
from .small_directories import Small, make, named, records, written, zxid_of

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
    for length in range(len(data)):
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
    for at in range(len(data)):
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
    whole = base
    for length in range(written(data) + 30):
        log.write_bytes(data[:length])
        state = found(small)
        whole = ends.get(length, whole)
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
        for at in range(written(data) + 30):
            log.write_bytes(turned(data, at))
            state = found(small)
            errors += state is None
            assert state is None or state.zxid >= small.last - 1
            assert state is None or state.zxid == small.last or state.notes
        assert errors > written(data) / 2
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


def test_a_state_within_a_gap_is_an_error(small: Small) -> None:
    missing, after = small.logs[-2], named(small.logs[-1])
    for file in (missing, *(each for each in small.snapshots if named(each) >= named(missing) - 1)):
        file.unlink()
    for zxid in range(named(missing), after):
        with pytest.raises(DamagedDataError, match="transactions are missing") as caught:
            tree_in_files(small.folder, zxid)
        assert caught.value.last_zxid == named(missing) - 1


@pytest.mark.parametrize("seed", seeds(24))
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
