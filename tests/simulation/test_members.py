"""Members in any order of joins, leaves, kills and faults: no partition has two members at work, no message is skipped
by a commit, and soon after the faults each partition has one member.

Each member is a process with a worker that handles the messages of its partitions one by one. The logs of the
partitions are endless.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

from tests.seeds import seeds
from zkgroups import Generation, Member, Registry, TopicPartition
from zkgroups.core.znodes.states import InstanceState
from zkgroups.exceptions import MemberClosedError, ZkgroupsException

from .histories import Step, check
from .world import HOSTS, World

HISTORIES, STEPS = 25, 40
SLOTS = 4
PARTITIONS = 5
SETTLES_WITHIN = 120.0
"""In simulated seconds: a session timeout of 10, `rebalance_timeout` of 30, and retries."""
GROUP, TOPIC = "/consumers/billing", "/brokers/topics/orders"

WEIGHTS = {
    "join": 8,
    "leave": 3,
    "kill": 2,
    "expire": 2,
    "cut": 2,
    "heal": 3,
    "stall": 2,
    "resume": 3,
    "server_restarts": 1,
    "lose": 4,
    "administrator_evicts": 1,
    "foreign_claims": 1,
    "add_partition": 1,
    "time_passes": 10,
}


class Process:
    """One process with one member, and what its worker has done."""

    def __init__(self, model: MembersModel, name: str) -> None:
        self.name = name
        self.model = model
        self.generations: list[Generation] = []
        self.evicted: list[Generation] = []  # by an administrator or the server: it finds out with its next request
        world = model.world
        self.registry: Registry = world.connect(name, session_timeout=10.0)
        with world.machine.process(name):
            self.member = Member(
                self.registry.group("billing"), ["orders"], id=name, auto_commit_every=2.0, on_event=lambda _event: None
            )
            self._thread = model.threads.Thread(target=self._run, name=f"loop of {name}")
            self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                for generation in self.member.generations():
                    self.generations.append(generation)
                    generation.start(self._work)
                    generation.wait()
                return
            except MemberClosedError:
                return
            except ZkgroupsException:
                self.model.done["errors of members"] += 1

    def _work(self, generation: Generation) -> None:
        positions = {at: start if isinstance(start, int) else 0 for at, start in generation.partitions.items()}
        machine = self.model.world.machine
        while True:
            for at, offset in positions.items():
                machine.sleep(machine.random.uniform(0.05, 0.3))
                if not generation.active:
                    return
                self.model.handle(self, generation, at, offset)
                positions[at] = offset + 1
                generation.mark(at, offset + 1)
            if not positions and generation.wait(1.0):
                return

    def works_on(self, at: TopicPartition) -> bool:
        """Whether the member would begin a message of this partition now, and was not evicted."""
        return any(
            at in generation.partitions and generation.active and generation not in self.evicted
            for generation in self.generations[-2:]
        )

    def close(self) -> None:
        with self.model.world.machine.process(self.name):
            self.member.close()
            self.registry.close()


class MembersModel:
    """The processes, the messages that they have handled, and the faults that last."""

    def __init__(self, world: World) -> None:
        import threading

        self.threads = threading
        self.world = world
        self.done: Counter[str] = Counter()
        self.running: dict[str, Process] = {}
        self.joined = 0
        self.handled: dict[TopicPartition, set[int]] = defaultdict(set)
        self.stalled: set[str] = set()
        self.partitions = PARTITIONS
        self.committed: dict[str, int] = {}
        self.admin = world.connect("administrator", session_timeout=300.0)
        self.foreign = KazooClient(HOSTS, timeout=300.0)
        self.foreign.start()
        self.foreign.ensure_path(f"{GROUP}/owners/orders")
        self.foreign.create(TOPIC, self._topic(), makepath=True)
        self.foreign_owner: str | None = None

    def _topic(self) -> bytes:
        return json.dumps({"version": 1, "partitions": {str(n): [1] for n in range(self.partitions)}}).encode()

    def handle(self, process: Process, generation: Generation, at: TopicPartition, offset: int) -> None:
        """A worker begins a message."""
        others = [each.name for each in self.running.values() if each is not process and each.works_on(at)]
        assert not others or generation in process.evicted, f"{process.name} and {others} work on {at} at once"
        self.done["handled twice"] += offset in self.handled[at]
        self.handled[at].add(offset)
        self.done["handled"] += 1

    def _chosen(self, step: Step) -> str | None:
        names = sorted(self.running)
        return names[step.a % len(names)] if names else None

    # Moves

    def join(self, _step: Step) -> None:
        if len(self.running) < SLOTS and not self.world.is_cut("all") and self.world.is_up:
            self.joined += 1
            name = f"m{self.joined}"
            self.running[name] = Process(self, name)

    def leave(self, step: Step) -> None:
        if (name := self._chosen(step)) and name not in self.stalled:
            self.running[name].close()
            del self.running[name]

    def kill(self, step: Step) -> None:
        if name := self._chosen(step):
            self.world.kill(name)
            del self.running[name]
            self.done["kills"] += 1

    def expire(self, step: Step) -> None:
        if name := self._chosen(step):
            session = self.world.server.sessions.get(self.running[name].registry.session_id or 0)
            if session is not None:  # by force: the clock of the member does not count
                self.running[name].evicted += self.running[name].generations[-2:]
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
            self.stalled.add(name)

    def resume(self, step: Step) -> None:
        if name := self._chosen(step):
            self.world.machine.resume(name)
            self.stalled.discard(name)

    def server_restarts(self, step: Step) -> None:
        self.world.stop()
        self.world.machine.sleep(step.b % 80 / 10)
        self.world.start()

    def lose(self, step: Step) -> None:
        if name := self._chosen(step):
            self.world.lose(name, ("request", "reply")[step.b % 2])

    def administrator_evicts(self, step: Step) -> None:
        if name := self._chosen(step):
            with suppress(ZkgroupsException):  # it is not registered now
                self.admin.group("billing").evict(name)
                self.done["evicted"] += 1
                self.running[name].evicted += self.running[name].generations[-2:]

    def foreign_claims(self, step: Step) -> None:
        """Another client takes a partition that is free at the moment. The next such move returns it."""
        if self.foreign_owner is not None:
            self.foreign.delete(self.foreign_owner)
            self.foreign_owner = None
            return
        path = f"{GROUP}/owners/orders/{step.b % self.partitions}"
        with suppress(NodeExistsError):
            self.foreign.create(path, b"somebody", ephemeral=True)
            self.foreign_owner = path

    def add_partition(self, _step: Step) -> None:
        if self.partitions < 2 * PARTITIONS:
            self.partitions += 1
            self.foreign.set(TOPIC, self._topic())

    def time_passes(self, step: Step) -> None:
        self.world.machine.sleep(step.a % 100 / 10)

    # What must hold

    def check(self) -> None:
        """No offset has gone back, and everything before a committed offset was handled."""
        for path, node in self.world.server.nodes.items():
            if path.startswith(f"{GROUP}/offsets/orders/"):
                offset = int(node.data or b"0")
                assert offset >= self.committed.get(path, 0), f"{path} went back to {offset}"
                self.committed[path] = offset
                missing = set(range(offset)) - self.handled[TopicPartition("orders", int(path.rpartition("/")[2]))]
                assert not missing, f"{path} is committed to {offset}, but {sorted(missing)[:5]} were not handled"

    def settle(self) -> None:
        """End all faults. Soon, each partition has one owner, and all members say so."""
        for name in self.running:
            self.world.heal(name)
            self.world.machine.resume(name)
        if self.foreign_owner is not None:
            self.foreign.delete(self.foreign_owner)
        if not self.running:
            return

        def is_settled() -> bool:
            owners = self._owners()
            return (
                set(owners) == set(range(self.partitions))
                and set(owners.values()) <= set(self.running)
                and all(process.member.state is InstanceState.STABLE for process in self.running.values())
            )

        began = self.world.machine.now
        self.world.machine.until(is_settled, SETTLES_WITHIN, 0.5)
        self.done["seconds until settled"] += int(self.world.machine.now - began)
        before = self.done["handled"]
        self.world.machine.sleep(10)
        assert self.done["handled"] > before, "nobody works"
        self.check()
        self.done["settled"] += 1

    def _owners(self) -> dict[int, str]:
        prefix = f"{GROUP}/owners/orders/"
        nodes = self.world.server.nodes
        return {
            int(path.removeprefix(prefix)): (node.data or b"").decode().rpartition("-")[0]
            for path, node in nodes.items()
            if path.startswith(prefix)
        }


def play(seed: int, history: Sequence[Step]) -> Counter[str]:
    """Play a history, and let the group settle at its end."""
    with World(seed).running() as world:
        model = MembersModel(world)
        for step in history:
            getattr(model, step.move)(step)
            model.check()
        model.settle()
        return model.done


def test_no_partition_has_two_members_and_the_group_settles_after_any_faults() -> None:
    done: Any = check(play, WEIGHTS, seeds=range(HISTORIES), length=STEPS)
    assert done["settled"] > HISTORIES / 2
    assert done["handled"] > 100 * HISTORIES
    assert done["kills"] > HISTORIES / 2
    assert done["expired"] > HISTORIES / 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_any_histories() -> None:
    """The same with fresh histories, twenty times as many."""
    print(check(play, WEIGHTS, seeds=seeds(20 * HISTORIES), length=STEPS))
