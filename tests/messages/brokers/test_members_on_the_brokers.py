"""Membership on the brokers: assignments, revocations and commits of a group that was moved there."""

from __future__ import annotations

import threading

import pytest

from tests.waiting import eventually
from zkgroups import Consumer, EventKind, Registry, TopicPartition
from zkgroups.exceptions import NotClaimedError
from zkgroups.messages.native_membership import NativeMembership
from zkgroups.migration.live_move import MoveOutcome, Side
from zkgroups.testing import KafkaBroker

from ..looping import LONGEST, QUICK, QUICK_NATIVE, Topic, shares
from .conftest import Loops
from .sides import Sides, await_commits_of


def test_a_revocation_waits_for_a_claim_that_has_begun(registry: Registry) -> None:
    """The client's thread asks whether everything is released. A claim says no before it looks at the assignment."""
    released: list[bool] = []

    class Client:
        @property
        def assigned(self) -> frozenset[TopicPartition]:
            released.append(not membership._held)
            return frozenset({TopicPartition("orders", 0)})

    membership = NativeMembership.__new__(NativeMembership)
    membership._held, membership._client = frozenset(), Client()  # type: ignore[assignment]
    both = frozenset({TopicPartition("orders", 0), TopicPartition("orders", 1)})
    assert membership.claim(both) == {TopicPartition("orders", 0)}
    assert released == [False]
    membership.release(both)
    assert membership._held == frozenset()


def test_a_commit_of_an_earlier_assignment_is_refused(topic: Topic, sides: Sides, loop: Loops) -> None:
    """The client would send it with the generation of the present assignment."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    first = loop(topic)
    first.until(lambda: len(first.consumer.assignment) == 3, "all partitions")
    membership = first.consumer._reading.member._membership
    assert isinstance(membership, NativeMembership)
    write = membership.writer(frozenset(topic.ats))
    write({topic.ats[0]: 0}, {})
    second = loop(topic)
    assert eventually(lambda: shares(first, second) == [1, 2])
    with pytest.raises(NotClaimedError, match="was given to another member"):
        write({topic.ats[0]: 0}, {})


def test_on_the_brokers_a_handler_that_takes_long_keeps_its_partition(topic: Topic, sides: Sides, loop: Loops) -> None:
    """The client that fetches may stand still for longer than brokers wait for a poll."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    go_on, begun = threading.Event(), threading.Event()

    def body(_message: object) -> None:
        begun.set()
        go_on.wait(LONGEST)

    settings = QUICK_NATIVE | {"max.poll.interval.ms": 6000}
    consumer = loop(topic, body=body, kafka=settings)
    topic.write(1, 0)
    assert begun.wait(LONGEST)
    assert not eventually(lambda: EventKind.LOST in [event.kind for event in consumer.events], timeout=8.0)
    go_on.set()
    await_commits_of(sides, {0: 1})


def test_a_consumer_whose_topics_do_not_exist_leaves_the_brokers_at_once(
    sides: Sides, legacy_kafka: KafkaBroker
) -> None:
    """It has not joined there, so there is no answer to wait for."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    settings = QUICK | {"bootstrap.servers": legacy_kafka.address}
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        with Consumer(registry.group(sides.group.name), ["no-such-topic"], kafka=settings) as consumer:
            assert eventually(lambda: len(sides.permits) == 1)
            membership = consumer._reading.member._membership
            assert isinstance(membership, NativeMembership)
            assert eventually(lambda: membership._client is not None and membership._subscribed is not None)
            client = membership._client
        assert client is not None
        assert client._ended.is_set()
        assert sides.permits == []
