"""Audits: both engines record every current offset once, and continue each other's audits. Spark reads them."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from pyspark.sql import SparkSession

from tests.datadir.small_directories import named
from tests.lasting import lasting_client
from zkgroups import Registry, TopicPartition
from zkgroups.audit.audit import run_audit as run_local_audit
from zkgroups.audit.journal import Journal
from zkgroups.audit.recorded_commits import offsets_at as offsets_here
from zkgroups.audit.recorded_commits import read_commits
from zkgroups.exceptions import InvalidOptionError, NotFoundError, RefusedError
from zkgroups.spark import (
    AuditResult,
    AuditStep,
    HistoryOptions,
    HistoryTable,
    SourceOptions,
    offsets_at,
    read_audit,
    run_audit,
)
from zkgroups.spark.stream import StreamReader
from zkgroups.testing import KafkaBroker, Op, TcpProxy, ZooKeeperServer

from ..cli.running import run
from .conftest import plant

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

Record = Callable[..., AuditResult]
Rows = Callable[[], list[dict[str, Any]]]


@dataclass(frozen=True)
class Engines:
    """The functions that record with each engine, by name."""

    spark: Callable[..., AuditResult]
    local: Callable[..., AuditResult]


@pytest.fixture
def engines(spark: SparkSession, tmp_path: Path) -> Engines:
    """Both engines, for one destination."""
    return Engines(partial(run_audit, spark, str(tmp_path)), partial(run_local_audit, str(tmp_path)))


@pytest.fixture(params=["spark", "local"])
def record(request: pytest.FixtureRequest, engines: Engines) -> Record:
    """Record one batch with each engine. Spark reads both."""
    return partial(getattr(engines, request.param), once=True)


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Read all commits with Spark, in the order of batches and transactions."""

    def rows() -> list[dict[str, Any]]:
        return [row.asDict() for row in read_audit(spark, str(tmp_path)).orderBy("batch", "zxid").collect()]

    return rows


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

    finished = Journal.at(str(tmp_path)).finished_batch()
    assert finished is not None

    def standing(ms: int, group: str | None = None) -> list[tuple[Any, ...]]:
        at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
        read = offsets_at(spark, str(tmp_path), at, group).orderBy("group", "partition")
        assert read.columns == ["group", "topic", "partition", "offset", "committed_at"]
        found = [tuple(row)[:4] for row in read.collect()]
        here = offsets_here(Journal.at(str(tmp_path)), at, None if group is None else [group])
        assert sorted(tuple(row.values())[:4] for row in here.to_pylist()) == found
        return found

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
    pieces = Journal.at(str(tmp_path)).pieces()
    assert [each.name for each in pieces] == ["2-000000000000-000000000003", "0-000000000004-000000000004"]


def _naive(row: dict[str, Any]) -> dict[str, Any]:
    """Spark returns times without a zone, in UTC."""
    return {name: row[name].replace(tzinfo=None) for name in ("committed_at", "read_at")}


def test_commits_to_forbidden_nodes_are_recorded_once_readable(
    record: Record, rows: Rows, zookeeper_hosts: str, raw: Any
) -> None:
    """A forbidden node, and a topic that may not be listed. Other offsets are not recorded twice."""
    plant(raw, {"g/offsets/t/0": b"5", "g/offsets/t/1": b"6", "h/offsets/t/0": b"7", "i/offsets/t/0": b"8"})
    closed = ("/consumers/g/offsets/t/0", "/consumers/h/offsets/t")
    raw.add_auth("digest", "ops:secret")
    told: list[AuditStep] = []

    def look() -> AuditStep:
        done = record(zookeeper_hosts, on_progress=told.append)
        assert done.forbidden == told[-1].forbidden
        return told[-1]

    assert look() == AuditStep(0, 4)
    for path in closed:
        raw.set_acls(path, [make_digest_acl("ops", "secret", all=True)])
    raw.set("/consumers/g/offsets/t/0", b"15")
    raw.set("/consumers/h/offsets/t/0", b"17")
    assert look() == AuditStep(1, commits=0, forbidden=2)
    raw.set("/consumers/g/offsets/t/1", b"16")
    assert look() == AuditStep(2, commits=1, forbidden=2)
    for path in closed:
        raw.set_acls(path, OPEN_ACL_UNSAFE)
    assert look() == AuditStep(3, commits=2)
    assert [tuple(row[name] for name in ("group", "partition", "before", "offset")) for row in rows()[4:]] == [
        ("g", 1, 6, 16),
        ("g", 0, 5, 15),
        ("h", 0, 7, 17),
    ]


