"""A running group of Scala members is replaced by consumers one process at a time, moved to the brokers, and back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise

import pytest
from confluent_kafka import Message

from tests.consumer.scala import ScalaConsumer
from tests.waiting import eventually
from zkgroups import Consumergroup, Owner, TopicPartition
from zkgroups.migration.live_move import MoveOutcome, Side
from zkgroups.testing import KafkaBroker

from ..looping import LONGEST, Loop, Topic, at_of, written
from .conftest import Loops
from .sides import Sides, await_commits

pytestmark = pytest.mark.timeout(600)

MEMBERS = 3
MOST_REPEATED = 0.05
"""Of all messages: those since the last commit of a member that left during a rebalance of others."""


class Clock:
    """When messages of each partition were finished."""

    def __init__(self) -> None:
        self._times: dict[TopicPartition, list[float]] = {}

    def __call__(self, message: Message) -> None:
        self._times.setdefault(at_of(message), []).append(time.monotonic())

    def longest_pauses(self, since: float) -> dict[TopicPartition, float]:
        """For each partition, the longest time without a message."""
        found = {}
        for at, times in sorted(self._times.items()):
            late = [each for each in times if each >= since]
            found[at] = max((after - before for before, after in pairwise(late)), default=0.0)
        return found


def read_by(scala: list[ScalaConsumer], ours: list[Loop]) -> Counter[str]:
    theirs = Counter(message.text for each in scala for message in each.messages)
    return sum((each.texts for each in ours), theirs)


def has_settled(group: Consumergroup, members: int) -> bool:
    """Whether so many members are registered, and the first of them own a partition each."""
    ids = sorted(each.id for each in group.instances())
    owners = [owner.instance(ids) for owner in group.owners() if isinstance(owner, Owner)]
    return len(ids) == members and sorted(map(str, owners)) == ids[:MEMBERS]


def replaced(
    scala: list[ScalaConsumer], make: Callable[[int], Loop], group: Consumergroup
) -> tuple[list[Loop], Counter[str]]:
    """Replace one member after the other. Return the consumers, and what the Scala members have read."""
    ours: list[Loop] = []
    theirs: Counter[str] = Counter()
    for number, old in enumerate(scala):
        ours.append(make(number))
        assert eventually(lambda: has_settled(group, MEMBERS + 1))
        old.stop()
        theirs.update(message.text for message in old.messages)
        assert eventually(lambda: has_settled(group, MEMBERS))
    return ours, theirs


def test_three_scala_members_are_replaced_under_load_and_the_group_moves_to_the_brokers_and_back(
    legacy_kafka: KafkaBroker,
    topic: Topic,
    sides: Sides,
    loop: Loops,
) -> None:
    group, clock = sides.group, Clock()
    with ExitStack() as stack:
        names = [f"s{number}" for number in range(MEMBERS)]
        scala = [stack.enter_context(ScalaConsumer(legacy_kafka, group.name, name, {topic.name: 1})) for name in names]
        owners = {f"{each.id}-0" for each in scala}
        assert eventually(lambda: {str(each.id) for each in group.owners()} == owners)
        with written(topic):
            ours, theirs = replaced(scala, lambda number: loop(topic, id=f"ours-{number}", body=clock), group)
            assert eventually(
                lambda: sorted(len(each.consumer.assignment) for each in ours) == [1, 1, 1], timeout=LONGEST
            )
            for side in (Side.KAFKA, Side.ZOOKEEPER):
                began = time.monotonic()
                assert sides.move(side) is MoveOutcome.MOVED
                await_commits(sides, side, len(topic.ats))
                print(f"to {side}: stood still for", clock.longest_pauses(began))
    assert eventually(lambda: topic.texts <= (theirs + read_by([], ours)).keys())
    times = theirs + read_by([], ours)
    repeated = sum(times.values()) - len(times)
    print(f"{len(times)} messages, {repeated} of them were read again")
    assert repeated <= MOST_REPEATED * len(times)
    for each in ours:
        each.stop()
    assert sum(sides.zookeeper.values()) == len(topic.texts)
