"""Consumers of messages in any order of joins, leaves and faults: at least once.

Every message before a committed offset was handled, no message of a lost partition is begun, no offset goes back, and
after the faults everything is handled and committed.

Each consumer is a process. Its front end is a loop, `poll` and `consume`, `run` with threads, or a loop of asyncio.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Message
from kazoo.client import KazooClient

from tests.seeds import seeds
from zkgroups import Consumer, Registry, TopicPartition, aio
from zkgroups.exceptions import MemberClosedError, ZkgroupsException

from .histories import Step, check
from .kafka import Logs
from .loop import Loop, Network
from .world import HOSTS, World

HISTORIES, STEPS = 24, 30
SLOTS, PARTITIONS = 3, 4
FRONT_ENDS = ("loop", "poll", "run", "asyncio")
WEIGHTS = {
    "join": 6,
    "leave": 2,
    "kill": 2,
    "expire": 1,
    "cut": 2,
    "heal": 3,
    "stall": 2,
    "resume": 3,
    "lose": 3,
    "server_restarts": 1,
    "write": 10,
    "end_transaction": 3,
    "time_passes": 8,
}
SETTLES_WITHIN = 200.0


class Process:
    """A process with one consumer."""

    def __init__(self, model: ConsumersModel, name: str) -> None:
        self.model, self.name = model, name
        self.leaves = False
        self.excused_until = 0.0  # the server may end a session before its time, if a test says so
        self.front_end = FRONT_ENDS[model.joined % len(FRONT_ENDS)]
        self.registry: Registry = model.world.connect(name, session_timeout=10.0)
        kind: Any = aio.Consumer if self.front_end == "asyncio" else Consumer
        options: dict[str, Any] = {"id": name, "auto_commit_every": 1.0, "on_event": lambda _event: None}
        with model.world.machine.process(name):
            self.consumer = kind(self.registry.group("billing"), ["orders"], kafka="simulated", **options)
            self.thread = threading.Thread(target=self._run)
            self.thread.start()

    def _run(self) -> None:
        while True:
            with suppress(ZkgroupsException):
                try:
                    if self.front_end == "asyncio":
                        with asyncio.Runner(loop_factory=lambda: Loop(Network(self.model.world.machine))) as runner:
                            runner.run(self._asyncio())
                    else:
                        {"loop": self._loop, "poll": self._poll, "run": self._handlers}[self.front_end]()
                except MemberClosedError:
                    return
                if self.leaves:
                    return

    def handle(self, message: Message, *, begins: bool = True) -> None:
        """Handle a message, which takes a moment. It has been handed out just now if it `begins`."""
        machine, at = self.model.world.machine, TopicPartition(message.topic() or "", message.partition() or 0)
        owner = self.model.world.server.nodes.get(f"/consumers/billing/owners/{at}")
        is_mine = owner is not None and owner.owner == self.registry.session_id
        assert is_mine or not begins or machine.now < self.excused_until, (
            f"{self.name} begins a message of {at}, which it lost"
        )
        machine.sleep(machine.random.uniform(0.01, 0.2))
        self.model.handled[at].add(message.offset() or 0)
        self.model.done[f"handled by {self.front_end}"] += 1

    def _loop(self) -> None:
        """Handle messages. Now and then one fails, which leaves the loop: the next loop receives it again."""
        for message in self.consumer:
            if self.model.world.machine.random.random() < 0.15:
                self.model.done["loops left"] += 1
                return
            self.handle(message)

    def _poll(self) -> None:
        while True:
            for number, message in enumerate(self.consumer.consume(3, 1.0)):
                self.handle(message, begins=not number)
            if (message := self.consumer.poll(1.0)) is not None:
                self.handle(message)

    def _handlers(self) -> None:
        self.consumer.run(self.handle, workers=2, order="key", window=20)

    async def _asyncio(self) -> None:
        async for message in self.consumer:
            self.handle(message)
            await asyncio.sleep(0.05)


class ConsumersModel:
    """The processes, the logs, and the messages that were handled."""

    def __init__(self, world: World, logs: Logs) -> None:
        self.world, self.logs = world, logs
        self.done: Counter[str] = Counter()
        self.running: dict[str, Process] = {}
        self.joined = 0
        self.handled: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        self.committed: dict[str, int] = {}
        self.partitions = [TopicPartition("orders", number) for number in range(PARTITIONS)]
        client = KazooClient(HOSTS, timeout=300.0)
        client.start()
        data = json.dumps({"version": 1, "partitions": {str(at.partition): [1] for at in self.partitions}})
        client.create("/brokers/topics/orders", data.encode(), makepath=True)

    def _chosen(self, step: Step) -> str | None:
        names = sorted(self.running)
        return names[step.a % len(names)] if names else None

    # Moves

    def join(self, _step: Step) -> None:
        if len(self.running) < SLOTS and self.world.is_up:
            self.joined += 1
            name = f"c{self.joined}"
            self.running[name] = Process(self, name)

    def leave(self, step: Step) -> None:
        if (name := self._chosen(step)) and name not in self.world.machine.stalled:
            process = self.running.pop(name)
            with self.world.machine.process(name):
                process.leaves = True
                process.consumer.stop()
                process.thread.join(100.0)
                assert not process.thread.is_alive(), f"{name} hangs"
                process.registry.close()

    def kill(self, step: Step) -> None:
        if name := self._chosen(step):
            self.world.kill(name)
            del self.running[name]
            self.done["kills"] += 1

    def expire(self, step: Step) -> None:
        if name := self._chosen(step):
            session = self.world.server.sessions.get(self.running[name].registry.session_id or 0)
            if session is not None:
                self.running[name].excused_until = self.world.machine.now + session.timeout  # it may be cut off
                self.world.server.expire(session)
                self.done["expired"] += 1

    def cut(self, step: Step) -> None:
        if name := self._chosen(step):
            self.world.cut(name)

    def heal(self, step: Step) -> None:
        if name := self._chosen(step):
            self.world.heal(name)

    def stall(self, step: Step) -> None:
        if name := self._chosen(step):
            self.world.machine.stall(name)

    def resume(self, step: Step) -> None:
        if name := self._chosen(step):
            self.world.machine.resume(name)

    def lose(self, step: Step) -> None:
        if name := self._chosen(step):
            self.world.lose(name, ("request", "reply")[step.b % 2])

    def server_restarts(self, step: Step) -> None:
        self.world.stop()
        self.world.machine.sleep(step.b % 80 / 10)
        self.world.start()

    def write(self, step: Step) -> None:
        key = b"%d" % (step.c % 5)
        self.logs.write(self.partitions[step.a % PARTITIONS], *[b"an order"] * (1 + step.b % 30), key=key)

    def end_transaction(self, step: Step) -> None:
        self.logs.end_transaction(self.partitions[step.a % PARTITIONS])

    def time_passes(self, step: Step) -> None:
        self.world.machine.sleep(step.a % 100 / 10)

    # What must hold

    def check(self) -> None:
        """No offset has gone back, and every message before a committed offset was handled."""
        for at in self.partitions:
            path = f"/consumers/billing/offsets/{at}"
            if (node := self.world.server.nodes.get(path)) is None:
                continue
            offset = int(node.data or b"0")
            assert offset >= self.committed.get(path, 0), f"{path} went back to {offset}"
            self.committed[path] = offset
            messages = {number for number, record in enumerate(self.logs.of[at].messages[:offset]) if record}
            missing = messages - self.handled[at]
            assert not missing, f"{at} is committed to {offset}, but {sorted(missing)[:5]} were not handled"

    def settle(self) -> None:
        """End all faults. Soon, everything is handled and committed."""
        self.world.end_faults()
        self.join(Step("join", 0, 0, 0))
        ends = {f"/consumers/billing/offsets/{at}": self.logs.of[at].end for at in self.partitions}
        nodes = self.world.server.nodes

        def all_committed() -> bool:
            return all(path in nodes and nodes[path].data == b"%d" % end for path, end in ends.items() if end)

        self.world.machine.until(all_committed, SETTLES_WITHIN, 0.5)
        self.check()
        self.done["settled"] += 1


def play(seed: int, history: Sequence[Step]) -> Counter[str]:
    """Play a history, and let the group settle at its end."""
    with World(seed).running() as world:
        logs = Logs(world)
        with logs.installed():
            model = ConsumersModel(world, logs)
            for step in history:
                getattr(model, step.move)(step)
                model.check()
            model.settle()
            return model.done


def test_every_message_is_handled_or_still_before_the_committed_offset_after_any_faults() -> None:
    done: Any = check(play, WEIGHTS, seeds=range(HISTORIES), length=STEPS)
    assert done["settled"] == HISTORIES
    assert done["kills"] > HISTORIES / 3
    assert done["expired"] > HISTORIES / 6
    assert done["loops left"] > HISTORIES / 2
    for front_end in FRONT_ENDS:
        assert done[f"handled by {front_end}"] > 20 * HISTORIES / len(FRONT_ENDS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_any_histories() -> None:
    """The same with fresh histories, twenty times as many."""
    print(check(play, WEIGHTS, seeds=seeds(20 * HISTORIES), length=STEPS))
