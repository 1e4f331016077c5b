"""`zkgroups audit`: output, exit codes and resumption."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from cli.snapshots.audit import _has_few_commits
from zkgroups import Registry, TopicPartition
from zkgroups.audit.local_audit import run_audit

from ..spark.processes import descendants, wait_until_gone
from .running import Ended, Terminal, environment, run

SPARK = ("--master", "local[1,4]")
TIMEOUT = 240.0

pytestmark = pytest.mark.zookeeper


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--every", "-1"), 2, "-1 is not a number of seconds"),
        (("--from-data-dir", "/backup"), 2, "--from-data-dir needs --show"),
        (("--chroot", "/x"), 2, "--chroot needs --from-data-dir"),
        (("--data-log-dir", "/backup"), 2, "--data-log-dir needs --from-data-dir"),
        (("--show", "--chroot", "/x"), 2, "--chroot needs --from-data-dir"),
        (("--show", "--once"), 2, "--once does nothing with --show"),
        (("--show", "--start-over"), 2, "--start-over does nothing with --show"),
        (("--show", "--every", "10"), 2, "--every does nothing with --show"),
        (("--show", "--parallelism", "2"), 2, "--parallelism does nothing with --show"),
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("s3a://bucket/audit",), "--engine local needs a folder on this machine: use --engine spark for s3a://bucket"),
        (("s3a://bucket/audit", "--show"), "--engine local needs a folder on this machine"),
        (("d", "--master", "local[2]"), "--master and --conf need --engine spark"),
        (("d", "--parallelism", "2"), "--parallelism needs --engine spark"),
    ],
    ids=lambda each: each[-1],
)
def test_what_needs_spark_is_refused(arguments: tuple[str, ...], said: str) -> None:
    ended = run("audit", "-z", "127.0.0.1:1", "--engine", "local", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


def test_once_records_one_batch_and_show_prints_it_without_spark(
    kazoo: KazooClient, zookeeper_hosts: str, tmp_path: Path
) -> None:
    kazoo.create("/consumers/billing/offsets/orders/0", b"5", makepath=True)
    kazoo.create("/consumers/shipping/offsets/orders/0", b"x", makepath=True)
    program = """
import sys
from zkgroups_cli.main import run
code = run(sys.argv[1:])
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"pyspark", "py4j", "pandas"}, loaded
assert not {"pyarrow.dataset", "pyarrow.acero"} & sys.modules.keys()  # they take long to import
sys.exit(code)
"""

    def zkgroups(*arguments: str | Path) -> Ended:
        command = [sys.executable, "-c", program, "audit", tmp_path, *arguments, "-o", "json"]
        env = environment({"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "JAVA_HOME": "", "PATH": "/nowhere"})
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT)
        return Ended(done.returncode, done.stdout, done.stderr)

    once = ("--once", "--engine", "local")
    first = zkgroups(*once)
    assert first.code == 0, first.err
    destination = f"file:{tmp_path}"
    audited = {"destination": destination, "batches": 1, "commits": 2, "problems": 1, "forbidden": 0}
    assert first.json["audits"] == [audited | {"log_ends_problem": None}]
    assert "1 of 2 commits are malformed" in first.err
    kazoo.set("/consumers/billing/offsets/orders/0", b"7")
    kazoo.set_acls("/consumers/shipping/offsets/orders/0", [make_digest_acl("ops", "secret", all=True)])
    second = zkgroups(*once)
    assert second.code == 9, second.err
    assert [second.json["audits"][0][name] for name in ("commits", "forbidden")] == [1, 1]
    assert "batch 1: 1 forbidden nodes\n" in second.err
    for engine in ("auto", "local"):
        shown = zkgroups("--show", "--groups", "bill.*", "--engine", engine)
        found = [(row["group"], row["before"], row["offset"], row["commit_count"]) for row in shown.json["commits"]]
        assert found == [("billing", None, 5, 0), ("billing", 5, 7, 1)]
    assert zkgroups("--show", "--topics", "refunds").json["commits"] == []


def test_show_starts_spark_for_many_commits(
    kazoo: KazooClient, zookeeper_hosts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kazoo.create("/consumers/billing/offsets/orders/0", b"5", makepath=True)
    run_audit(str(tmp_path), zookeeper_hosts, once=True)
    for few, is_few in ((0, False), (1, True)):
        monkeypatch.setattr("cli.snapshots.audit._FEW_COMMITS", few)
        assert _has_few_commits(str(tmp_path)) is is_few
    assert _has_few_commits(str(tmp_path / "nowhere"))


def test_ctrl_c_stops_an_audit_in_this_process(registry: Registry, zookeeper_hosts: str, tmp_path: Path) -> None:
    registry.group("billing").offsets.set(TopicPartition("orders", 0), 5)
    options = ("--engine", "local", "--every", "0.1", "-o", "csv", "--no-headers")
    with Terminal("audit", tmp_path, "-z", zookeeper_hosts, *options) as terminal:
        terminal.wait_for("batch 0: 1 commits, 1 since")
        terminal.type("\x03")
        ended = terminal.end()
    assert ended.code == 130
    assert "zkgroups: interrupted\n" in ended.out
    assert f",1,0,0,file:{tmp_path}\n" in ended.out
    assert commits(tmp_path) == [(None, 5)]


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
