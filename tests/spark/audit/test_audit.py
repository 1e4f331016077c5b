"""Both engines record every current offset exactly once, and continue each other's audits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.lasting import lasting_client
from zkgroups.audit.local_audit import read_commits
from zkgroups.audit.recent_commits import recent_commits
from zkgroups.exceptions import (
    InvalidOptionError,
    NotFoundError,
    RefusedError,
    SparkJobError,
    StorageError,
)
from zkgroups.spark import AuditResult, AuditStep, SourceOptions, offsets_at, read_audit
from zkgroups.spark.audit.journal import SparkJournal
from zkgroups.testing import Op, TcpProxy, ZooKeeperServer, fresh_chroot

from ...audit.commits import Committer, assert_whole, auditing
from ...cli.running import environment
from ..conftest import plant
from ..processes import family, sigkill, wait_until_gone
from .conftest import Engines

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

Record = Callable[..., AuditResult]
Rows = Callable[[], list[dict[str, Any]]]


def commit(client: Any, path: str, offset: int) -> Any:
    return client.set(f"/consumers/{path}", str(offset).encode())


# Contents


@pytest.fixture
def proxy(zookeeper: Any) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper.address) as proxy:
        yield proxy


def test_each_commit_has_the_previous_offset_and_offsets_at_a_time_are_found(
    record: Record,
    rows: Rows,
    spark: SparkSession,
    proxy: TcpProxy,
    zookeeper_hosts: str,
    raw: Any,
    tmp_path: Path,
) -> None:
    """Each offset is read once per batch, too, and no owner."""
    plant(raw, {"g/offsets/t/0": b"5", "g/offsets/t/1": b"6", "h/offsets/t/0": b"7", "h/offsets/t/odd": b"7"})
    plant(raw, {"g/owners/t/0": b"anna"})
    told: list[AuditStep] = []

    def look() -> AuditResult:
        hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        return record(hosts, on_progress=told.append)

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

    found = rows()
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

    finished = SparkJournal(spark, str(tmp_path)).finished_batch()
    assert finished is not None

    def standing(ms: int, group: str | None = None) -> list[tuple[Any, ...]]:
        at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
        read = offsets_at(spark, str(tmp_path), at, group).orderBy("group", "partition")
        assert read.columns == ["group", "topic", "partition", "offset", "committed_at"]
        return [tuple(row)[:4] for row in read.collect()]

    assert standing(finished.read_ms) == [("g", "t", 0, 9), ("g", "t", 1, 6)]
    assert standing(finished.read_ms, "h") == []
    assert ("g", "t", 0, 5) in standing(stat.mtime - 1, "g")
    assert standing(first.mtime - 1) == []
    with pytest.raises(InvalidOptionError, match="a datetime with a time zone"):
        offsets_at(spark, str(tmp_path), datetime(2026, 1, 1))
    with pytest.raises(RefusedError, match="does not know later commits"):
        standing(finished.read_ms + 1)
    with pytest.raises(NotFoundError, match="no audit in"):
        read_audit(spark, str(tmp_path / "nowhere"))


def test_each_engine_continues_an_audit_of_the_other(
    engines: Engines,
    rows: Rows,
    spark: SparkSession,
    zookeeper_hosts: str,
    raw: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each also merges what the other has written, and uses its last commits. Spark verifies checksums of files."""
    monkeypatch.setattr("zkgroups.audit.audit.MERGE_FACTOR", 2)
    plant(raw, {"g/offsets/t/0": b"0", "g/offsets/t/1": b"7"})
    for offset, audit in enumerate((engines.local, engines.spark, engines.spark, engines.local, engines.spark), 1):
        assert audit(zookeeper_hosts, once=True).commits == (2 if offset == 1 else 1)
        commit(raw, "g/offsets/t/0", offset)
    assert [(row["partition"], row["before"], row["offset"], row["batch"]) for row in rows()] == [
        (0, None, 0, 0),
        (1, None, 7, 0),
        *((0, offset - 1, offset, offset) for offset in range(1, 5)),
    ]
    assert rows() == [row | _naive(row) for row in read_commits(str(tmp_path)).to_pylist()]
    assert {(each.at.partition, each.offset) for sweep in recent_commits(str(tmp_path)) for each in sweep.commits} == {
        (row["partition"], row["offset"]) for row in rows()
    }
    pieces = SparkJournal(spark, str(tmp_path)).pieces()
    assert [each.name for each in pieces] == ["2-000000000000-000000000003", "0-000000000004-000000000004"]


def _naive(row: dict[str, Any]) -> dict[str, Any]:
    """Spark returns times without a zone, in UTC."""
    return {name: row[name].replace(tzinfo=None) for name in ("committed_at", "read_at")}


