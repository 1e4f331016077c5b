"""Groups whose members commit their offsets on the brokers: releases, moves, and members that do otherwise."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from zkgroups import EventKind
from zkgroups.consumer.membership import Membership
from zkgroups.core.znodes.values import Side
from zkgroups.exceptions import (
    RefusedError,
)
from zkgroups.messages import offsets_on_brokers
from zkgroups.messages.broker_offsets import BrokerOffsets
from zkgroups.messages.offsets_on_brokers import OffsetsOnBrokers
from zkgroups.migration.live_move import MoveOutcome, MoveStep

from ..looping import LONGEST, Topic
from .conftest import Loops
from .offsets_elsewhere import BOTH, KAFKA, details, finished, of, put
from .sides import Sides


def test_unchanged_offsets_are_committed_again_because_brokers_forget_old_ones(
    topic: Topic, sides: Sides, loop: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets_on_brokers, "RENEWAL", 0.3)
    topic.write(3)
    mine = finished(loop(topic, reconcile_every=0.1, **KAFKA), topic)
    mine.until(lambda: sides.kafka == {0: 3, 1: 3, 2: 3}, "the commits")
    assert sides.brokers.delete_groups([sides.group.name]) == {sides.group.name: None}
    mine.until(lambda: sides.kafka == {0: 3, 1: 3, 2: 3}, "the renewal")


def test_offsets_that_others_have_changed_are_not_committed_again(topic: Topic, sides: Sides, loop: Loops) -> None:
    """Nor are those of which the consumer knows that they were deleted."""
    topic.write(3)
    mine = finished(loop(topic, auto_commit_every=None, **KAFKA), topic)
    mine.consumer.commit()
    membership = mine.consumer._reading.member._membership
    assert isinstance(membership, Membership)
    offsets, (changed, deleted, unchanged) = membership._offsets, topic.ats
    assert isinstance(offsets, OffsetsOnBrokers)
    assert sides.brokers.delete_groups([sides.group.name]) == {sides.group.name: None}
    put(sides, changed, kafka=1)
    offsets.read(frozenset({deleted}))
    offsets._renew_at = -1.0
    offsets.look()
    assert sides.kafka == {changed.partition: 1, unchanged.partition: 3}


def test_a_partition_is_not_released_while_a_commit_on_the_brokers_is_under_way(
    topic: Topic, sides: Sides, loop: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late request would put back an offset of the next owner."""
    topic.write(4, 0)
    mine = finished(loop(topic, auto_commit_every=None, release_timeout=0.1, **KAFKA), topic)
    begun, may_send, send = threading.Event(), threading.Event(), BrokerOffsets.commit

    def send_late(brokers: BrokerOffsets, *arguments: Any) -> None:
        begun.set()
        assert may_send.wait(LONGEST)
        send(brokers, *arguments)

    monkeypatch.setattr(BrokerOffsets, "commit", send_late)
    committing, stopping = threading.Thread(target=mine.consumer.commit), threading.Thread(target=mine.stop)
    committing.start()
    assert begun.wait(LONGEST)
    stopping.start()
    stopping.join(0.5)  # time enough for a release
    assert sides.group.owner(topic.ats[0]) is not None
    may_send.set()
    committing.join(LONGEST)
    stopping.join(LONGEST)
    assert (sides.group.owner(topic.ats[0]), sides.kafka) == (None, {0: 4})


def test_members_that_would_not_find_the_offsets_of_each_other_are_reported(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    first = loop(topic, id="a")
    first.until_holding(*topic.ats)
    suits = loop(topic, id="b", **BOTH[0])
    suits.until(lambda: len(suits.consumer.assignment) == 1, "a share")
    assert details(first, EventKind.DIFFER) == []
    other = loop(topic, id="c", **KAFKA)
    first.until(lambda: details(first, EventKind.DIFFER), "the report")
    assert details(first, EventKind.DIFFER) == ["this member commits to zookeeper, others elsewhere: c (kafka)"]
    other.until(lambda: details(other, EventKind.DIFFER), "the report")
    assert details(other, EventKind.DIFFER) == [
        "this member commits to kafka, others elsewhere: a (zookeeper), b (both, zookeeper is the truth)"
    ]


@pytest.mark.parametrize("options", [KAFKA, BOTH[1]], ids=of)
def test_a_group_whose_truth_is_on_the_brokers_moves_there_with_these_offsets_and_back(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    """The lower offsets in ZooKeeper are old, and do not matter."""
    put(sides, topic.ats[0], zookeeper=1, kafka=3)
    topic.write(6, 0)
    mine = loop(topic, **options)
    mine.until(lambda: sides.kafka == {0: 6}, "the commits")
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    topic.write(2, 0)
    mine.until(lambda: sides.kafka == {0: 8}, "commits of a member of the brokers")
    assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
    assert sides.zookeeper == {0: 8}
    topic.write(2, 0)
    mine.until(lambda: sides.kafka == {0: 10}, "commits of a member in ZooKeeper")
    assert [offset for _at, offset, _text in mine.messages] == [*range(3, 10)]


def test_a_move_that_was_killed_remembers_where_the_truth_is(topic: Topic, sides: Sides, loop: Loops) -> None:
    class Killed(BaseException):
        pass

    def kill(step: MoveStep) -> None:
        if step is MoveStep.LEFT:
            raise Killed

    put(sides, topic.ats[0], zookeeper=1, kafka=3)
    topic.write(6, 0)
    mine = loop(topic, **KAFKA)
    mine.until(lambda: sides.kafka == {0: 6}, "the commits")
    with pytest.raises(Killed):
        sides.move(Side.KAFKA, kill)
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    topic.write(1, 0)
    mine.until(lambda: sides.kafka == {0: 7}, "the commits")
    assert [offset for _at, offset, _text in mine.messages] == [*range(3, 7)]


def test_a_group_whose_members_read_different_sides_is_not_moved(topic: Topic, sides: Sides, loop: Loops) -> None:
    loop(topic, id="a").until_holding(*topic.ats)
    other = loop(topic, id="b", **KAFKA)
    other.until(lambda: len(other.consumer.assignment) == 1, "a share")
    with pytest.raises(RefusedError, match=r"these members read others: b \(kafka\)"):
        sides.move(Side.KAFKA)
    assert sides.state is None
