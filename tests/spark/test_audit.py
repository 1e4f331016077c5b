"""The audit records every current offset exactly once, whatever fails meanwhile."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.retry import KazooRetry
from pyspark.sql import SparkSession

from zkgroups import TopicPartition
from zkgroups.exceptions import (
    ConflictError,
    InvalidOptionError,
    NotConnectedError,
    NotFoundError,
    RefusedError,
    SparkJobError,
)
from zkgroups.snapshots.recent_commits import recent_commits
from zkgroups.spark import AuditResult, AuditStep, SourceOptions, offsets_at, read_audit, run_audit
from zkgroups.spark.audit.audit import locked
from zkgroups.spark.audit.journal import MERGE_FACTOR, Journal
from zkgroups.testing import Op, TcpProxy, ZooKeeperServer, fresh_chroot

from ..cli.running import environment
from ..lasting import through_restarts
from .conftest import client_of, plant
from .processes import PATIENCE, family, sigkill, wait_until_gone

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

SECONDS = float(os.environ.get("ZKGROUPS_SOAK_SECONDS", "120"))
"""The duration of `make soak` in seconds."""
RATE, SOAK_RATE = 300, 1_000
"""Commits per second. At the lower rate, too, most partitions change between two batches."""

Found = list[dict[str, Any]]


def rows(spark: SparkSession, destination: Path) -> Found:
    return [row.asDict() for row in read_audit(spark, str(destination)).orderBy("batch", "zxid").collect()]


def commit(client: Any, path: str, offset: int) -> Any:
    return client.set(f"/consumers/{path}", str(offset).encode())


# Contents


@pytest.fixture
def proxy(zookeeper: Any) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper.address) as proxy:
        yield proxy


def test_each_commit_has_the_previous_offset_and_offsets_at_a_time_are_found(
    spark: SparkSession, proxy: TcpProxy, zookeeper_hosts: str, raw: Any, tmp_path: Path
) -> None:
    """Each offset is read once per batch, too."""
    plant(raw, {"g/offsets/t/0": b"5", "g/offsets/t/1": b"6", "h/offsets/t/0": b"7", "h/offsets/t/odd": b"7"})
    told: list[AuditStep] = []

    def look() -> AuditResult:
        hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        return run_audit(spark, str(tmp_path), hosts, once=True, on_progress=told.append)

    destination = f"file:{tmp_path}"
    assert look() == AuditResult(destination, batches=1, commits=3, problems=0, forbidden=0)
    first = raw.get("/consumers/g/offsets/t/0")[1]
    for offset in (8, 9):
        stat = commit(raw, "g/offsets/t/0", offset)
    raw.set("/consumers/h/offsets/t/0", b"x")
    assert look() == AuditResult(destination, batches=1, commits=2, problems=1, forbidden=0)
    assert look() == AuditResult(destination, batches=1, commits=0, problems=0, forbidden=0)
    assert told == [AuditStep(0, 3), AuditStep(1, 2, 1), AuditStep(2, 0)]
    assert proxy.requests_by_type[Op.GET_DATA] == 3 * 4

    found = rows(spark, tmp_path)
    assert [(row["group"], row["partition"], row["before"], row["offset"], row["batch"]) for row in found] == [
        ("g", 0, None, 5, 0),
        ("g", 1, None, 6, 0),
        ("h", 0, None, 7, 0),
        ("g", 0, 5, 9, 1),
        ("h", 0, 7, None, 1),
    ]
    again = found[3]
    assert (again["topic"], again["commit_count"], again["zxid"], again["problem"]) == ("t", 2, stat.mzxid, None)
    assert round(again["committed_at"].timestamp() * 1000) == stat.mtime
    assert found[4]["problem"].startswith("/consumers/h/offsets/t/0: ")

    looked = Journal(spark, str(tmp_path)).last_read_ms()
    assert looked is not None

    def standing(ms: int, group: str | None = None) -> list[tuple[Any, ...]]:
        at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
        read = offsets_at(spark, str(tmp_path), at, group).orderBy("group", "partition")
        assert read.columns == ["group", "topic", "partition", "offset", "committed_at"]
        return [tuple(row)[:4] for row in read.collect()]

    assert standing(looked) == [("g", "t", 0, 9), ("g", "t", 1, 6)]
    assert standing(looked, "h") == []
    assert ("g", "t", 0, 5) in standing(stat.mtime - 1, "g")
    assert standing(first.mtime - 1) == []
    with pytest.raises(InvalidOptionError, match="a datetime with a time zone"):
        offsets_at(spark, str(tmp_path), datetime(2026, 1, 1))
    with pytest.raises(RefusedError, match="does not know later commits"):
        standing(looked + 1)
    with pytest.raises(NotFoundError, match="no audit in"):
        read_audit(spark, str(tmp_path / "nowhere"))


def test_a_destination_holds_one_audit(spark: SparkSession, zookeeper_hosts: str, raw: Any, tmp_path: Path) -> None:
    plant(raw, {"g/offsets/t/0": b"5", "h/offsets/t/0": b"7"})
    some = SourceOptions(zookeeper=zookeeper_hosts, groups="g")
    assert run_audit(spark, str(tmp_path), some, once=True).commits == 1
    with pytest.raises(RefusedError, match=r"is of groups g, topics \.\*, not of groups \.\*, topics \.\*"):
        run_audit(spark, str(tmp_path), zookeeper_hosts, once=True)
    with locked(Journal(spark, str(tmp_path))), pytest.raises(ConflictError, match="another audit is writing to"):
        run_audit(spark, str(tmp_path), some, once=True)
    shutil.rmtree(tmp_path / "_checkpoint")
    with pytest.raises(RefusedError, match="has lost its _checkpoint"):
        run_audit(spark, str(tmp_path), some, once=True)
    with pytest.raises(NotConnectedError):
        run_audit(spark, str(tmp_path / "b"), SourceOptions(zookeeper="127.0.0.1:1", timeout=0.5), once=True)


def test_recent_commits_are_read_without_spark(
    spark: SparkSession, zookeeper_hosts: str, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after pieces were merged, whose old folders still exist."""
    monkeypatch.setattr("zkgroups.spark.audit.ledger.MERGE_FACTOR", 2)
    plant(raw, {"g/offsets/t/0": b"0", "h/offsets/t/0": b"7", "h/offsets/t/1": b"no number"})
    for offset in range(1, 6):
        run_audit(spark, str(tmp_path), zookeeper_hosts, once=True)
        commit(raw, "g/offsets/t/0", offset)
    found = [each for sweep in recent_commits(str(tmp_path)) for each in sweep.commits]
    of_g = [each for each in found if each.group == "g"]
    assert [each.offset for each in of_g] == [each.version for each in of_g] == list(range(5))
    assert [(each.at, each.offset) for each in found if each.group == "h"] == [(TopicPartition("t", 0), 7)]