def test_audits_streams_and_reads_from_a_transaction_have_log_ends(
    spark: SparkSession, kafka_broker: KafkaBroker, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, partitions=2)
    kafka_broker.write(topic, 0, 9)
    source = SourceOptions(zookeeper=zookeeper_hosts, bootstrap_servers=kafka_broker.address, parallelism=2)
    at, offsets = TopicPartition(topic, 0), registry.group("billing").offsets
    offsets.set(at, 2)
    first = offsets.fetch(at)
    assert run_audit(spark, str(tmp_path), source, once=True).log_ends_problem is None
    offsets.set(at, 9)
    offsets.set(TopicPartition(topic, 1), 0)
    run_audit(spark, str(tmp_path), source, once=True)
    assert first is not None

    def shown(rows: Any) -> list[tuple[Any, ...]]:
        return [
            tuple(row) for row in rows.select("partition", "offset", "log_start", "log_end").sort("offset").collect()
        ]

    later = [(1, 0, 0, 0), (0, 9, 0, 9)]
    assert shown(read_audit(spark, str(tmp_path)).where("before is null or before = 2")) == [
        later[0],
        (0, 2, 0, 9),
        later[1],
    ]
    options = source.as_text() | {"startingZxid": str(first.zxid)}
    assert shown(spark.read.format("zkgroups").options(**options).load()) == later
    stream = StreamReader(source)
    begin, end = stream.initialOffset(), stream.latestOffset()
    streamed = [
        row for share in stream.partitions(begin, end) for batch in stream.read(share) for row in batch.to_pylist()
    ]
    stream.stop()
    assert sorted((row["offset"], row["log_end"]) for row in streamed) == [(0, 0), (9, 9)]


# With transaction logs

PATH = "/consumers/g/offsets/t/0"
OF_ANOTHER = "/consumers/h/offsets/t/0"


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An audit that has read every 40th commit, up to 240, and a data directory without its first logs, up to 250.

    The audit is of one group, and another group commits, too.
    """
    folder = tmp_path_factory.mktemp("audited")
    options = ("-Dzookeeper.snapCount=32", "-Dzookeeper.preAllocSize=64")
    with ZooKeeperServer(data_dir=folder / "data", jvm_options=options) as server:
        with lasting_client(server.address) as client:
            client.create(PATH, b"0", makepath=True)
            client.create(OF_ANOTHER, b"0", makepath=True)
            source = SourceOptions(zookeeper=server.address, groups="g")
            for offset in range(251):
                client.set(PATH, b"%d" % offset)
                if offset % 40 == 0:
                    run_audit(spark, str(folder / "audit"), source, once=True)
                    client.set(OF_ANOTHER, b"7")
        server.kill()
    for log in sorted((folder / "data" / "version-2").glob("log.*"), key=named)[:4]:
        log.unlink()
    return folder / "audit", folder / "data"


def test_commits_before_the_logs_come_from_the_audit_and_later_ones_from_the_logs(
    spark: SparkSession, audited: tuple[Path, Path]
) -> None:
    audit, data = audited
    first_log = min(map(named, (data / "version-2").glob("log.*")))
    recorded = [(row["offset"], row["zxid"]) for row in read_audit(spark, str(audit)).collect()]
    assert sorted(offset for offset, _ in recorded) == list(range(0, 241, 40))
    logs = HistoryOptions(table=HistoryTable.COMMITS, data_dir=str(data))
    found = read_audit(spark, str(audit), logs=logs)
    assert found.columns == read_audit(spark, str(audit)).columns
    rows = found.orderBy("zxid").collect()
    older = sorted(offset for offset, zxid in recorded if zxid < first_log)
    assert len(older) > 1
    first = rows[len(older)]["offset"]
    assert [row["offset"] for row in rows] == [*older, *range(first, 251)]
    assert older[-1] < first <= older[-1] + 40
    assert {row["layout"] for row in rows} == {"legacy"}
    assert [row["batch"] is None for row in rows] == [row["zxid"] >= first_log for row in rows]


def test_an_audit_of_another_layout_is_not_joined(
    spark: SparkSession, audited: tuple[Path, Path], tmp_path: Path
) -> None:
    audit, data = audited
    storm = shutil.copytree(audit, tmp_path / "audit")
    description = json.loads((storm / "_audit.json").read_text())
    (storm / "._audit.json.crc").unlink()
    (storm / "_audit.json").write_text(json.dumps(description | {"layout": "storm:/kafkastorm"}))
    with pytest.raises(RefusedError, match="has the layout storm:/kafkastorm, which is not read from logs"):
        read_audit(spark, str(storm), logs=HistoryOptions(table=HistoryTable.COMMITS, data_dir=str(data)))


@pytest.mark.soak  # starts another Spark
def test_the_command_prints_them_in_order(audited: tuple[Path, Path]) -> None:
    audit, data = audited
    ended = run("audit", audit, "--show", "--from-data-dir", data, "--groups", "g", "-o", "csv", "--no-headers")
    assert ended.code == 0, ended.err
    offsets = [int(line.split(",")[5]) for line in ended.lines]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 250
    assert len(offsets) > 100


def test_an_audit_ends_when_it_is_stopped(engines: Engines, rows: Rows, zookeeper_hosts: str, raw: Any) -> None:
    """It does not wait for the next batch, which the next run records."""
    plant(raw, {"g/offsets/t/0": b"5"})
    stop, told = Event(), list[AuditStep]()

    def on_progress(step: AuditStep) -> None:
        told.append(step)
        stop.set()

    done = engines.spark(zookeeper_hosts, every=3600.0, stop=stop, on_progress=on_progress)
    assert (done.batches, done.commits, told) == (1, 1, [AuditStep(0, 1)])
    commit(raw, "g/offsets/t/0", 6)
    assert engines.spark(zookeeper_hosts, once=True).commits == 1
    assert [row["offset"] for row in rows()] == [5, 6]
