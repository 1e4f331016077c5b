"""Files that are cut anywhere, or have a bit of any byte turned, are an error or a whole state that there was."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from zkgroups.core.znodes.paths import Part
from zkgroups.datadir.data_dir import DataDir, DataDirState
from zkgroups.datadir.files import DataFile
from zkgroups.datadir.snapshot_file import check_snapshot
from zkgroups.exceptions import DamagedDataError, NotFoundError

from .left import left, tree_of
from .small import Small, make, named, records, written

pytestmark = pytest.mark.zookeeper

GZIP, SNAPPY = (f"-Dzookeeper.snapshot.compression.method={method}" for method in ("gz", "snappy"))
KINDS = {"3.4": ("3.4.14",), "3.9": (None,), "gzip": (None, GZIP), "snappy": (None, SNAPPY)}


PACKED = [pytest.param(kind, marks=pytest.mark.soak) for kind in ("gzip", "snappy")]  # the same, unpacked first


@pytest.fixture(scope="module", params=["3.4", "3.9", *PACKED])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make(tmp_path_factory.mktemp("whole") / "data", *KINDS[request.param])


@pytest.fixture
def small(whole: Small, tmp_path: Path) -> Small:
    """One that this test may damage."""
    return whole.copy(tmp_path / "data")


def found(small: Small) -> DataDirState | None:
    """Which state is read, after a look at all of it; None where there is an error."""
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
        assert left(small.folder, zxid) == state
    while small.snapshots:
        assert found(small) == DataDirState(small.last, small.snapshots[-1].name)
        small.snapshots[-1].unlink()
    assert found(small) == DataDirState(small.last, None)


def test_a_snapshot_that_is_cut_anywhere_is_passed_over_and_said(small: Small) -> None:
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
    # Without one or two of its seals it is as whole as it was before 3.6 or 3.9.
    assert earlier_form <= 2


def test_a_snapshot_with_a_bit_turned_anywhere_does_not_change_what_is_read(small: Small) -> None:
    newest, before = small.snapshots[-1], small.snapshots[-2]
    data = newest.read_bytes()
    used = [0, 0]
    for at in range(len(data)):
        newest.write_bytes(turned(data, at))
        state = found(small)
        assert state is not None
        assert state.zxid == small.last
        used[state.snapshot == before.name] += 1
    # What is packed has bytes that mean nothing, or the same.
    assert used[0] <= (len(data) / 10 if newest.suffix in {".gz", ".snappy"} else 0)


def turned(data: bytes, at: int) -> bytes:
    """With one bit of that byte turned."""
    return data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


# Logs


def test_the_last_log_cut_anywhere_ends_with_its_last_whole_transaction_which_is_said(small: Small) -> None:
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


def zxid_of(data: bytes, at: int) -> int:
    """Of the record that begins there."""
    return int.from_bytes(data[at + 24 : at + 32])


def test_logs_with_a_bit_turned_anywhere_are_an_error_or_a_whole_state(small: Small) -> None:
    """Without the newest snapshot, so that two logs are needed; what is not told is at most the last transaction."""
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


def test_damage_says_up_to_where_all_is_well_and_that_may_be_asked_for(small: Small) -> None:
    small.snapshots[-1].unlink()
    log = small.logs[-1]
    (data, first), (_, at), *_ = records(log)
    log.write_bytes(turned(data, at + 40))
    with pytest.raises(DamagedDataError, match="a record has a wrong checksum") as caught:
        left(small.folder)
    last = zxid_of(data, first)
    assert caught.value.last_zxid == last
    assert f"the data is intact up to zxid 0x{last:x}, and can be read up to it" in str(caught.value)
    assert left(small.folder, last) == small.states[last]


def test_a_log_that_is_missing_is_an_error_unless_a_snapshot_has_what_was_in_it(small: Small) -> None:
    missing = small.logs[-2]
    missing.unlink()
    assert found(small) == DataDirState(small.last, small.snapshots[-1].name)
    small.snapshots[-1].unlink()
    with pytest.raises(DamagedDataError, match="transactions are missing") as caught:
        left(small.folder)
    last = caught.value.last_zxid
    assert last is not None
    assert last >= named(missing) - 1
    assert left(small.folder, last) == small.states[last]


def test_what_is_said_to_be_well_can_be_asked_for_also_where_a_snapshot_reaches_beyond_what_is_missing(
    small: Small,
) -> None:
    """Such a snapshot, whose name is older than its nodes, is good for nothing without the transactions between."""
    newest, missing = small.snapshots[-1], small.logs[-2]
    reaches, name = named(newest), newest.name.split(".")
    newest.rename(newest.with_name(".".join([name[0], f"{reaches - 3:x}", *name[2:]])))
    missing.unlink()
    with pytest.raises(DamagedDataError, match=f"after 0x{reaches - 3:x}, so that transactions are missing") as caught:
        left(small.folder)
    last = caught.value.last_zxid
    assert last == named(missing) - 1
    assert f"the data is intact up to zxid 0x{last:x}, and can be read up to it" in str(caught.value)
    assert left(small.folder, last) == small.states[last]


def test_a_state_within_what_is_missing_is_an_error_and_not_an_earlier_one(small: Small) -> None:
    missing, after = small.logs[-2], named(small.logs[-1])
    for file in (missing, *(each for each in small.snapshots if named(each) >= named(missing) - 1)):
        file.unlink()
    for zxid in range(named(missing), after):
        with pytest.raises(DamagedDataError, match="transactions are missing") as caught:
            left(small.folder, zxid)
        assert caught.value.last_zxid == named(missing) - 1


@pytest.mark.parametrize("seed", range(24))
def test_whichever_files_are_missing_a_state_is_the_right_one_or_an_error_whose_promise_is_kept(
    small: Small, seed: int
) -> None:
    rng = random.Random(seed)
    files = [*small.snapshots, *small.logs]
    for file in rng.sample(files, rng.randint(1, len(files) - 1)):
        file.unlink()
    promised: set[int | None] = set()
    for zxid in [None, *range(0, small.last + 2, 3)]:
        try:
            found = left(small.folder, zxid)
        except NotFoundError:
            continue
        except DamagedDataError as error:
            promised.add(error.last_zxid)
            continue
        assert found in (small.states if zxid is None else [small.states[zxid]])
    for last in promised - {None}:
        assert last is not None
        assert left(small.folder, last) == small.states[last]


def test_with_nothing_to_begin_from_there_is_an_error(small: Small) -> None:
    for snapshot in small.snapshots:
        snapshot.write_bytes(b"")
    small.logs[0].unlink()
    with pytest.raises(DamagedDataError, match=r"it has no snapshot to start from: .*snapshot.* is damaged") as caught:
        left(small.folder)
    assert f"its logs begin with 0x{named(small.logs[0]):x}" in str(caught.value)
    for snapshot in small.snapshots:
        snapshot.unlink()
    with pytest.raises(DamagedDataError, match="it has no snapshot"):
        left(small.folder)
    for log in small.logs:
        log.unlink()
    with pytest.raises(NotFoundError, match="is not a ZooKeeper data directory"):
        left(small.folder)


def test_without_its_logs_a_snapshot_says_nothing_of_now(small: Small, tmp_path: Path) -> None:
    """They may be in a directory of their own, which was forgotten; or old ones were left where they were before."""
    elsewhere = tmp_path / "elsewhere" / "version-2"
    elsewhere.mkdir(parents=True)
    newest, first, *others = named(small.snapshots[-1]), *small.logs
    for log in (first, *others):
        log.rename(elsewhere / log.name)
    with pytest.raises(NotFoundError, match="has no log for snapshot"):
        left(small.folder)
    assert DataDir(str(small.folder), log_folder=str(elsewhere.parent)).state().zxid == small.last
    (elsewhere / first.name).rename(first)
    [note] = DataDir(str(small.folder)).state().notes
    assert f"before the snapshot of 0x{newest:x}: later transactions may be in a separate dataLogDir" in note


def test_without_any_log_a_snapshot_is_a_state_where_it_says_that_nothing_changed_meanwhile(small: Small) -> None:
    """None says so before 3.6; of later releases the newest does, see `make`."""
    for log in small.logs:
        log.unlink()
    refused: dict[Path, str] = {}
    for snapshot in small.snapshots:
        zxid = named(snapshot)
        try:
            assert left(small.folder, zxid) == small.states[zxid]
        except NotFoundError as error:
            refused[snapshot] = str(error)
    assert all(f"{snapshot.name} may contain later changes" in said for snapshot, said in refused.items())
    newest = small.snapshots[-1]
    whole = check_snapshot(DataFile(newest, named(newest)))
    assert whole is not None
    assert (newest in refused) == (whole.digest is None)
    with pytest.raises(NotFoundError):
        left(small.folder, named(newest) + 1)


def test_what_the_files_do_not_go_back_or_on_to_is_not_found(small: Small) -> None:
    with pytest.raises(NotFoundError, match=f"ends with transaction 0x{small.last:x}, before 0x{small.last + 1:x}"):
        left(small.folder, small.last + 1)
    for file in (*small.snapshots[:-1], small.logs[0]):
        file.unlink()
    with pytest.raises(NotFoundError, match="does not go back to 0x3: it has no snapshot that old"):
        left(small.folder, 3)


def test_a_snapshot_with_later_nodes_than_its_name_says_needs_the_logs_up_to_them(small: Small) -> None:
    """As all are that were written down while the tree changed."""
    newest, older = small.snapshots[-1], small.snapshots[-2]
    reaches, name = named(newest), newest.name.split(".")
    zxid = reaches - 3
    fuzzy = newest.rename(newest.with_name(".".join([name[0], f"{zxid:x}", *name[2:]])))
    assert found(small) == DataDirState(small.last, fuzzy.name)
    assert left(small.folder, reaches) == small.states[reaches]
    for earlier in range(zxid, reaches):
        assert DataDir(str(small.folder)).state(earlier).snapshot == older.name
        assert left(small.folder, earlier) == small.states[earlier]
    for log in small.logs:
        for data, at in records(log):
            if zxid_of(data, at) >= reaches - 1:
                log.write_bytes(data[:at])
                break
    with pytest.raises(
        DamagedDataError, match=f"contains changes up to 0x{reaches:x}, but the logs end with 0x{reaches - 2:x}"
    ):
        left(small.folder)
