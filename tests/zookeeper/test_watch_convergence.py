"""Failure 10: the reported changes add up to the current state, whatever happens."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from zkgroups import (
    Change,
    ChangeKind,
    CommittedOffset,
    Consumergroup,
    MalformedNode,
    RegisteredInstance,
    Registry,
    Watched,
)
from zkgroups.testing import TcpProxy, expire_session

from ..seeds import seeds
from .watching import ENOUGH

pytestmark = pytest.mark.zookeeper
ROOT = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{ROOT}/ids", f"{ROOT}/owners", f"{ROOT}/offsets"


@dataclass
class Replica:
    """The state of a group according to the changes of a watch."""

    nodes: dict[str, object] = field(default_factory=dict)
    rescans: int = 0

    def apply(self, change: Change) -> None:
        """Apply a change. It must fit the changes before it."""
        if change.kind is ChangeKind.RESCANNED:
            self.rescans += 1
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
    return {path_of(group, each): without_version(each) for each in found}


def path_of(group: Consumergroup, found: Any) -> str:
    return group.paths.offset(found.at) if isinstance(found, CommittedOffset) else str(found.path)


class Chaos:
    """Random changes by a foreign client, and random faults."""

    def __init__(self, seed: int, raw: Any, proxy: TcpProxy, victim: Registry, address: str) -> None:
        self.random = random.Random(seed)
        self.raw = raw
        self.proxy = proxy
        self.victim = victim
        self.address = address
        self.done: Counter[str] = Counter()

    def act(self, *, faults: bool) -> None:
        acts = [self.write] * 30 + [self.remove] * 12 + [self.remove_topic, self.remove_group, self.delay]
        acts += [self.cut, self.expire] if faults else []
        act = self.random.choice(acts)
        self.done[act.__name__] += 1
        with suppress(NoNodeError):
            act()

    def path(self) -> str:
        kind = self.random.choice(["ids", "owners", "offsets"])
        name = self.random.choice(["0", "1", "2", "x"])
        topic = self.random.choice(["a", "b"])
        return f"{ROOT}/ids/{name}" if kind == "ids" else f"{ROOT}/{kind}/{topic}/{name}"

    def write(self) -> None:
        path = self.path()
        data = self.random.choice([b"5", b"6", b"orders", b"\xff", b""])
        try:
            self.raw.set(path, data)
        except NoNodeError:
            self.raw.create(path, data, ephemeral="offsets" not in path, makepath=True)

    def remove(self) -> None:
        self.raw.delete(self.path())

    def remove_topic(self) -> None:
        self.raw.delete(self.random.choice([f"{OWNERS}/a", f"{OFFSETS}/a", f"{OFFSETS}/b", IDS]), recursive=True)

    def remove_group(self) -> None:
        self.raw.delete(ROOT, recursive=True)

    def cut(self) -> None:
        self.proxy.cut()

    def expire(self) -> None:
        client = self.victim.client
        if client._session_id:
            expire_session(client, client_id=(client._session_id, client._session_passwd), address=self.address)

    def delay(self) -> None:
        self.proxy.delay(self.random.choice([0.0, 0.0, 0.001, 0.005]))


@pytest.mark.parametrize("seed", seeds(8))
def test_failure_10_the_reported_changes_add_up_to_the_current_state(
    seed: int, zookeeper: Any, proxied: Registry, proxy: TcpProxy, raw: Any, group: Consumergroup
) -> None:
    chaos = Chaos(seed, raw, proxy, proxied, zookeeper.address)
    watches = {what: proxied.group("billing").watch(what) for what in Watched}
    replicas = {what: Replica() for what in Watched}
    for n in range(400):
        chaos.act(faults=n < 200)  # after the last change no full read hides a missed one
        what = chaos.random.choice(list(Watched))
        # The watch is not polled for some time, polled once, or until it has no more changes, so that its reads fall
        # between any two changes.
        for _ in range(chaos.random.choice([0, 0, 1, 3])):
            if (change := watches[what].next(timeout=chaos.random.choice([0.0, 0.0, 0.002]))) is not None:
                replicas[what].apply(change)
    print(chaos.done, {what: replica.rescans for what, replica in replicas.items()})
    for what, watch in watches.items():
        expected = tree(group, what)
        end = time.monotonic() + ENOUGH
        while replicas[what].nodes != expected and time.monotonic() < end:
            if (change := watch.next(timeout=0.5)) is not None:
                replicas[what].apply(change)
        assert replicas[what].nodes == expected
        watch.close()
