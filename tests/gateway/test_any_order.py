"""Members of a gateway and zkgroups members come and go at random. No partition ever has two of them at work."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups import Consumergroup, Member, Owner, Registry, TopicPartition
from zkgroups.exceptions import MemberClosedError
from zkgroups.gateway.zookeeper_storage.group_settings import GroupSettings

from ..seeds import seeds
from .conftest import Connect, Serve
from .kafka_member import KafkaMember
from .old_members import ALL

pytestmark = pytest.mark.zookeeper

STEPS = 30


class Ours:
    """A zkgroups member on a thread of its own."""

    def __init__(self, group: Consumergroup, id: str) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.changes = 0
        self.owner = f"{id}-0"
        self._member = Member(
            group,
            ["orders"],
            id=id,
            on_revoked=lambda _partitions: self._hold(()),
            on_lost=lambda _lost: self._hold(()),
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _hold(self, partitions: Any) -> None:
        self.changes += 1
        self.assigned = frozenset(partitions)

    def _run(self) -> None:
        try:
            for generation in self._member.generations():
                self._hold(generation.partitions)
                generation.wait()
                self._hold(())
        except MemberClosedError:
            return

    def leave(self) -> None:
        self._member.close()
        self._thread.join()


class Kafkas:
    """A client of the gateway."""

    def __init__(self, member: KafkaMember) -> None:
        self.member = member

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        return self.member.assigned

    @property
    def changes(self) -> int:
        return len(self.member.history)

    @property
    def owner(self) -> str:
        return f"{self.member.member_id}-0"

    def leave(self) -> None:
        self.member.leave()


@contextmanager
def watched(group: Consumergroup, members: list[Any], problems: list[str]) -> Iterator[None]:
    """Compare the owner nodes with the members at work, again and again."""
    enough = threading.Event()

    def compare() -> None:
        while not enough.wait(0.01):
            now = list(members)
            before = [(each.changes, each.owner, each.assigned) for each in now]
            owners = {owner.at: owner.id for owner in group.owners() if isinstance(owner, Owner)}
            for each, (changes, owner, assigned) in zip(now, before, strict=True):
                # A slow look at the owners may begin before a rebalance and end after it.
                if (each.changes, each.owner, each.assigned) == (changes, owner, assigned):
                    wrong = {at: owners.get(at) for at in assigned if owners.get(at) != owner}
                    problems.extend([f"{owner} works on {wrong}"] if wrong else [])

    thread = threading.Thread(target=compare)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


@pytest.mark.parametrize("seed", seeds(4))
def test_no_partition_has_two_members_at_work(
    registry: Registry, group: Consumergroup, connect: Connect, serve: Serve, orders: None, seed: int
) -> None:
    chance = random.Random(seed)
    served = serve(connect(), settings=GroupSettings(claim_patience=1.0))
    theirs = connect().group("billing")
    members: list[Any] = []
    problems: list[str] = []
    with ExitStack() as stack, watched(group, members, problems):
        for number in range(STEPS):
            if members and (len(members) == 4 or chance.random() < 0.4):
                members.pop(chance.randrange(len(members))).leave()
            elif chance.random() < 0.3:
                members.append(Ours(theirs, f"{chance.choice('az')}:{number}"))
            else:
                name, cooperative = chance.choice("az"), seed % 2 == 1
                member = KafkaMember(served, "billing", "orders", client_id=name, cooperative=cooperative)
                members.append(Kafkas(stack.enter_context(member)))
            if chance.random() < 0.6 and members:
                everything = lambda: frozenset().union(*(each.assigned for each in members))  # noqa: E731
                assert eventually(lambda: everything() == ALL, timeout=90), problems  # noqa: B023
        for each in members:
            each.leave()
    assert problems == []
