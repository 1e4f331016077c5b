"""SIGKILL at any moment to any process that takes part in a snapshot.

No partial snapshot is ever visible, neither to zkgroups nor to a program that lists folders. And the next run succeeds.
The tests run a few kills; `make soak` runs any number.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from pyspark.sql import SparkSession

from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import ZkgroupsException
from zkgroups.spark import SourceOptions, snapshot_names, take_snapshot
from zkgroups.storage.snapshot_folder import IN_ORDER
from zkgroups.testing import ZooKeeperServer

from ...cli.running import COMMAND, environment
from ...lasting import through_restarts
from ...seeds import seed
from ..model import Model, appeared, assert_complete, assert_is, plant
from ..processes import children, descendants, program, sigkill, wait_until_gone
from .s3_runs import Store

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.xdist_group("spark_kafka")]

ROOT = Path(__file__).parents[3]
SOAK = int(os.environ.get("ZKGROUPS_SOAK_KILLS", "120"))
"""The number of kills in `make soak`."""

WRITING = ("**/table={}/**/_temporary", "**/table={}/**/*.parquet", "**/table={}/**/task_*")
PHASES = (
    "_unfinished/*",
    *(pattern.format(table) for table in IN_ORDER for pattern in WRITING),
    *(f"table={table}/*" for table in IN_ORDER),
    "table=offsets/*/_SUCCESS",
)
"""The files and folders that appear in this order."""

CHANGES = range(6)
"""How many changes the driver makes after all tables are written, before it kills itself.

They are: write the sizes, move three tables, write `_SUCCESS`, and delete the staging folder.
"""

DRIVER = """
import os, signal, sys
from zkgroups.spark import take_snapshot
from zkgroups.spark import snapshots
from zkgroups.spark.session import own_session

class Fatal:
    def __init__(self, files):
        self.files, self.left = files, int(sys.argv[1])

    def __getattr__(self, name):
        self.left -= name in {"move", "write_text", "delete"}
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(self.files, name)

def begin(self, *args, usual=snapshots.Layout.__init__):
    usual(self, *args)
    self._files = Fatal(self._files)

snapshots.Layout.__init__ = begin
with own_session(master="local[2,4]") as spark:
    take_snapshot(spark, sys.argv[2], os.environ["ZKGROUPS_ZOOKEEPER"])
"""


@dataclass(frozen=True)
class Kill:
    """The process to kill, and when: a share of the run's time, a path that has appeared, or a number of changes."""

    victim: str
    at: float | str | int

    def __str__(self) -> str:
        return f"{self.victim} at {self.at if isinstance(self.at, str | int) else f'{self.at:.2f}'}"


VICTIMS = ("worker", "server", "driver", "java", "worker", "server", "driver itself", "forker")
"""The kills of `make soak`."""
A_FEW = ("worker", "server")
"""The kills of every test run. The others start another Spark, and tests/snapshots has the changes of the disk."""


def kills(seed: int, victims: Sequence[str]) -> list[Kill]:
    """Distribute over phases: with two kills of one process, one is early and one is late."""
    rng = random.Random(seed)
    drawn = []
    for victim in dict.fromkeys(victims):
        number = victims.count(victim)
        shares = [(place + rng.random()) / number for place in range(number)]
        rng.shuffle(shares)
        drawn += [Kill(victim, _moment(victim, share)) for share in shares]
    return drawn


def _moment(victim: str, share: float) -> float | str | int:
    if victim == "driver itself":
        return CHANGES[int(share * len(CHANGES))]
    return PHASES[int(share * len(PHASES))] if victim in {"driver", "java", "forker"} else share


