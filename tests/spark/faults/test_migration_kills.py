"""SIGKILL to Spark's driver and workers during apply and rollback.

Both sides are read before and after. Whatever process was killed at whatever step, repeating the command gives the same
result as without a kill: the target has the planned offsets, or its previous state to the byte, and ZooKeeper has the
right marks and is otherwise unchanged. Only `make soak` runs this: tests/migration/test_kill_at_every_request.py shows
the same for the work of a task, and test_workers.py kills a worker.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.migration.rows import tree
from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.offset_decision import Action
from zkgroups.core.znodes.own_nodes import Mark, MarkState
from zkgroups.kafka import BrokerOptions
from zkgroups.migration.summaries import plan_rows
from zkgroups.spark import SourceOptions
from zkgroups.spark.migration import ExecutionResult, apply, plan, rollback
from zkgroups.spark.migration.engine import SparkEngine
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.admin import migration_marks as marks

from ...cli.running import environment
from ...seeds import seed
from ..processes import family, wait_until_gone
from .fatal import Fate

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.spark]

ROOT = Path(__file__).parents[3]
GROUPS, PARTITIONS, MESSAGES = 6, 4, 30

_LOOKS = ("describe", "committed")
_MOMENTS = ("before", "sent", "answered")
_MARKS = ("zookeeper before", "zookeeper answered")
STEPS = {
    "apply": (*(f"{kind} {moment}" for kind in (*_LOOKS, "commit") for moment in _MOMENTS), *_MARKS),
    "rollback": (*(f"{kind} {moment}" for kind in (*_LOOKS, "delete", "commit") for moment in _MOMENTS), *_MARKS),
}
"""The steps of a chunk of groups; there are at least two chunks."""

DRIVER = """
import os, sys
from tests.spark.faults import fatal
from zkgroups.kafka import BrokerOptions
from zkgroups.spark import SourceOptions
import zkgroups.spark.migration
from zkgroups.spark.session import own_session

command, destination, brokers, zookeeper = sys.argv[1:]
os.environ |= fatal.Fate.of_environment().driven_by(os.getpid()).environment()
with own_session({"spark.python.daemon.module": "tests.spark.faults.fatal"}, master="local[2,4]") as spark:
    source = SourceOptions(zookeeper=zookeeper)
    getattr(zkgroups.spark.migration, command)(spark, destination, BrokerOptions(brokers), source, execute=True)
