"""Snapshots without Spark. tests/spark/snapshots runs the tests of their contents with both engines."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lasting import lasting_client
from zkgroups.core.tables import Table
from zkgroups.snapshots.local_snapshot import take_snapshot
from zkgroups.storage.files import LocalFiles
from zkgroups.storage.snapshot_folder import SnapshotFolder

from ..cli.running import environment, run
from ..spark.model import Model, assert_complete, plant
from ..spark.snapshots.runs import left

WITHOUT_JAVA = {"JAVA_HOME": "", "PATH": "/nowhere"}
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def kazoo(zookeeper_hosts: str) -> Iterator[Any]:
    with lasting_client(zookeeper_hosts) as client:
        yield client


@pytest.fixture
def model(kazoo: Any) -> Model:
    return plant(kazoo, ["billing", "shipping"])


def complete(destination: Path) -> list[str]:
    return SnapshotFolder(LocalFiles(), str(destination)).snapshots()


@pytest.mark.zookeeper
def test_a_run_killed_before_any_change_of_the_disk_leaves_a_whole_snapshot_or_none(
    zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.snapshots.killed_runs", zookeeper_hosts, str(tmp_path)], check=True, timeout=120
    )
    destinations = sorted(tmp_path.iterdir(), key=lambda folder: int(folder.name))
    assert len(destinations) > 15, "every change was tried"
    found = [len(complete(each)) for each in destinations]
    assert found == sorted(found), "it appears once"
    assert found[-2:] == [1, 1], "the last change only deletes the empty folder"
    for each in destinations:
        assert_complete(model, each)
    half_written = destinations[found.index(1) - 1]
    taken = take_snapshot(str(half_written), zookeeper_hosts)
    assert complete(half_written) == [taken.name]


@pytest.mark.zookeeper
def test_a_signal_during_a_run_leaves_nothing(zookeeper_hosts: str, model: Model, tmp_path: Path) -> None:
    def told(step: str) -> None:
        if step == "moving into place":
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        take_snapshot(str(tmp_path), zookeeper_hosts, on_progress=told)
    assert left(tmp_path) == []


@pytest.mark.zookeeper
def test_the_local_commands_import_neither_spark_nor_pandas(zookeeper_hosts: str, model: Model, tmp_path: Path) -> None:
    program = """
import sys
from zkgroups_cli.main import run
assert run(["snapshot", sys.argv[1], "--engine", "local"]) == 0
assert run(["snapshots", "list", sys.argv[1], "-q", "-o", "name"]) == 0
assert "pyarrow.dataset" not in sys.modules  # it takes long to import, and only `diff` joins tables
assert run(["snapshots", "diff", sys.argv[1], "latest", "latest", "-q", "--engine", "local"]) == 0
assert run(["snapshots", "verify", sys.argv[1], "-q", "--engine", "local"]) == 0
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"pyspark", "py4j", "pandas"}, loaded
assert not {name for name in sys.modules if name.startswith("zkgroups.spark")}
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment({"ZKGROUPS_ZOOKEEPER": zookeeper_hosts} | WITHOUT_JAVA),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    [name] = complete(tmp_path)
    assert name in done.stdout
    counts = model.counts()
    assert done.stdout.splitlines()[1].split()[1:5] == [str(counts[key]) for key in ("groups", *Table)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("s3a://bucket/groups",),
            "--engine local needs a folder on this machine: use --engine spark for s3a://bucket",
        ),
        (("hdfs:///groups", "--dry-run"), "use --engine spark for hdfs:///groups"),
        (("d", "--master", "local[2]"), "--master and --conf need --engine spark"),
        (("d", "--shared-file-system"), "--master and --conf need --engine spark"),
        (("d", "--parallelism", "2"), "--parallelism needs --engine spark"),
        (("d", "--engine", "auto"), "'auto' is not one of 'local', 'spark'"),
    ],
    ids=lambda each: each[-1],
)
def test_what_needs_spark_is_refused(arguments: tuple[str, ...], said: str) -> None:
    ended = run("snapshot", "-z", NOWHERE, "--engine", "local", *arguments, env=WITHOUT_JAVA)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


def test_a_missing_arrow_is_reported_with_the_command_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError('No module', name='pyarrow')")
    for more in (("--engine", "local"), ("--dry-run",)):
        ended = run("snapshot", tmp_path / "data", "-z", NOWHERE, *more, env={"PYTHONPATH": str(tmp_path)})
        assert (ended.code, ended.out) == (1, "")
        assert ended.err == "zkgroups: this command needs Arrow: pip install 'zkgroups[snapshots]'\n"
    assert not (tmp_path / "data").exists()
