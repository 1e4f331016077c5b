"""`zkgroups snapshot --from-data-dir` with intact, torn, damaged and missing files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..datadir.small_directories import Small, make, records, written
from .running import Ended, run

WITHOUT_JAVA = {"JAVA_HOME": "", "PATH": "/nowhere"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make(tmp_path_factory.mktemp("whole") / "data", None)


@pytest.fixture
def small(whole: Small, tmp_path: Path) -> Small:
    """A copy of the directory for this test."""
    return whole.copy(tmp_path / "data")


def dry_run(folder: Path, *arguments: Any) -> Ended:
    """Run without Java: errors must be reported before Spark starts."""
    return run("snapshot", folder / "DEST", "--dry-run", "--from-data-dir", folder, *arguments, env=WITHOUT_JAVA)


def counts(ended: Ended) -> list[str]:
    assert ended.code == 0, ended.err
    return ended.lines[1].split()


@pytest.mark.zookeeper
def test_a_dry_run_counts_the_nodes_in_the_files(small: Small) -> None:
    ended = dry_run(small.folder)
    assert counts(ended) == [str(small.folder), "1", "1", "3", "0", "0", "0"]
    name = small.snapshots[-1].name
    assert ended.err == f"Reading the state after transaction 0x{small.last:x}, from {name}.\n"
    assert counts(dry_run(small.folder / "version-2", "--cluster", "blue")) == ["blue", "1", "1", "3", "0", "0", "0"]
    ended = dry_run(small.folder, "--chroot", "/kafka")
    assert (ended.code, ended.out) == (3, "")
    assert f"{small.folder} has no nodes below the chroot /kafka" in ended.err
    assert counts(dry_run(small.folder, "--zxid", "0x1"))[1:] == ["0"] * 6


@pytest.mark.zookeeper
def test_logs_may_be_in_another_folder(small: Small, tmp_path: Path) -> None:
    logs = tmp_path / "logs" / "version-2"
    logs.mkdir(parents=True)
    for log in small.logs:
        log.rename(logs / log.name)
    ended = dry_run(small.folder, "--data-log-dir", tmp_path / "logs")
    assert f"after transaction 0x{small.last:x}" in ended.err


@pytest.mark.zookeeper
def test_torn_and_skipped_files_are_reported(small: Small) -> None:
    newest, log = small.snapshots[-1], small.logs[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    data = log.read_bytes()
    log.write_bytes(data[: written(data) - 3])
    ended = dry_run(small.folder, "--quiet")
    assert ended.code == 0
    assert ended.err.splitlines() == [
        f"zkgroups: {newest} is damaged and was skipped",
        f"zkgroups: {log} ends within a record: the last complete transaction is 0x{small.last - 1:x}",
    ]


@pytest.mark.zookeeper
def test_damage_has_exit_code_10_and_names_a_readable_state(small: Small) -> None:
    log = small.logs[-1]
    (data, first), (_, at), *_ = records(log)
    log.write_bytes(data[: at + 40] + b"?" + data[at + 41 :])
    last = f"0x{int.from_bytes(data[first + 24 : first + 32]):x}"
    ended = dry_run(small.folder)
    assert (ended.code, ended.out) == (10, "")
    assert ended.err.startswith(f"zkgroups: {log}: a record has a wrong checksum; the data is intact up to zxid {last}")
    assert dry_run(small.folder, "--zxid", last).code == 0
    for snapshot in small.snapshots:
        snapshot.write_bytes(b"")
    small.logs[0].unlink()
    ended = dry_run(small.folder)
    assert (ended.code, ended.out) == (10, "")
    assert "it has no snapshot to start from" in ended.err


@pytest.mark.zookeeper
def test_missing_files_are_exit_code_3_and_wrong_usage_2(small: Small, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, said in (("nowhere", "nowhere does not exist"), ("empty", "is not a ZooKeeper data directory")):
        ended = dry_run(tmp_path / folder)
        assert (ended.code, ended.out) == (3, "")
        assert said in ended.err
    ended = dry_run(small.folder, "--zxid", str(small.last + 1))
    assert (ended.code, ended.out) == (3, "")
    assert f"ends with transaction 0x{small.last:x}" in ended.err
    ended = dry_run(small.folder, "--zxid", "last")
    assert (ended.code, ended.out) == (2, "")
    assert "'last' is not a transaction number" in ended.err
    ended = run("snapshot", tmp_path, "-z", "127.0.0.1:1", "--zxid", "7", env=WITHOUT_JAVA)
    assert (ended.code, ended.out) == (2, "")
    assert "it needs a dataDir" in ended.err
