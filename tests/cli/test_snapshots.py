"""`zkgroups snapshot`, also of the files of a server, `zkgroups snapshots` and `zkgroups audit`."""

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
from zkgroups.audit.audit import run_audit

from ..datadir.small_directories import Small, make, records
from ..spark.model import Model, plant, spoil
from .conftest import Zkgroups
from .running import Ended, Terminal, environment, run

TIMEOUT = 240.0


@pytest.fixture
def model(kazoo: KazooClient) -> Model:
    return plant(kazoo, ["billing", "shipping"])


@pytest.fixture
def spoiled(kazoo: KazooClient, model: Model) -> Model:
    """A server with forbidden nodes, some of which only `alice` may read."""
    spoil(model, kazoo)
    return model


# Without Spark


@pytest.mark.zookeeper
def test_a_dry_run_counts_nodes_without_java(
    zkgroups: Zkgroups, spoiled: Model, zookeeper_hosts: str, tmp_path: Path
) -> None:
    ended = zkgroups("snapshot", tmp_path / "data", "--dry-run", "-o", "json")
    assert (ended.code, ended.err) == (9, "")
    numbers = {"groups": 3, "topics": 6, "offsets": 23, "owners": 6, "members": 2, "forbidden": 2}
    assert ended.json == {"schema": 1, "surveys": [{"zookeeper": zookeeper_hosts} | numbers]}
    assert not (tmp_path / "data").exists()

    some = ("snapshot", tmp_path, "--dry-run", "--groups", "bil.*", "--topics", "t1", "--cluster", "blue")
    table = zkgroups(*some)
    assert (table.code, table.err) == (0, "")
    assert [line.split() for line in table.lines] == [
        ["ZOOKEEPER", "GROUPS", "TOPICS", "OFFSETS", "OWNERS", "MEMBERS", "FORBIDDEN"],
        ["blue", "1", "1", "5", "1", "1", "0"],
    ]
    assert zkgroups(*some, "-o", "csv", "--no-headers").out == "blue,1,1,5,1,1,0\n"


@pytest.mark.zookeeper
@pytest.mark.spark
@pytest.mark.usefixtures("cluster")
def test_a_missing_java_is_reported_with_its_version(zkgroups: Zkgroups, tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "sh"):
        (tmp_path / tool).symlink_to(f"/bin/{tool}" if Path(f"/bin/{tool}").exists() else f"/usr/bin/{tool}")
    ended = zkgroups("snapshot", tmp_path / "data", "-q", "--engine", "spark", JAVA_HOME="/nowhere", PATH=str(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("zkgroups: Spark needs Java 17 or newer: ")
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "data").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make(tmp_path_factory.mktemp("whole") / "data", None)


@pytest.fixture
def small(whole: Small, tmp_path: Path) -> Small:
    """A copy of the directory for this test."""
    return whole.copy(tmp_path / "data")


def dry_run(folder: Path, *arguments: Any) -> Ended:
    return run("snapshot", folder / "DEST", "--dry-run", "--from-data-dir", folder, *arguments)


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
    ended = run("snapshot", tmp_path, "-z", "127.0.0.1:1", "--zxid", "7")
    assert (ended.code, ended.out) == (2, "")
    assert "it needs a dataDir" in ended.err


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("list", "d"), "local, because it is enough for this work on this machine"),
        (("diff", "d", "--engine", "local"), "local, because --engine local was given"),
        (("verify", "s3a://d"), "spark, because s3a://d is not on this machine"),
        (("verify", "d", "--conf", "a=b"), "spark, because --master or --conf was given"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_the_engine_and_the_reason_are_shown_with_v(tmp_path: Path, command: tuple[str, ...], why: str) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('No module', name='pyspark')")
    ended = run("snapshots", *command, "-v", env={"PYTHONPATH": str(tmp_path)})
    assert f"Engine: {why}.\n" in ended.err
    assert ended.code == (2 if why.startswith("spark") else 3)


@pytest.mark.zookeeper
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


@pytest.mark.zookeeper
def test_show_starts_spark_for_many_commits(
    kazoo: KazooClient, zookeeper_hosts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kazoo.create("/consumers/billing/offsets/orders/0", b"5", makepath=True)
    run_audit(str(tmp_path), zookeeper_hosts, once=True)
    for few, is_few in ((0, False), (1, True)):
        monkeypatch.setattr("cli.snapshots.audit._FEW_COMMITS", few)
        assert _has_few_commits(str(tmp_path)) is is_few
    assert _has_few_commits(str(tmp_path / "nowhere"))


@pytest.mark.zookeeper
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


def commits(destination: Path) -> list[tuple[Any, Any]]:
    files = sorted(destination.glob("commits/*/*.parquet"))
    found = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return [(row["before"], row["offset"]) for row in sorted(found, key=lambda row: row["batch"])]
