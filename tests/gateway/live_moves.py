"""A group that is moved live: members under load, the command, and the offsets of both sides."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from tests.cli.running import Ended, run
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.kafka import Brokers
from zkgroups.migration.live_move import MoveOutcome, Side, move_live
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.admin.migration_marks import FoundRoute, read_route
from zkgroups.zookeeper.session.session import context_of

from .peers import Member

QUICK = {
    "topic.metadata.refresh.interval.ms": 300,
    "reconnect.backoff.max.ms": 500,
    "enable.auto.commit": True,
    "auto.commit.interval.ms": 100,
}

_KILLED = """
import os, signal, sys
from zkgroups import Registry
from zkgroups.kafka import Brokers
from zkgroups.migration.live_move import Side, move_live
from zkgroups.zookeeper.offsets import Offsets

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def kill_after(kind, name):
    method = getattr(kind, name)
    setattr(kind, name, lambda *some, **more: (method(*some, **more), kill()))

def move(zookeeper, broker, group, to, step):
    if step == "commit":
        kill_after(Brokers, "commit")
    if step == "replace":
        kill_after(Offsets, "replace")
    with Registry.connect(zookeeper, session_timeout=6) as registry, Brokers.connect(broker) as brokers:
        on_step = lambda done: done.name == step and kill()
        move_live(group, Side(to), brokers, registry, execute=True, on_step=on_step)

for line in sys.stdin:
    if not (pid := os.fork()):
        move(*line.split())
        os._exit(0)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


class KilledMoves:
    """A process that forks processes. Each begins to move a group, and is killed after a step."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-W", "ignore", "-c", _KILLED]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            process.kill()

    def __call__(self, *words: str) -> None:
        """Kill a move after a step, or after a method with this name has returned."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == f"{signal.SIGKILL.value}\n"


class Load:
    """Members that read on threads of their own, while messages are written."""

    def __init__(self, broker: KafkaBroker, group: str, partitions: int, addresses: Sequence[str]) -> None:
        self.broker, self.group, self.topic = broker, group, group
        self.partitions = partitions
        self.written = 0
        """In each partition."""
        self._ended = threading.Event()
        self._writing = threading.Event()
        broker.create_topic(self.topic, partitions)
        self.members = [Member(address, group, self.topic, **QUICK) for address in addresses]
        self._threads = [threading.Thread(target=self._read, args=(member,)) for member in self.members]
        self._writer = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        for thread in (*self._threads, self._writer):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in (*self._threads, self._writer):
            thread.join(120)

    def _read(self, member: Member) -> None:
        while not self._ended.is_set():
            member.poll()
        member.consumer.close()

    def _write(self) -> None:
        while not self._ended.wait(0.05):
            if self._writing.is_set():
                for partition in range(self.partitions):
                    self.broker.write(self.topic, partition, 1)
                self.written += 1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write messages to all partitions."""
        self._writing.set()
        try:
            yield
        finally:
            self._writing.clear()

    @property
    def read(self) -> Counter[tuple[int, int]]:
        """How often each message was read."""
        return Counter(message for member in self.members for message in member.read)

    @property
    def is_settled(self) -> bool:
        """Whether all partitions are assigned, each to one member, and all have some."""
        shares = [member.partitions for member in self.members]
        return all(shares) and sorted(at for share in shares for at in share) == [*range(self.partitions)]

    @property
    def has_read_all(self) -> bool:
        return len(self.read) == self.partitions * self.written


class Sides:
    """The committed offsets of a group on both sides, and the ways to move it."""

    def __init__(
        self, broker: KafkaBroker, registry: Registry, brokers: Brokers, killed: KilledMoves, group: str
    ) -> None:
        self.broker, self.registry, self.brokers, self.group = broker, registry, brokers, group
        self._killed = killed

    @property
    def zookeeper(self) -> dict[int, int]:
        offsets = self.registry.group(self.group).offsets
        return {each.at.partition: each.offset for each in offsets if isinstance(each, CommittedOffset)}

    @property
    def kafka(self) -> dict[int, int]:
        found = self.brokers.committed([self.group])[self.group]
        return {at.partition: each.offset for at, each in found.items()}

    def commit_to_zookeeper(self, *offsets: int) -> None:
        """Commit for the partitions 0, 1 …"""
        group = self.registry.group(self.group)
        group.offsets.set_many({TopicPartition(self.group, each): offset for each, offset in enumerate(offsets)})

    def commit_to_kafka(self, *offsets: int) -> None:
        found = {TopicPartition(self.group, each): offset for each, offset in enumerate(offsets)}
        assert not any(self.brokers.commit({self.group: found})[self.group].values())

    @property
    def route(self) -> str:
        """The state of the route; `zookeeper` if there is none."""
        return str(self._found.state or "zookeeper")

    @property
    def is_marked(self) -> bool:
        return self._found.mark is not None

    @property
    def _found(self) -> FoundRoute:
        return read_route(context_of(self.registry), self.group)

    def kill(self, to: str, step: str) -> None:
        """Begin to move the group, in a process that is killed after this step."""
        self._killed(self.broker.zookeeper, self.broker.address, self.group, to, step)

    @property
    def is_locked(self) -> bool:
        """Whether a killed process still has the lock, until its session expires."""
        client = self.registry.client
        found = client.get_children("/zkgroups/targets") if client.exists("/zkgroups/targets") else []
        return any(name.endswith(f":{self.group}") for name in found)

    def move(self, to: str) -> MoveOutcome:
        """Move the group."""
        return move_live(self.group, Side(to), self.brokers, self.registry, execute=True).outcome

    def command(self, to: str, *more: str) -> Ended:
        """Run the command."""
        where = ("-b", self.broker.address, "-z", self.broker.zookeeper)
        return run("migrate", "switch", self.group, "--to", to, *more, *where)