def test_an_audit_refuses_another_zookeeper_even_with_younger_groups(
    spark: SparkSession, zookeeper: Any, zookeeper_hosts: str, raw: Any, tmp_path: Path
) -> None:
    """The stream alone cannot detect this ZooKeeper: it looks like the followed one with recreated groups."""
    plant(raw, {"g/offsets/t/0": b"5"})
    assert run_audit(spark, str(tmp_path), zookeeper_hosts, once=True).commits == 1
    raw.delete("/consumers", recursive=True)
    plant(raw, {"g/offsets/t/0": b"6"})
    assert run_audit(spark, str(tmp_path), zookeeper_hosts, once=True).commits == 1, (
        "the same, with its groups made anew"
    )
    with fresh_chroot(zookeeper) as other, client_of(other) as client:
        plant(client, {"g/offsets/t/0": b"7"})
        with pytest.raises(RefusedError, match=f"follows {zookeeper_hosts}, but {other} is another ZooKeeper"):
            run_audit(spark, str(tmp_path), other, once=True)
    assert [row["offset"] for row in rows(spark, tmp_path)] == [5, 6]


def test_offsets_from_before_the_audit_started_over_are_not_current(
    spark: SparkSession, zookeeper: Any, zookeeper_hosts: str, raw: Any, tmp_path: Path
) -> None:
    """Its offsets are not the previous ones of the new ZooKeeper either."""
    plant(raw, {"g/offsets/t/0": b"900", "g/offsets/t/1": b"901"})
    run_audit(spark, str(tmp_path), zookeeper_hosts, once=True)
    with fresh_chroot(zookeeper) as other, client_of(other) as client:
        plant(client, {"g/offsets/t/0": b"5"})
        before = datetime.now(UTC)
        run_audit(spark, str(tmp_path), SourceOptions(zookeeper=other, start_over=True), once=True)
        assert [(row["before"], row["offset"]) for row in rows(spark, tmp_path) if row["batch"]] == [(None, 5)]
        standing = offsets_at(spark, str(tmp_path), before).collect()
        assert [(row["partition"], row["offset"]) for row in standing] == [(0, 5)]
        commit(client, "g/offsets/t/0", 6)
        run_audit(spark, str(tmp_path), other, once=True)
    assert rows(spark, tmp_path)[-1]["before"] == 5