"""

_numbers = itertools.count()


@dataclass(frozen=True)
class Kill:
    """The process to kill, the command, and the step."""

    command: str
    victim: str
    step: str
    nth: int

    def __str__(self) -> str:
        return f"{self.victim} of {self.command} at {self.step} {self.nth}"


class Scene:
    """Groups with offsets on both sides, and their plan."""

    def __init__(self, spark: SparkSession, registry: Registry, hosts: str, broker: KafkaBroker, folder: Path) -> None:
        self.spark, self.registry = spark, registry
        self.hosts, self.address, self.destination = hosts, broker.address, str(folder / "move")
        self.groups = [f"killed {next(_numbers)}: größe" for _ in range(GROUPS)]
        self.topic = f"killed-{next(_numbers)}"
        broker.create_topic(self.topic, PARTITIONS)
        self._write_messages()
        self._commit()
        self.before = self.on_target()
        self.source = SourceOptions(zookeeper=hosts)
        assert plan(spark, self.destination, self.source, BrokerOptions(self.address)).blocked == 0
        self.rows = list(plan_rows(SparkEngine(spark), self.destination))
        self.zookeeper = tree(registry.client, "/consumers")

    def _write_messages(self) -> None:
        producer = Producer({"bootstrap.servers": self.address, "log_level": 0})
        for number in range(PARTITIONS * MESSAGES):
            producer.produce(self.topic, b"message", partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    def _commit(self) -> None:
        """Target offsets: missing, behind, ahead and equal, with notes of other clients."""
        wanted: dict[str, dict[TopicPartition, NativeOffset]] = {}
        for number, group in enumerate(self.groups):
            ats = [TopicPartition(self.topic, partition) for partition in range(PARTITIONS)]
            offsets = {at: 10 + number + at.partition for at in ats}
            self.registry.group(group).offsets.set_many(offsets)
            if number % 3:
                behind, ahead, same = ats[:3]
                there = (
                    NativeOffset(group, behind, 3, "a note\0", 0),
                    NativeOffset(group, ahead, MESSAGES, "größe"),
                    NativeOffset(group, same, offsets[same], "as it is"),
                )
                wanted[group] = {each.at: each for each in there}
        with BrokerOptions(self.address).connect() as brokers:
            assert brokers.commit(wanted) == {group: dict.fromkeys(those) for group, those in wanted.items()}

    # State

    def on_target(self) -> dict[str, dict[TopicPartition, NativeOffset]]:
        with BrokerOptions(self.address).connect() as brokers:
            return brokers.committed(self.groups)

    def applied(self) -> Mapping[str, Mapping[TopicPartition, NativeOffset]]:
        """Return the planned state of the target."""
        found = {group: dict(those) for group, those in self.before.items()}
        for row in self.rows:
            if row.action is Action.COMMIT:
                assert row.at is not None
                assert row.planned is not None
                found[row.target][row.at] = NativeOffset(row.target, row.at, row.planned)
        return found

    def assert_is(self, command: str) -> None:
        """Assert that both sides have the state after this command."""
        found = marks.read(self.registry._context, self.groups)
        states = {group: it.state for group, it in found.items() if isinstance(it, Mark)}
        if command == "apply":
            assert self.on_target() == self.applied()
            assert states == dict.fromkeys(self.groups, MarkState.MOVED)
        else:
            assert self.on_target() == self.before
            assert found == {}
        there = {
            path: data
            for path, data in tree(self.registry.client, "/consumers").items()
            if not path.endswith("/migration")
        }
        assert there == self.zookeeper

    # Actions

    def run(self, command: str) -> None:
        """Run without a kill, in the Spark session of the tests."""
        call = {"apply": apply, "rollback": rollback}[command]
        done: ExecutionResult = call(
            self.spark, self.destination, BrokerOptions(self.address), self.source, execute=True
        )
        assert (done.left, done.failed) == (0, 0)
        self.assert_is(command)

    def play(self, kill: Kill, folder: Path) -> bool:
        """Kill, and repeat the command; return whether the step was reached."""
        fate = Fate(kill.victim, kill.step, kill.nth, str(folder / f"steps-{next(_numbers)}"))
        status = self._run_in_another(kill, fate)
        if kill.victim == "driver" and fate.came():
            assert status == -9
        else:  # a task may fail three times
            assert status == 0
            self.assert_is(kill.command)
        self.run(kill.command)
        return fate.came()

    def _run_in_another(self, kill: Kill, fate: Fate) -> int:
        """Run in another Spark, and wait until all its processes have ended."""
        command = [sys.executable, "-c", DRIVER, kill.command, self.destination, self.address, self.hosts]
        env = environment(fate.environment() | {"PYTHONPATH": str(ROOT)})
        with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            try:
                seen = family(process)
            finally:
                process.kill()
        wait_until_gone(seen)
        return process.returncode


@pytest.fixture
def scene(
    spark: SparkSession, registry: Registry, zookeeper_hosts: str, kafka_broker: KafkaBroker, tmp_path: Path
) -> Scene:
    return Scene(spark, registry, zookeeper_hosts, kafka_broker, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("victim", ["driver", "worker"])
def test_soak(scene: Scene, tmp_path: Path, victim: str) -> None:
    """Kill at every step, at its first occurrence, then at its second, and so on."""
    print(f"\nZKGROUPS_SEED={seed()}")
    rng = random.Random(seed())
    steps = {command: rng.sample(those, len(those)) for command, those in STEPS.items()}
    for nth in itertools.count(1):
        came: dict[str, list[str]] = {command: [] for command in STEPS}
        for pair in itertools.zip_longest(*steps.values()):
            for command, step in zip(STEPS, pair, strict=True):
                if step is None:
                    scene.run(command)
                elif scene.play(kill := Kill(command, victim, step, nth), tmp_path):
                    print(kill, flush=True)
                    came[command].append(step)
        assert nth > 1 or all(set(came[command]) == set(those) for command, those in steps.items())
        if not any(came.values()):
            return
        steps = came
