"""`zkgroups snapshot`: output, exit codes and cleanup.

Starting Spark is slow, so each run checks several things.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups.spark import Table
from zkgroups.testing import Sasl, TcpProxy, ZooKeeperServer

from ..releases import REQUIRED_LOGINS, has
from ..spark.model import Model, appeared, assert_complete, parquet, plant, spoil
from ..spark.processes import descendants, family, wait_until_gone
from ..testing.waiting import eventually
from .conftest import Zkgroups
from .running import COMMAND, Ended, Terminal, environment, run

WITHOUT_JAVA = {"JAVA_HOME": "", "PATH": "/nowhere"}
TIMEOUT = 240.0
SPARK = ("--master", "local[2,4]", "--conf", "spark.ui.enabled=false")
ALICE = ("--digest-user", "alice")


@pytest.fixture
def model(kazoo: KazooClient) -> Model:
    return plant(kazoo, ["billing", "shipping"])


@pytest.fixture
def spoiled(kazoo: KazooClient, model: Model) -> Model:
    """A server with forbidden nodes, some of which only `alice` may read."""
    spoil(model, kazoo)
    return model


def watched(*arguments: Any, hosts: str, **env: str) -> tuple[Ended, str]:
    """Run the command; return the command lines of all its processes, which are killed at the end."""
    with subprocess.Popen(
        [COMMAND, "snapshot", *arguments],
        env=environment({"ZKGROUPS_ZOOKEEPER": hosts} | env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            programs = family(process, TIMEOUT)
            out, err = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
    wait_until_gone(programs, timeout=30.0)
    return Ended(process.returncode, out, err), "\n".join(programs.values())


# Without Spark


@pytest.mark.zookeeper
def test_a_dry_run_counts_nodes_without_java(
    zkgroups: Zkgroups, spoiled: Model, zookeeper_hosts: str, tmp_path: Path
) -> None:
    ended = zkgroups("snapshot", tmp_path / "data", "--dry-run", "-o", "json", **WITHOUT_JAVA)
    assert (ended.code, ended.err) == (9, "")
    numbers = {"groups": 3, "topics": 6, "offsets": 23, "owners": 6, "members": 2, "forbidden": 2}
    assert ended.json == {"schema": 1, "surveys": [{"zookeeper": zookeeper_hosts} | numbers]}
    assert not (tmp_path / "data").exists()

    some = ("snapshot", tmp_path, "--dry-run", "--groups", "bil.*", "--topics", "t1", "--cluster", "blue")
    table = zkgroups(*some, **WITHOUT_JAVA)
    assert (table.code, table.err) == (0, "")
    assert [line.split() for line in table.lines] == [
        ["ZOOKEEPER", "GROUPS", "TOPICS", "OFFSETS", "OWNERS", "MEMBERS", "FORBIDDEN"],
        ["blue", "1", "1", "5", "1", "1", "0"],
    ]
    assert zkgroups(*some, "-o", "csv", "--no-headers", **WITHOUT_JAVA).out == "blue,1,1,5,1,1,0\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--groups", "("), "groups is '(', but it is not a regular expression"),
        (("--topics", "*"), "topics is '*', but it is not a regular expression"),
        (("--parallelism", "0"), "--parallelism"),
        (("--conf", "spark.x"), "'spark.x' is not like KEY=VALUE"),
        (("--digest-user", "alice"), "the user 'alice' needs a password"),
        (("more",), "unexpected extra argument"),
    ],
    ids=str,
)
def test_wrong_usage_is_a_sentence_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    ended = run("snapshot", tmp_path, "-z", "127.0.0.1:1", *arguments, env=WITHOUT_JAVA)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert len(ended.err.splitlines()) <= 2


def test_an_unreachable_zookeeper_is_exit_code_7_before_spark_starts(tmp_path: Path) -> None:
    before = time.monotonic()
    ended = run("snapshot", tmp_path / "data", "-z", "127.0.0.1:1", "--timeout", "0.5", env=WITHOUT_JAVA)
    assert time.monotonic() - before < 10
    assert (ended.code, ended.out) == (7, "")
    assert ended.err.startswith("zkgroups: could not connect to 127.0.0.1:1 within 0.5 s: ")
    assert not (tmp_path / "data").exists()


@pytest.mark.zookeeper
def test_a_missing_chroot_is_exit_code_3(zkgroups: Zkgroups, zookeeper_hosts: str, tmp_path: Path) -> None:
    ended = zkgroups("snapshot", tmp_path, "-z", f"{zookeeper_hosts}/nowhere", **WITHOUT_JAVA)
    assert (ended.code, ended.out) == (3, "")
    assert "/nowhere" in ended.err


@pytest.mark.zookeeper
def test_a_wrong_password_is_exit_code_6(tmp_path: Path) -> None:
    with ZooKeeperServer(sasl=Sasl({"alice": "sesame"}, enforce=has(REQUIRED_LOGINS))) as server:
        arguments = ("snapshot", tmp_path, "-z", server.address, "--sasl-user", "alice", "--dry-run")
        wrong = run(*arguments, env={"ZKGROUPS_PASSWORD": "wrong"} | WITHOUT_JAVA)
        assert (wrong.code, wrong.out) == (6, "")
        right = run(*arguments, env={"ZKGROUPS_PASSWORD": "sesame"} | WITHOUT_JAVA)
    assert right.code == 3
    assert "neither /consumers nor /brokers" in right.err


@pytest.mark.parametrize("module", ["pyspark", "pyarrow", "py4j"])
def test_a_missing_spark_is_reported_with_the_command_to_install_it(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('No module', name='{module}')")
    ended = run("snapshot", tmp_path, "-z", "127.0.0.1:1", env={"PYTHONPATH": str(tmp_path)})
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "zkgroups: this needs Spark: pip install 'zkgroups[spark]'\n"


@pytest.mark.zookeeper
@pytest.mark.spark
@pytest.mark.parametrize("home", ["", "/nowhere"])
@pytest.mark.usefixtures("cluster")
def test_a_missing_java_is_reported_with_its_version(zkgroups: Zkgroups, tmp_path: Path, home: str) -> None:
    for tool in ("bash", "dirname", "sh"):
        (tmp_path / tool).symlink_to(f"/bin/{tool}" if Path(f"/bin/{tool}").exists() else f"/usr/bin/{tool}")
    ended = zkgroups("snapshot", tmp_path / "data", "-q", JAVA_HOME=home, PATH=str(tmp_path))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("zkgroups: Spark needs Java 17 or newer: ")
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "data").exists()


# With Spark


def with_spark(function: Any) -> Any:
    for mark in (pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.timeout(2 * TIMEOUT)):
        function = mark(function)
    return function


@with_spark
def test_a_snapshot_with_a_password_prints_json_without_it(
    zookeeper_hosts: str, spoiled: Model, tmp_path: Path
) -> None:
    """With the password no node is forbidden, and Spark's log is shown on request."""
    (tmp_path / "password").write_text("sesame\n")
    options = ("--cluster", "blue", "--groups", "odd|billing", "--topics", "t.*", "--parallelism", "3", *SPARK)
    who = (*ALICE, "--password-file", tmp_path / "password")
    ended, programs = watched(tmp_path / "data", *options, *who, "-v", "-o", "json", hosts=zookeeper_hosts)
    [taken] = ended.json["snapshots"]
    assert (ended.code, list(ended.json)) == (0, ["schema", "snapshots"])
    name = taken.pop("name")
    assert taken.pop("seconds") > 0
    without_lag = dict.fromkeys(("lag", "unknown_lags", "log_ends_problem"))
    numbers = {"groups": 2, "offsets": 13, "owners": 4, "members": 1, "problems": 2, "forbidden": 0}
    assert taken == {"destination": f"file:{tmp_path}/data", "restored_since": None, **without_lag} | numbers
    rows = parquet(tmp_path / "data", Table.OFFSETS, name)
    assert {(row["cluster"], row["group"]) for row in rows} == {("blue", "odd"), ("blue", "billing")}
    assert "zkgroups: INFO" in ended.err
    assert "Using Spark's default log4j profile" in ended.err
    assert "Traceback" not in ended.err
    assert "pyspark.daemon" in programs
    assert "spark.ui.enabled=false" in programs
    assert "sesame" not in ended.err + ended.out + programs