def test_a_batch_that_could_not_be_written_is_repeated_without_duplicates(
    spark: SparkSession, zookeeper_hosts: str, raw: Any, tmp_path: Path
) -> None:
    """A repeated batch includes later commits, which come again with the next batch."""
    plant(raw, {"g/offsets/t/0": b"5", "g/offsets/t/1": b"5"})
    (tmp_path / "commits").touch()
    with pytest.raises(SparkJobError, match="could not be written"):
        run_audit(spark, str(tmp_path), zookeeper_hosts, once=True)
    (tmp_path / "commits").unlink()
    commit(raw, "g/offsets/t/0", 6)
    assert run_audit(spark, str(tmp_path), zookeeper_hosts, once=True).batches == 2
    assert [(row["partition"], row["before"], row["offset"]) for row in rows(spark, tmp_path)] == [
        (1, None, 5),
        (0, None, 6),
    ]


# Under load


class Committer:
    """Commits at a given rate on many partitions, and records what the server has accepted."""

    def __init__(self, hosts: str, rate: int, *, partitions: int = 400) -> None:
        self._rate = rate
        # A client that connects while the server starts is not left waiting: see ZooKeeperServer.
        patient = KazooRetry(max_tries=-1, delay=0.05, backoff=1, max_delay=0.2)
        self._client = KazooClient(through_restarts(hosts), timeout=40.0, connection_retry=patient)
        self._client.start()
        self._paths = [f"g{n % 10}/offsets/t{n % 4}/{n}" for n in range(partitions)]
        plant(self._client, dict.fromkeys(self._paths, b"0"))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.commits = 0

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.is_set():
            due = int((time.monotonic() - began) * self._rate) - self.commits
            asked = []
            for number in range(self.commits, self.commits + min(due, self._rate)):
                # One partition is committed so often that it changes before it can be read.
                path = self._paths[0 if number % 10 == 0 else number % len(self._paths)]
                asked.append(self._client.set_async(f"/consumers/{path}", str(number + 1).encode()))
            self.commits += len(asked)
            for each in asked:
                with_suppressed(each)
            self._over.wait(0.02)

    def __enter__(self) -> Committer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def standing(self) -> dict[tuple[str, str, int], tuple[int, int]]:
        """Return the offset and zxid of all current offsets."""
        found = {}
        for path in self._paths:
            data, stat = self._client.get(f"/consumers/{path}")
            group, _, topic, partition = path.split("/")
            found[group, topic, int(partition)] = (int(data), stat.mzxid)
        return found

    def close(self) -> None:
        self._client.stop()
        self._client.close()


def with_suppressed(answer: Any) -> None:
    try:
        answer.get(timeout=60)
    except KazooException:
        return  # the server may have accepted it


def assert_whole(spark: SparkSession, destination: Path, committer: Committer) -> Found:
    """Assert that all current offsets are recorded once, each with the previous recorded offset."""
    found = rows(spark, destination)
    chains: dict[tuple[str, str, int], Found] = defaultdict(list)
    for row in found:
        chains[row["group"], row["topic"], row["partition"]].append(row)
    last = {key: (chain[-1]["offset"], chain[-1]["zxid"]) for key, chain in chains.items()}
    assert last == committer.standing()
    for chain in chains.values():
        assert [row["before"] for row in chain] == [None, *(row["offset"] for row in chain[:-1])]
        assert all(one["zxid"] < other["zxid"] for one, other in itertools.pairwise(chain))
    return found


class Steps:
    """Collects the batches of a running audit."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._batches = 0

    def __call__(self, step: AuditStep) -> None:
        with self._changed:
            self._batches += not step.trouble
            self._changed.notify_all()

    def wait_for(self, batches: int) -> None:
        """Wait for this many more batches."""
        with self._changed:
            wanted = self._batches + batches
            assert self._changed.wait_for(lambda: self._batches >= wanted, PATIENCE)


@contextmanager
def auditing(spark: SparkSession, destination: Path, hosts: str) -> Iterator[Steps]:
    """Run an audit during the block, with little time between two batches."""
    steps, stop = Steps(), threading.Event()
    source = SourceOptions(zookeeper=hosts, timeout=5.0, parallelism=2)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            run_audit(spark, str(destination), source, every=0.1, on_progress=steps, stop=stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield steps
    finally:
        stop.set()
        thread.join()
    assert not failed


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tick_time=2.0) as server:
        yield server


@pytest.fixture
def committer(server: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Committer]:
    committer = Committer(server.address, SOAK_RATE if request.node.get_closest_marker("soak") else RATE)
    yield committer
    committer.close()


DRIVER = """
import os, signal, sys
from zkgroups.spark import SourceOptions, run_audit
from zkgroups.spark.audit import journal, ledger
from zkgroups.spark.session import own_session

