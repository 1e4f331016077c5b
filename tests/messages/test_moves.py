"""A group of consumers is moved to the brokers and back while it works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.testing.waiting import eventually
from zkgroups import CommittedOffset, Consumergroup, EventKind, Registry
from zkgroups.kafka import Brokers
from zkgroups.migration.live_move import MoveOutcome, Side, move_live
from zkgroups.testing import KafkaBroker

from .conftest import Loops, Topic
from .looping import LONGEST, Loop


@pytest.fixture
def brokers(legacy_kafka: KafkaBroker) -> Iterator[Brokers]:
    with Brokers.connect(legacy_kafka.address) as brokers:
        yield brokers


@contextmanager
def written(topic: Topic) -> Iterator[None]:
    """Write a few messages to all partitions again and again."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.05):
            topic.write(2)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LONGEST)


def in_zookeeper(group: Consumergroup) -> dict[int, int]:
    return {found.at.partition: found.offset for found in group.offsets if isinstance(found, CommittedOffset)}


def on_brokers(brokers: Brokers, group: Consumergroup) -> dict[int, int]:
    return {at.partition: found.offset for at, found in brokers.committed([group.name])[group.name].items()}


def places(loop: Loop) -> list[str]:
    return [
        "brokers" if "brokers" in event.detail else "ZooKeeper"
        for event in loop.events
        if event.kind is EventKind.MOVED
    ]


def shares(*loops: Loop) -> list[int]:
    return sorted(len(loop.consumer.assignment) for loop in loops)


def test_a_running_group_is_moved_to_the_brokers_and_back(
    topic: Topic, group: Consumergroup, registry: Registry, brokers: Brokers, loop: Loops
) -> None:
    both = [loop(topic), loop(topic)]
    assert eventually(lambda: shares(*both) == [1, 2])
    with written(topic):
        for to, offsets in (
            (Side.KAFKA, lambda: on_brokers(brokers, group)),
            (Side.ZOOKEEPER, lambda: in_zookeeper(group)),
        ):
            assert move_live(group.name, to, brokers, registry, execute=True).outcome is MoveOutcome.MOVED
            before = offsets()
            assert eventually(lambda: shares(*both) == [1, 2], timeout=LONGEST)
            assert eventually(
                lambda: len(now := offsets()) == 3 and all(now[at] > before.get(at, 0) for at in now), timeout=LONGEST
            )
    for each in both:
        assert places(each) == ["brokers", "ZooKeeper"]
        assert each.errors == []
    everything = topic.texts
    assert eventually(lambda: everything <= both[0].texts.keys() | both[1].texts.keys(), timeout=LONGEST)
    assert sum((both[0].texts + both[1].texts).values()) == len(everything)
