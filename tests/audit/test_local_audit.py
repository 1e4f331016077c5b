"""Audits without Spark, and the files that both engines share. tests/spark/audit has the tests of both engines."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.lasting import lasting_client
from tests.testing.waiting import eventually
from zkgroups import TopicPartition
from zkgroups.audit.audit import AuditResult, locked
from zkgroups.audit.journal import Journal
from zkgroups.audit.local_audit import read_commits, run_audit
from zkgroups.audit.pieces import MERGE_FACTOR
from zkgroups.audit.recent_commits import recent_commits
from zkgroups.exceptions import ConflictError, InvalidOptionError, NotConnectedError, NotFoundError, RefusedError
from zkgroups.storage.files import LocalFiles
from zkgroups.tables.source_options import SourceOptions
from zkgroups.testing import ZooKeeperServer, fresh_chroot

from ..spark.conftest import plant
from . import killed_runs
from .commits import Committer, assert_whole, auditing, standing

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def raw(zookeeper_hosts: str) -> Iterator[KazooClient]:
    with lasting_client(zookeeper_hosts) as client:
        yield client


def record(destination: Path, source: SourceOptions | str, **options: Any) -> AuditResult:
    """Record one batch."""
    return run_audit(str(destination), source, once=True, **options)


def rows(destination: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_commits(str(destination)).to_pylist()
    return found


def journal(destination: Path) -> Journal:
    return Journal(LocalFiles(), str(destination))


# Interruptions


def test_a_run_killed_before_any_change_of_the_disk_loses_no_commit_and_repeats_none(
    zookeeper_hosts: str, raw: KazooClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed run also merges pieces, and writes the last commit of each partition."""
    paths = [f"g/offsets/t/{number}" for number in range(3)]
    plant(raw, dict.fromkeys(paths, b"5"))
    monkeypatch.setattr("zkgroups.audit.audit.MERGE_FACTOR", killed_runs.MERGE_FACTOR)
    begun, copies = tmp_path / "begun", tmp_path / "copies"
    for offset in (6, 7, 8):
        record(begun, zookeeper_hosts)
        raw.set(f"/consumers/{paths[0]}", b"%d" % offset)
    command = [sys.executable, "-m", "tests.audit.killed_runs", zookeeper_hosts, str(begun), str(copies)]
    subprocess.run(command, check=True, timeout=200)
    raw.set(f"/consumers/{paths[1]}", b"9")
    destinations = sorted(copies.iterdir(), key=lambda folder: int(folder.name))
    assert len(destinations) > 30, "every change was tried"
    for each in destinations:
        before = rows(each)
        record(each, zookeeper_hosts)
        assert rows(each)[: len(before)] == before, "later commits come later"
        assert_whole(rows(each), standing(raw, paths))


def test_a_restart_of_zookeeper_under_load_loses_no_commit(tmp_path: Path) -> None:
    with ZooKeeperServer(tick_time=2.0) as server:
        committer = Committer(server.address, 300)
        with (
            committer,
            auditing(lambda *of, **options: run_audit(str(tmp_path), *of, **options), server.address) as steps,
        ):
            steps.wait_for(1)
            server.restart()
            for _ in range(2):
                accepted = committer.accepted
                assert eventually(lambda accepted=accepted: committer.accepted > accepted + 100)
                steps.wait_for(2)  # the second one has begun after these commits
        record(tmp_path, server.address)
        assert_whole(found := rows(tmp_path), committer.standing())
        committer.close()
    hot = [row for row in found if (row["group"], row["topic"], row["partition"]) == ("g0", "t0", 0)]
    assert len(hot) > 2, "a partition that is committed all the time appears in many batches"


class SetAfter(threading.Event):
    """An event that is set after a number of questions."""

    def __init__(self, questions: int) -> None:
        super().__init__()
        self._left = questions

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_a_batch_is_interrupted_without_a_trace_and_recorded_by_the_next_run(
    zookeeper_hosts: str, raw: KazooClient, tmp_path: Path
) -> None:
    plant(raw, {"g/offsets/t/0": b"5"})
    questions = 2  # before it connects, and before the batch
    assert record(tmp_path, zookeeper_hosts, stop=SetAfter(questions)).batches == 0
    assert not (tmp_path / "commits").exists()
    assert record(tmp_path, zookeeper_hosts, stop=SetAfter(questions + 2)).commits == 1


# One audit in a folder


def test_a_destination_holds_one_audit(zookeeper_hosts: str, raw: KazooClient, tmp_path: Path) -> None:
    plant(raw, {"g/offsets/t/0": b"5", "h/offsets/t/0": b"7"})
    some = SourceOptions(zookeeper=zookeeper_hosts, groups="g")
    assert record(tmp_path, some).commits == 1
    with pytest.raises(RefusedError, match=r"is of groups g, topics \.\*, not of groups \.\*, topics \.\*"):
        record(tmp_path, zookeeper_hosts)
    with locked(journal(tmp_path)), pytest.raises(ConflictError, match="another audit is writing to"):
        record(tmp_path, some)
    with pytest.raises(NotConnectedError):
        record(tmp_path / "b", SourceOptions(zookeeper="127.0.0.1:1", timeout=0.5))
    with pytest.raises(NotFoundError, match="no audit in"):
        read_commits(str(tmp_path / "nowhere"))
    with pytest.raises(InvalidOptionError, match="every"):
        record(tmp_path, some, every=-1)


class WithoutLocks(LocalFiles):
    """An object store, where `locked` does nothing."""

    def local_path(self, path: str) -> str | None:
        return None if path else path