class Fatal:
    def __init__(self, files):
        self.files, self.left = files, int(sys.argv[1])

    def __getattr__(self, name):
        self.left -= armed
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(self.files, name)

def begin(self, *args, usual=journal.Journal.__init__):
    usual(self, *args)
    self._files = Fatal(self._files)

armed = 0
ledger.MERGE_FACTOR = int(sys.argv[4])
with own_session(master="local[2,4]") as spark:
    run_audit(spark, sys.argv[2], sys.argv[3], once=True)
    armed = 1
    journal.Journal.__init__ = begin
    source = SourceOptions(zookeeper=sys.argv[3], timeout=5.0)
    run_audit(spark, sys.argv[2], source, every=0.1)
"""


def audited_until_killed(calls: int, destination: Path, hosts: str) -> None:
    """Run an audit in a process that is killed after this many calls to the file system."""
    command = [sys.executable, "-c", DRIVER, str(calls), str(destination), hosts, "4"]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as process:
        others: dict[int, str] = {}
        try:
            others = family(process)
        finally:
            process.kill()
            for pid in others:
                sigkill(pid)
            wait_until_gone(others)
        assert process.returncode == -9, process.stderr.read() if process.stderr else ""


def test_a_server_restart_and_a_kill_under_load_lose_no_commit(
    spark: SparkSession, server: ZooKeeperServer, committer: Committer, tmp_path: Path
) -> None:
    with committer:
        audited_until_killed(11, tmp_path, server.address)
        with auditing(spark, tmp_path, server.address) as steps:
            steps.wait_for(1)
            server.restart()
            steps.wait_for(2)
    # The batch that was planned but not finished comes first.
    assert run_audit(spark, str(tmp_path), server.address, once=True).batches in {1, 2}
    found = assert_whole(spark, tmp_path, committer)
    hot = [row for row in found if (row["group"], row["topic"], row["partition"]) == ("g0", "t0", 0)]
    assert len(hot) > 2, "a partition that is committed all the time appears in many batches"


@pytest.mark.soak
def test_many_batches_are_merged_and_read_as_before(
    spark: SparkSession, zookeeper_hosts: str, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zkgroups.spark.audit.ledger.MERGE_FACTOR", 2)
    plant(raw, {"g/offsets/t/0": b"0", "g/offsets/t/1": b"7"})
    for offset in range(1, 6):
        run_audit(spark, str(tmp_path), zookeeper_hosts, once=True)
        commit(raw, "g/offsets/t/0", offset)
    assert [(row["partition"], row["before"], row["offset"]) for row in rows(spark, tmp_path)] == [
        (0, None, 0),
        (1, None, 7),
        *((0, offset - 1, offset) for offset in range(1, 5)),
    ]
    journal = Journal(spark, str(tmp_path))
    assert [piece.name for piece in journal.pieces()] == ["2-000000000000-000000000003", "0-000000000004-000000000004"]
    assert journal.standing() == 3
    assert len(list((tmp_path / "commits").iterdir())) < 5 + MERGE_FACTOR
    about = json.loads((tmp_path / "_audit.json").read_text())
    assert (about["groups"], about["topics"], about["cluster"]) == (None, None, zookeeper_hosts)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak(spark: SparkSession, server: ZooKeeperServer, committer: Committer, tmp_path: Path) -> None:
    """Run for a long time, with kills at every step of writing, and kills of the server in between."""
    end = time.monotonic() + SECONDS
    with committer:
        for kill in range(1000):
            if time.monotonic() > end:
                break
            audited_until_killed(7 * kill % 97, tmp_path, server.address)
            print(f"{kill + 1} kills, {committer.commits} commits", flush=True)
            with auditing(spark, tmp_path, server.address) as steps:
                steps.wait_for(1)
                server.kill()
                server.start()
                steps.wait_for(2)
    run_audit(spark, str(tmp_path), server.address, once=True)
    assert_whole(spark, tmp_path, committer)
