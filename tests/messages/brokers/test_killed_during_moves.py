"""Consumers that are killed or suspended, whose session ends, or whose move is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from zkgroups import EventKind
from zkgroups.core.znodes.own_nodes import RouteState
from zkgroups.exceptions import NotClaimedError
from zkgroups.messages.native_membership import NativeMembership
from zkgroups.migration.live_move import MoveOutcome, MoveStep, Side
from zkgroups.testing import KafkaBroker, expire_session

from ..looping import LASTING, LONGEST, QUICK_NATIVE, LoopProcess, Topic, places, read_by, shares, written
from .conftest import Loops
from .sides import Sides, await_all_committed, await_commits


def test_a_group_goes_back_after_a_consumer_was_killed_on_the_brokers(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, loop: Loops
) -> None:
    """Its permit ends with its session, and its membership with that on the brokers."""
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "killed", kafka=QUICK_NATIVE) as process:
        other = loop(topic, kafka=QUICK_NATIVE)
        assert eventually(lambda: shares(other) in ([1], [2]))
        with written(topic):
            assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
            assert eventually(lambda: len(sides.permits) == 2 and len(sides.kafka) == 3)
            process.kill()
            assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
            other.until_holding(*topic.ats)
            await_commits(sides, Side.ZOOKEEPER, 3)
        assert eventually(lambda: topic.texts <= read_by(other, process).keys())


def test_a_consumer_that_resumes_its_session_does_not_keep_the_group_on_the_brokers(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, tmp_path: Path
) -> None:
    """The permit of the killed process lives on in the session."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    file, settings = tmp_path / "session", QUICK_NATIVE
    options: dict[str, Any] = {"session": LASTING, "session_file": file, "kafka": settings}
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "again", **options) as first:
        topic.write(3)
        await_all_committed(topic, sides, 3)
        first.kill()
    assert sides.permits == ["member again"]
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "again", **options):
        topic.write(3)
        await_all_committed(topic, sides, 6)
        assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
        topic.write(3)
        assert eventually(lambda: set(sides.zookeeper.values()) == {9})


def test_a_consumer_that_was_suspended_during_the_way_back_commits_nothing_when_it_wakes_up(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, loop: Loops
) -> None:
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "asleep", kafka=QUICK_NATIVE) as process:
        topic.write(5)
        await_all_committed(topic, sides, 5)
        process.process.suspend()
        assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
        other = loop(topic)
        other.until_holding(*topic.ats)
        topic.write(5)
        assert eventually(lambda: set(sides.zookeeper.values()) == {10})
        process.process.resume()
        assert eventually(
            lambda: {each.id for each in sides.group.instances()} == {"asleep", other.consumer.id}, timeout=LONGEST
        )
        assert set(sides.kafka.values()) == {5}
        topic.write(5)
        assert eventually(lambda: set(sides.zookeeper.values()) == {15})


def test_an_expired_session_ends_the_membership_on_the_brokers_and_its_commits(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    """Without its permit, the group might be in ZooKeeper again."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    consumer = loop(topic, kafka=QUICK_NATIVE)
    topic.write(5)
    consumer.until_read(topic.texts)
    before = sides.permits
    generation = consumer.consumer._reading._current
    membership = consumer.consumer._reading.member._membership
    assert isinstance(membership, NativeMembership)
    write = membership.writer(frozenset(topic.ats))
    expire_session(consumer.client)
    assert eventually(lambda: EventKind.LOST in [event.kind for event in consumer.events])
    with pytest.raises(NotClaimedError, match="stop working on it"):
        write({topic.ats[0]: 5}, {})
    assert generation is not None
    assert generation.over
    topic.write(5)
    consumer.until_read(topic.texts)
    await_all_committed(topic, sides, 10)
    assert sides.permits == before


def test_the_members_of_a_move_that_was_killed_wait_until_it_is_finished_or_undone(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    class Killed(BaseException):
        pass

    def kill(step: MoveStep) -> None:
        if step is MoveStep.LEFT:
            raise Killed

    consumer = loop(topic)
    for again, held in ((Side.ZOOKEEPER, []), (Side.KAFKA, ["brokers"])):
        consumer.until_holding(*topic.ats)
        with pytest.raises(Killed):
            sides.move(Side.KAFKA, kill)
        assert sides.state is RouteState.MOVING_TO_KAFKA
        assert consumer.consumer.assignment == frozenset()
        sides.move(again)
        consumer.until(lambda: len(consumer.consumer.assignment) == 3)
        assert places(consumer) == held
    assert consumer.errors == []