class Scene:
    """A server with groups, and a warm Spark session."""

    def __init__(self, spark: SparkSession, server: ZooKeeperServer, model: Model) -> None:
        self.spark = spark
        self.server = server
        self.model = model
        self.rng = random.Random(seed())
        self.java: int = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]

    def take(self, destination: Path) -> float:
        """Take a snapshot that must succeed; return its duration."""
        began = time.monotonic()
        taken = take_snapshot(self.spark, str(destination), SourceOptions(zookeeper=self.server.address))
        assert_is(self.model, destination, taken.name)
        assert self.model.counts().items() <= asdict(taken).items()
        return time.monotonic() - began

    def play(self, kill: Kill, destination: Path, duration: float) -> None:
        """Run one kill, and check the result."""
        if kill.victim in {"worker", "server"}:
            self._in_this_process(kill, destination, duration)
        else:
            self._in_another(kill, destination)
        names = assert_complete(self.model, destination)
        assert set(snapshot_names(self.spark, str(destination))) <= set(names)
        self.take(destination)
        assert len(snapshot_names(self.spark, str(destination))) <= len(assert_complete(self.model, destination))

    # In a thread of this process

    def _in_this_process(self, kill: Kill, destination: Path, duration: float) -> None:
        over = threading.Event()
        strike, timeout = partial(self._kill_worker, over), 2.0
        if kill.victim == "server":
            strike, timeout = (
                self.server.kill,
                1.0,
            )  # the server stays down longer than any task waits, for four attempts
        killer = threading.Thread(target=_later, args=(float(kill.at) * duration, over, strike))
        killer.start()
        try:
            source = SourceOptions(zookeeper=self.server.address, timeout=timeout)
            taken = take_snapshot(self.spark, str(destination), source)
            assert self.model.counts().items() <= asdict(taken).items()
        except ZkgroupsException:
            assert assert_complete(self.model, destination) == []
            assert list(destination.glob("*/*")) == []
        finally:
            over.set()
            killer.join()
            self.server.start()

    def _kill_worker(self, over: threading.Event) -> None:
        """Return a Python worker. Its parent, which forks workers, is not killed: Spark would fail much later, perhaps
        in another test."""
        while not over.is_set():
            if found := [pid for forker in children(self.java) for pid in children(forker)]:
                sigkill(self.rng.choice(found))
                return

    # In separate processes

    def _in_another(self, kill: Kill, destination: Path) -> None:
        if kill.victim == "driver itself":
            command = [sys.executable, "-c", DRIVER, str(kill.at), str(destination)]
        else:
            command = [COMMAND, "snapshot", str(destination), "--master", "local[2,4]"]
        env = environment({"ZKGROUPS_ZOOKEEPER": self.server.address})
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                others = self._watch(process, kill, destination)
                out, err = process.communicate(timeout=200)
            finally:
                process.kill()
        if kill.victim == "driver itself":
            assert process.returncode == -signal.SIGKILL
        if kill.victim in {"java", "forker"} and process.returncode:
            assert (process.returncode, out) == (1, "")
            assert "Traceback" not in err
        assert_complete(self.model, destination)  # Java may still be running
        wait_until_gone(others)

    def _watch(self, process: subprocess.Popen[str], moment: Kill, destination: Path) -> set[int]:
        """Kill at the chosen moment; return the processes that should end, too."""
        seen: set[int] = set()
        struck = moment.victim == "driver itself"
        looked = 0.0
        while process.poll() is None:
            if not struck and appeared(destination, str(moment.at)):
                for pid in [process.pid] if moment.victim == "driver" else _those(moment.victim, seen):
                    sigkill(pid)
                struck = True
            elif time.monotonic() - looked > 0.2:
                seen |= set(descendants(process.pid))
                looked = time.monotonic()
            time.sleep(0.0005)
        return seen


def _those(victim: str, seen: set[int]) -> list[int]:
    java = [pid for pid in seen if "SparkSubmit" in program(pid)]
    return java if victim == "java" else [pid for each in java for pid in children(each) if "pyspark" in program(pid)]


def _later(seconds: float, over: threading.Event, act: Callable[[], object]) -> None:
    if not over.wait(seconds):
        act()


@pytest.fixture(scope="module")
def scene(spark: SparkSession) -> Iterator[Scene]:
    # Sessions survive a restart, and a client that connects too early is not left waiting: see ZooKeeperServer.
    with ZooKeeperServer(tick_time=2.0) as server:
        client = KazooClient(through_restarts(server.address), timeout=40.0)
        client.start()
        yield Scene(spark, server, plant(client, [f"group-{number}" for number in range(40)], partitions=25))
        client.stop()
        client.close()


@pytest.fixture(scope="module")
def duration(scene: Scene, tmp_path_factory: Any) -> float:
    """Return the duration of a warm snapshot."""
    return min(scene.take(tmp_path_factory.mktemp("warm")) for _ in range(2))


@pytest.mark.parametrize("kill", kills(seed(), A_FEW), ids=str)
def test_a_kill_leaves_no_partial_snapshot_and_the_next_run_succeeds(
    scene: Scene, duration: float, tmp_path: Path, kill: Kill
) -> None:
    scene.play(kill, tmp_path, duration)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak(scene: Scene, duration: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run many random kills."""
    print(f"\nZKGROUPS_SEED={seed()} ZKGROUPS_SOAK_KILLS={SOAK}")
    drawn = kills(seed(), [VICTIMS[number % len(VICTIMS)] for number in range(SOAK)])
    random.Random(seed()).shuffle(drawn)
    for number, kill in enumerate(drawn):
        print(f"{number + 1}/{SOAK} {kill}", flush=True)
        scene.play(kill, tmp_path_factory.mktemp("soak"), duration)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_run_on_an_object_store_that_is_killed_after_any_write_leaves_nothing_partial(tmp_path: Path) -> None:
    """In an S3 store, a rename is a copy. Snapshots, audits and plans."""
    with ZooKeeperServer() as server, Store(tmp_path) as store:
        with Registry.connect(server.address) as registry:
            for name in ("billing", "invoices"):
                offsets = {TopicPartition("orders", partition): partition for partition in range(5)}
                registry.group(name).offsets.set_many(offsets)
        command = [sys.executable, "-m", "tests.spark.faults.s3_runs", store.address, server.address]
        done = subprocess.run([*command, str(SOAK), str(seed())], cwd=ROOT)
        assert done.returncode == 0