@pytest.mark.soak
@with_spark
def test_quiet_prints_only_data_on_a_terminal(zookeeper_hosts: str, model: Model, tmp_path: Path) -> None:
    env = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "ZKGROUPS_PASSWORD": "sesame"}
    arguments = ("snapshot", tmp_path, *SPARK, *ALICE, "-q", "-o", "csv", "--no-headers")
    with Terminal(*arguments, env=env) as terminal:
        ended = terminal.end()
    [name] = assert_complete(model, tmp_path)
    [line] = ended.out.splitlines()
    numbers = "{groups},{offsets},{owners},{members},{problems},{forbidden}".format(**model.counts())
    assert (ended.code, line.startswith(f"{name},{numbers},")) == (0, True)


@pytest.fixture
def slow(zookeeper: Any, zookeeper_hosts: str) -> Iterator[str]:
    """A slow connection to ZooKeeper, which leaves time for checks."""
    with TcpProxy(zookeeper.address) as proxy:
        proxy.delay(0.1)
        yield f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"


def wait_for_the_job(process: subprocess.Popen[Any], destination: Path) -> list[int]:
    """Wait until tasks write; return all processes of the run."""
    written = "_unfinished/*/table=offsets/_temporary/0/_temporary/*/*.parquet"
    assert eventually(lambda: appeared(destination, written) or process.poll() is not None, timeout=TIMEOUT)
    assert process.poll() is None
    return descendants(process.pid)


