"""Failure 10: the reported changes add up to the current state, whatever happens.

In half of the histories, one recursive watch covers the group, and its changes are reported, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.seeds import seeds
from zkgroups import (
    Change,
    ChangeKind,
    CommittedOffset,
    Consumergroup,
    MalformedNode,
    RegisteredInstance,
    Watched,
)

from .histories import Step, check
from .world import HOSTS, World

HISTORIES, STEPS = 20, 200
ROOT = "/consumers/billing"
WEIGHTS = {
    "write": 60,
    "remove": 24,
    "remove_topic": 2,
    "remove_group": 2,
    "delay": 2,
    "poll": 50,
    "cut": 2,
    "lose_events": 1,
    "expire": 1,
}
FAULTS = ("cut", "lose_events", "expire")


@dataclass
class Replica:
    """The state of a group according to the changes of a watch."""

    nodes: dict[str, object] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        """Apply a change. It must fit the changes before it."""
        if change.kind is ChangeKind.RESCANNED:
            return
        if change.kind is not ChangeKind.APPEARED:
            assert self.nodes.pop(change.path) == without_version(change.before), change
        assert change.path not in self.nodes, change
        if change.kind is not ChangeKind.VANISHED:
            self.nodes[change.path] = without_version(change.now)


def without_version(value: Any) -> object:
    """Rewriting an owner or a registration with the same bytes is not reported."""
    if isinstance(value, RegisteredInstance):
        registration = value.registration
        if isinstance(registration, MalformedNode):
            registration = replace(registration, version=0)
        return replace(value, version=0, registration=registration)
    return value if isinstance(value, CommittedOffset) else replace(value, version=0)


def tree(group: Consumergroup, what: Watched) -> dict[str, object]:
    """The state that a watch should have reported, read without it."""
    paths = group.paths
    if what is Watched.MEMBERS:
        return {paths.instance(found.id): without_version(found) for found in group.instances()}
    found = group.owners() if what is Watched.OWNERS else group.offsets
    return {paths.offset(o.at) if isinstance(o, CommittedOffset) else o.path: without_version(o) for o in found}


class WatchesModel:
    """Watches of a client that loses connections and sessions, while a foreign client changes the group."""

    def __init__(self, world: World, *, is_covered: bool) -> None:
        self.world, self.done = world, Counter[str]()
        self.raw = KazooClient(HOSTS, timeout=300.0)
        self.raw.start()
        self.group = world.connect("observer", session_timeout=300.0).group("billing")
        self.victim = world.connect("victim", session_timeout=30.0)
        self.changes = self.victim.group_changes()
        assert not is_covered or self.changes.begin()
        self.reported: set[str] = set()
        self.watches = {what: self.victim.group("billing").watch(what) for what in Watched}
        self.replicas = {what: Replica() for what in Watched}

    def _path(self, step: Step) -> str:
        kind, name, topic = ("ids", "owners", "offsets")[step.a % 3], "012x"[step.b % 4], "ab"[step.b // 4 % 2]
        return f"{ROOT}/ids/{name}" if kind == "ids" else f"{ROOT}/{kind}/{topic}/{name}"

    def write(self, step: Step) -> None:
        path, data = self._path(step), (b"5", b"6", b"orders", b"\xff", b"")[step.c % 5]
        try:
            self.raw.set(path, data)
        except NoNodeError:
            self.raw.create(path, data, ephemeral="offsets" not in path, makepath=True)

    def remove(self, step: Step) -> None:
        self.raw.delete(self._path(step))

    def remove_topic(self, step: Step) -> None:
        self.raw.delete(f"{ROOT}/{('owners/a', 'offsets/a', 'offsets/b', 'ids')[step.a % 4]}", recursive=True)

    def remove_group(self, _step: Step) -> None:
        self.raw.delete(ROOT, recursive=True)

    def delay(self, step: Step) -> None:
        self.world.reply_delay = (0.0, 0.0, 0.001, 0.005)[step.a % 4]

    def cut(self, _step: Step) -> None:
        self.world.drop("victim")

    def lose_events(self, step: Step) -> None:
        """Nothing arrives for a moment, and both ends notice later."""
        self.world.cut("victim")
        self.world.machine.after(step.a % 100 / 10, lambda: self.world.heal("victim"))

    def expire(self, _step: Step) -> None:
        session = self.world.server.sessions.get(self.victim.session_id or 0)
        if session is not None:
            self.world.server.expire(session)

    def poll(self, step: Step) -> None:
        """Poll a watch once, or until it has no more changes, so that its reads fall between any two changes."""
        what = tuple(Watched)[step.a % 3]
        for _ in range((1, 1, 3)[step.b % 3]):
            if (change := self.watches[what].next(timeout=(0.0, 0.0, 0.01)[step.c % 3])) is not None:
                self.replicas[what].apply(change)
                self.done[str(change.kind)] += 1
        found = self.changes.wait(0.0)
        self.done["gaps"] += found.everything

    def converge(self) -> None:
        """Poll all watches until they have reported the current state."""
        for what, watch in self.watches.items():
            expected = tree(self.group, what)
            end = self.world.machine.now + 120
            while self.replicas[what].nodes != expected and self.world.machine.now < end:
                if (change := watch.next(timeout=0.5)) is not None:
                    self.replicas[what].apply(change)
            assert self.replicas[what].nodes == expected, what

    def check_report(self) -> None:
        """A change of a member is reported by the recursive watch, after all gaps."""
        self.world.machine.until(lambda: self.changes.is_live)
        self.victim.groups()  # answered after the report of the last gap
        while self.changes.wait(0.0).everything:
            pass
        self.raw.create("/consumers/new/ids/me", b"", makepath=True)
        found = self.changes.wait(60.0)
        assert found.everything or "new" in found.groups


def play(seed: int, history: Sequence[Step]) -> Counter[str]:
    """Play a history. After the last fault come as many changes again, so that no full read hides a missed one."""
    with World(seed).running() as world:
        model = WatchesModel(world, is_covered=seed % 2 == 0)
        for n, step in enumerate(history):
            if n < len(history) / 2 or step.move not in FAULTS:
                with suppress(NoNodeError), world.machine.process("victim" if step.move == "poll" else "test"):
                    getattr(model, step.move)(step)
        world.reply_delay = 0.0
        with world.machine.process("victim"):
            model.converge()
            if seed % 2 == 0:
                model.check_report()
        return model.done


def test_failure_10_the_reported_changes_add_up_to_the_current_state() -> None:
    done = check(play, WEIGHTS, seeds=range(HISTORIES), length=STEPS)
    assert done["appeared"] > HISTORIES
    assert done["vanished"] > HISTORIES
    assert done["rescanned"] > HISTORIES
    assert done["gaps"] > HISTORIES / 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_reported_changes_add_up_in_any_histories() -> None:
    """The same with fresh histories, twenty times as many."""
    print(check(play, WEIGHTS, seeds=seeds(20 * HISTORIES), length=STEPS))
