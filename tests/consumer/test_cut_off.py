"""Failure 25 for members: a generation ends before another member owns its partitions."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from tests.cutting import FOLLOWER, cut_off, victim
from tests.testing.waiting import eventually
from zkgroups import EventKind, Generation, Member, MemberEvent, Registry, TopicPartition
from zkgroups.testing import ZooKeeperEnsemble

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Person:
    """A member, and when it worked on each partition: the first and the last moment of each generation."""

    def __init__(self, stack: ExitStack, hosts: str, id: str) -> None:
        self.events: list[EventKind] = []
        self.worked: list[tuple[frozenset[TopicPartition], list[float]]] = []
        self._registry = stack.enter_context(Registry.connect(hosts, session_timeout=2.0))
        self.member = Member(
            self._registry.group("billing"), ["orders"], id=id, partitions=lambda _: range(2), on_event=self._note
        )
        thread = threading.Thread(target=self._run)
        thread.start()
        stack.callback(thread.join)
        stack.callback(self.member.stop)

    def _note(self, event: MemberEvent) -> None:
        self.events.append(event.kind)

    @property
    def works_on(self) -> frozenset[TopicPartition]:
        """The partitions of the last generation that has begun to work."""
        return self.worked[-1][0] if self.worked else frozenset()

    def _run(self) -> None:
        with self.member:
            for generation in self.member.generations():
                generation.start(self._work)
                generation.wait()

    def _work(self, generation: Generation) -> None:
        moments: list[float] = []
        self.worked.append((frozenset(generation.partitions), moments))
        while True:
            now = time.monotonic()
            if not generation.active:
                return
            moments[1:] = [now]
            time.sleep(0.001)


def overlaps(one: Person, other: Person) -> list[tuple[list[float], list[float]]]:
    """The times at which both worked on the same partition."""
    return [
        (mine, theirs)
        for held, mine in one.worked
        for held_too, theirs in other.worked
        if held & held_too and mine and theirs and mine[0] < theirs[-1] and theirs[0] < mine[-1]
    ]


def test_failure_25_a_member_has_stopped_before_another_begins_and_joins_again_when_the_server_is_back() -> None:
    with (
        ZooKeeperEnsemble(tick_time=0.4, sync_limit=6.0, cuttable=True) as ensemble,
        ExitStack() as stack,
    ):
        node = victim(ensemble, FOLLOWER)
        others = ",".join(each.address for each in ensemble.nodes if each is not node)
        anne = Person(stack, node.address, "anne")
        bert = Person(stack, others, "bert")
        assert eventually(lambda: anne.works_on == {P0} and bert.works_on == {P1})
        with cut_off(ensemble, node):
            assert eventually(lambda: bert.member.assignment == {P0, P1})
            assert eventually(lambda: EventKind.LOST in anne.events)
        assert eventually(lambda: anne.member.assignment == {P0} and bert.member.assignment == {P1}, timeout=60)
        assert overlaps(anne, bert) == []