@pytest.mark.soak  # like the next one
@with_spark
def test_ctrl_c_on_a_terminal_leaves_nothing(slow: str, model: Model, tmp_path: Path) -> None:
    arguments = ("snapshot", tmp_path, *SPARK, "-z", slow)
    with Terminal(*arguments) as terminal:
        for step in ("starting", "writing"):
            terminal.wait_for(step)
        others = wait_for_the_job(terminal.process, tmp_path)
        terminal.type("\x03")
        ended = terminal.end()
        wait_until_gone(others, timeout=30.0)
    assert ended.code == 130
    assert ended.out.endswith("zkgroups: interrupted\n")
    assert "━" in ended.out
    assert not re.search("Traceback|WARN|Stage", ended.out), "neither Spark nor Java has a word in it"
    assert list(tmp_path.glob("*/*")) == []


@pytest.mark.soak  # tests/spark/snapshots/test_snapshot_failures.py sends a signal to a running Spark
@with_spark
@pytest.mark.parametrize("everybody", [False, True])
def test_sigterm_leaves_nothing(slow: str, model: Model, tmp_path: Path, everybody: bool) -> None:
    """A signal to the whole process group also stops Java, which then cleans up nothing.

    A signal to the command alone has the effect of Ctrl-C, see tests/spark/snapshots/test_snapshot_failures.py.
    """
    command = [COMMAND, "snapshot", tmp_path, *SPARK, "-z", slow]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(), start_new_session=True, **pipes) as process:
        try:
            others = wait_for_the_job(process, tmp_path)
            if everybody:
                os.killpg(process.pid, signal.SIGTERM)
            else:
                process.terminate()
            out, err = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
    wait_until_gone(others, timeout=30.0)
    assert (process.returncode, out) == (143, "")
    assert err.splitlines()[1:] == ["zkgroups: terminated"]
    assert list(tmp_path.glob("table=*/*")) == []
    assert everybody or list(tmp_path.glob("*/*")) == []