class Late(WithoutLocks):
    """An object store that does not list what was just written."""

    def names(self, folder: str) -> list[str]:
        return [] if folder.endswith("/batches") else super().names(folder)


def test_without_locks_the_run_that_began_first_notices_the_second_one(tmp_path: Path) -> None:
    first, second = (Journal(WithoutLocks(), str(tmp_path)) for _ in range(2))
    with locked(first), locked(second):
        assert (first.claim_batch(None), second.claim_batch(None), second.claim_batch(1)) == (0, 1, 2)
        with pytest.raises(ConflictError, match="another audit is writing to"):
            first.claim_batch(0)
    Journal(Late(), str(tmp_path / "late")).claim_batch(None)
    with pytest.raises(ConflictError, match="another audit is writing to"):
        Journal(Late(), str(tmp_path / "late")).claim_batch(None)


# The ZooKeeper


def test_an_audit_refuses_another_zookeeper_even_with_younger_groups(
    zookeeper: Any, zookeeper_hosts: str, raw: KazooClient, tmp_path: Path
) -> None:
    """A position alone cannot detect this ZooKeeper: it looks like the followed one with recreated groups."""
    plant(raw, {"g/offsets/t/0": b"5"})
    assert record(tmp_path, zookeeper_hosts).commits == 1
    raw.delete("/consumers", recursive=True)
    plant(raw, {"g/offsets/t/0": b"6"})
    assert record(tmp_path, zookeeper_hosts).commits == 1, "the same, with its groups made anew"
    with fresh_chroot(zookeeper) as other, lasting_client(other) as client:
        plant(client, {"g/offsets/t/0": b"7"})
        with pytest.raises(RefusedError, match=f"follows {zookeeper_hosts}, but {other} is another ZooKeeper"):
            record(tmp_path, other)
    assert [row["offset"] for row in rows(tmp_path)] == [5, 6]


# The files


def test_many_batches_are_merged_and_read_as_before(
    zookeeper_hosts: str, raw: KazooClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zkgroups.audit.audit.MERGE_FACTOR", 2)
    monkeypatch.setattr("zkgroups.audit.arrow_journal._ROWS_OF_A_FILE", 2)
    plant(raw, {"g/offsets/t/0": b"0", "g/offsets/t/1": b"7", "g/offsets/t/2": b"7"})
    for offset in range(1, 6):
        record(tmp_path, zookeeper_hosts)
        raw.set("/consumers/g/offsets/t/0", b"%d" % offset)
    assert [(row["partition"], row["before"], row["offset"]) for row in rows(tmp_path)] == [
        (0, None, 0),
        (1, None, 7),
        (2, None, 7),
        *((0, offset - 1, offset) for offset in range(1, 5)),
    ]
    found = journal(tmp_path)
    assert [piece.name for piece in found.pieces()] == ["2-000000000000-000000000003", "0-000000000004-000000000004"]
    assert len(list(tmp_path.glob("commits/2-*/*.parquet"))) == 3
    assert found.standing_batch() == 3
    assert len(list((tmp_path / "commits").iterdir())) < 5 + MERGE_FACTOR
    assert (description := found.description()).ensemble is not None
    assert (description.groups, description.topics, description.ensemble.cluster) == (None, None, zookeeper_hosts)


def test_recent_commits_are_those_of_the_pieces_that_count(
    zookeeper_hosts: str, raw: KazooClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged pieces still exist. A node without a number is no commit."""
    monkeypatch.setattr("zkgroups.audit.audit.MERGE_FACTOR", 2)
    plant(raw, {"g/offsets/t/0": b"0", "h/offsets/t/0": b"7", "h/offsets/t/1": b"no number"})
    for offset in range(1, 6):
        record(tmp_path, zookeeper_hosts)
        raw.set("/consumers/g/offsets/t/0", b"%d" % offset)
    found = [each for sweep in recent_commits(str(tmp_path)) for each in sweep.commits]
    of_g = [each for each in found if each.group == "g"]
    assert [each.offset for each in of_g] == [each.version for each in of_g] == list(range(5))
    assert [(each.at, each.offset) for each in found if each.group == "h"] == [(TopicPartition("t", 0), 7)]


def test_without_its_last_commits_an_audit_finds_them_in_merged_pieces(
    zookeeper_hosts: str, raw: KazooClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zkgroups.audit.audit.MERGE_FACTOR", 2)
    plant(raw, {"g/offsets/t/0": b"5"})
    for offset in (6, 7):
        record(tmp_path, zookeeper_hosts)
        raw.set("/consumers/g/offsets/t/0", b"%d" % offset)
    [merged] = journal(tmp_path).pieces()
    assert merged.level == 1
    shutil.rmtree(tmp_path / "standing")
    record(tmp_path, zookeeper_hosts)
    assert [(row["before"], row["offset"]) for row in rows(tmp_path)] == [(None, 5), (5, 6), (6, 7)]


def test_a_lost_position_costs_a_full_read_and_repeats_no_commit(
    zookeeper_hosts: str, raw: KazooClient, tmp_path: Path
) -> None:
    plant(raw, {"g/offsets/t/0": b"5", "g/offsets/t/1": b"6"})
    record(tmp_path, zookeeper_hosts)
    (tmp_path / "_position.json").unlink()
    shutil.rmtree(tmp_path / "batches")
    raw.set("/consumers/g/offsets/t/1", b"8")
    assert record(tmp_path, zookeeper_hosts).commits == 1
    assert [(row["offset"], row["batch"]) for row in rows(tmp_path)] == [(5, 0), (6, 0), (8, 1)]