def test_offsets_from_before_the_audit_started_over_are_not_current(
    record: Record, rows: Rows, spark: SparkSession, zookeeper: Any, zookeeper_hosts: str, raw: Any, tmp_path: Path
) -> None:
    """Its offsets are not the previous ones of the new ZooKeeper either."""
    plant(raw, {"g/offsets/t/0": b"900", "g/offsets/t/1": b"901"})
    record(zookeeper_hosts)
    with fresh_chroot(zookeeper) as other, lasting_client(other) as client:
        plant(client, {"g/offsets/t/0": b"5"})
        before = datetime.now(UTC)
        record(SourceOptions(zookeeper=other, start_over=True))
        assert [(row["before"], row["offset"]) for row in rows() if row["batch"]] == [(None, 5)]
        standing = offsets_at(spark, str(tmp_path), before).collect()
        assert [(row["partition"], row["offset"]) for row in standing] == [(0, 5)]
        commit(client, "g/offsets/t/0", 6)
        record(other)
    assert rows()[-1]["before"] == 5


def test_a_batch_that_could_not_be_written_is_recorded_by_the_next_run(
    record: Record, rows: Rows, zookeeper_hosts: str, raw: Any, tmp_path: Path
) -> None:
    """The next run includes later commits."""
    plant(raw, {"g/offsets/t/0": b"5", "g/offsets/t/1": b"5"})
    (tmp_path / "commits").touch()
    with pytest.raises((SparkJobError, StorageError), match="could not be written"):
        record(zookeeper_hosts)
    (tmp_path / "commits").unlink()
    commit(raw, "g/offsets/t/0", 6)
    assert record(zookeeper_hosts).commits == 2
    assert [(row["partition"], row["before"], row["offset"]) for row in rows()] == [(1, None, 5), (0, None, 6)]


# Under load

SECONDS = float(os.environ.get("ZKGROUPS_SOAK_SECONDS", "120"))
"""The duration of `make soak` in seconds."""
RATE, SOAK_RATE = 300, 1_000
"""Commits per second. At the lower rate, too, most partitions change between two batches."""


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tick_time=2.0) as server:
        yield server


@pytest.fixture
def committer(server: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Committer]:
    committer = Committer(server.address, SOAK_RATE if request.node.get_closest_marker("soak") else RATE)
    yield committer
    committer.close()


def test_a_restart_of_zookeeper_under_load_loses_no_commit(
    engines: Engines, rows: Rows, server: ZooKeeperServer, committer: Committer
) -> None:
    """The batch that runs when the audit stops is interrupted. tests/audit has the same test of the other engine."""
    with committer, auditing(engines.spark, server.address) as steps:
        steps.wait_for(1)
        server.restart()
        steps.wait_for(2)
    engines.spark(server.address, once=True)
    assert_whole(rows(), committer.standing())


DRIVER = """
import os, signal, sys
from zkgroups.audit import audit
from zkgroups.spark import SourceOptions, run_audit
from zkgroups.spark.audit.journal import SparkJournal
from zkgroups.spark.session import own_session

class Fatal:
    def __init__(self, files):
        self.files, self.left = files, int(sys.argv[1])

    def __getattr__(self, name):
        self.left -= armed
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(self.files, name)

def begin(self, *args, usual=SparkJournal.__init__):
    usual(self, *args)
    self._files = Fatal(self._files)

armed = 0
audit.MERGE_FACTOR = 4
with own_session(master="local[2,4]") as spark:
    run_audit(spark, sys.argv[2], sys.argv[3], once=True)
    armed = 1
    SparkJournal.__init__ = begin
    source = SourceOptions(zookeeper=sys.argv[3], timeout=5.0)
    run_audit(spark, sys.argv[2], source, every=0.1)
"""


def audited_until_killed(calls: int, destination: Path, hosts: str) -> None:
    """Run an audit in a process that is killed after this many calls to the file system."""
    command = [sys.executable, "-c", DRIVER, str(calls), str(destination), hosts]
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


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak(engines: Engines, rows: Rows, server: ZooKeeperServer, committer: Committer, tmp_path: Path) -> None:
    """Run for a long time, with kills at every step of writing, and kills of the server in between."""
    end = time.monotonic() + SECONDS
    with committer:
        for kill in range(1000):
            if time.monotonic() > end:
                break
            audited_until_killed(7 * kill % 97, tmp_path, server.address)
            print(f"{kill + 1} kills, {committer.commits} commits", flush=True)
            with auditing((engines.spark, engines.local)[kill % 2], server.address) as steps:
                steps.wait_for(1)
                server.kill()
                server.start()
                steps.wait_for(2)
    engines.spark(server.address, once=True)
    assert_whole(rows(), committer.standing())
