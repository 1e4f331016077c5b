"""`zkgroups audit`: output, exit codes and resumption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from zkgroups import Registry, TopicPartition

from ..spark.processes import descendants, wait_until_gone
from .running import Terminal, run

SPARK = ("--master", "local[1,4]")
TIMEOUT = 240.0

pytestmark = pytest.mark.zookeeper


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--every", "-1"), 2, "-1 is not a number of seconds"),
        (("--from-data-dir", "/backup"), 2, "--from-data-dir needs --show"),
        (("--groups", "("), 2, "groups is '(', but it is not a regular expression"),
        (("--timeout", "0.5"), 7, "could not connect to 127.0.0.1:1 within 0.5 s"),
    ],
    ids=str,
)
def test_invalid_requests_are_refused_before_spark_starts(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended = run("audit", tmp_path / "data", "-z", "127.0.0.1:1", *arguments, env={"JAVA_HOME": "", "PATH": "/nowhere"})
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
    assert not (tmp_path / "data").exists()


@pytest.mark.soak  # starts Spark; the audit itself is tested in tests/spark/test_audit.py
@pytest.mark.spark
@pytest.mark.timeout(2 * TIMEOUT)
def test_ctrl_c_stops_an_audit_and_leaves_no_process(registry: Registry, zookeeper_hosts: str, tmp_path: Path) -> None:
    offsets = registry.group("billing").offsets
    offsets.set(TopicPartition("orders", 0), 5)
    with Terminal("audit", tmp_path, "-z", zookeeper_hosts, *SPARK, "--every", "0.1", "-o", "csv") as terminal:
        terminal.wait_for("batch 0: 1 commits, 1 since")
        offsets.set(TopicPartition("orders", 0), 6)
        terminal.wait_for("2 since")
        others = descendants(terminal.process.pid)
        terminal.type("\x03")
        ended = terminal.end()
        wait_until_gone(others, timeout=15.0)
    assert ended.code == 130
    assert "zkgroups: interrupted\n" in ended.out
    assert f",2,0,0,file:{tmp_path}\n" in ended.out
    assert not any(word in ended.out for word in ("Traceback", "WARN", "ERROR"))
    assert commits(tmp_path) == [(None, 5), (5, 6)]


def commits(destination: Path) -> list[tuple[Any, Any]]:
    files = sorted(destination.glob("commits/*/*.parquet"))
    found = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return [(row["before"], row["offset"]) for row in sorted(found, key=lambda row: row["batch"])]


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(4 * TIMEOUT)
def test_once_records_one_batch_and_show_prints_it(kazoo: KazooClient, zookeeper_hosts: str, tmp_path: Path) -> None:
    kazoo.create("/consumers/billing/offsets/orders/0", b"5", makepath=True)
    kazoo.create("/consumers/shipping/offsets/orders/0", b"x", makepath=True)
    once = ("audit", tmp_path, *SPARK, "-z", zookeeper_hosts, "--once", "-o", "json")
    first = run(*once)
    assert first.code == 0, first.err
    destination = f"file:{tmp_path}"
    audited = {"destination": destination, "batches": 1, "commits": 2, "problems": 1, "forbidden": 0}
    assert first.json["audits"] == [audited]
    assert "1 of 2 commits are malformed" in first.err
    kazoo.set("/consumers/billing/offsets/orders/0", b"7")
    kazoo.set_acls("/consumers/shipping/offsets/orders/0", [make_digest_acl("ops", "secret", all=True)])
    second = run(*once)
    assert second.code == 9, second.err
    assert [second.json["audits"][0][name] for name in ("commits", "forbidden")] == [1, 1]
    assert "batch 1: 1 forbidden nodes\n" in second.err
    shown = run("audit", tmp_path, "--show", *SPARK, "--groups", "bill.*", "-o", "json")
    found = [(row["group"], row["before"], row["offset"], row["commit_count"]) for row in shown.json["commits"]]
    assert found == [("billing", None, 5, 0), ("billing", 5, 7, 1)]
