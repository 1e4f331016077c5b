"""Complete migrations with real consumers on both sides, checked message by message.

The source is the old broker, with its topics and groups in one ZooKeeper. The target is the same cluster in one run,
and a current broker in the other. There, a mirror has written the same messages with the same offsets: a migration
copies numbers, so mirrors that assign new offsets are not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.consumer.scala import ScalaConsumer, await_members
from tests.migration.conftest import Join
from tests.migration.consumers import LegacyReader, NativeReader, NumberedProducer, judge
from tests.migration.moving import Move
from tests.testing.unique import unique_numbers
from tests.waiting import eventually
from zkgroups import Member, Registry, TopicPartition
from zkgroups.core.migration.follow_rules import FollowState
from zkgroups.core.migration.obstacles import texts
from zkgroups.core.migration.plan_rows import Match, Outcome
from zkgroups.exceptions import GroupMigratedError
from zkgroups.testing import KafkaBroker

PARTITIONS = 5
_numbers = unique_numbers()


@pytest.fixture(params=["legacy_kafka", "kafka_broker"], ids=["to the same cluster", "to another cluster"])
def destination(request: pytest.FixtureRequest) -> KafkaBroker:
    found: KafkaBroker = request.getfixturevalue(request.param)
    return found


class Scene:
    """A group and a topic for one test, on both clusters."""

    def __init__(self, left: KafkaBroker, destination: KafkaBroker, registry: Registry, number: int) -> None:
        self.group = self.topic = f"end-to-end-{number}"
        self.left, self.destination = left, destination
        clusters = dict.fromkeys((left, destination))
        for broker in clusters:
            broker.create_topic(self.topic, PARTITIONS)
        self.producer = NumberedProducer(self.topic, PARTITIONS, *(broker.address for broker in clusters))
        self.move = Move(registry, destination.address, self.group)

    def legacy(self, count: int = 0) -> LegacyReader:
        return LegacyReader(self.left, self.group, self.topic, count=count)

    def native(self) -> NativeReader:
        return NativeReader(self.destination.address, self.group, self.topic, PARTITIONS)


@pytest.fixture
def scene(legacy_kafka: KafkaBroker, destination: KafkaBroker, registry: Registry) -> Scene:
    return Scene(legacy_kafka, destination, registry, next(_numbers))


def test_each_consumer_continues_where_that_of_the_other_side_stopped_also_after_a_rollback(scene: Scene) -> None:
    scene.producer.write(150)
    with scene.legacy(80) as legacy:
        first = legacy.finish()

    scene.move.plan()
    assert scene.move.apply() == {Outcome.WRITTEN: PARTITIONS}
    assert scene.move.verify() == {Match.EQUAL: PARTITIONS}

    scene.producer.write(20)
    with scene.native() as native:
        second = native.do(50)

    assert Outcome.LEFT not in scene.move.roll_back(to_zookeeper=True)

    assert scene.move.on_target() == {}
    with scene.legacy(170 - len(first) - len(second)) as legacy:
        judge(scene.producer.written, first, second, legacy.finish())


def test_consumers_are_switched_and_switched_back_while_messages_arrive(scene: Scene) -> None:
    scene.producer.write(30)
    with scene.producer.going_on():
        with scene.legacy() as legacy:
            legacy.until_done(40)
            assert eventually(scene.move.plan)  # the group has rows once an offset was committed
            with scene.move.following() as follow:
                follow.until(lambda: any(each.written for each in follow.passes))
                legacy.until_done(len(legacy.messages) + 30)
                first = legacy.finish()
                assert [group.state for group in follow.end().values()] == [FollowState.DONE]

        with scene.native() as native:
            native.do(50)
            native.commit()
            with scene.move.following(to_zookeeper=True) as follow:
                follow.until(lambda: any(each.written for each in follow.passes))
                second = native.do(30)
                native.close()
                assert [group.state for group in follow.end().values()] == [FollowState.DONE]

    with scene.legacy(len(scene.producer.written) - len(first) - len(second)) as legacy:
        judge(scene.producer.written, first, second, legacy.finish())


# Live members


Live = Callable[[Move, str], AbstractContextManager[str]]
"""Joins the group of a migration and reads a topic. Yields the known part of the member's name."""


@pytest.fixture
def broker(legacy_kafka: KafkaBroker) -> KafkaBroker:
    """Groups stay on their cluster, so that members of all kinds can read its topics."""
    return legacy_kafka


@pytest.fixture
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield registry


def _group_of(broker: KafkaBroker, registry: Registry) -> tuple[Move, str]:
    """A group with offsets, and their topic."""
    topic = group = f"real-member-{next(_numbers)}"
    broker.create_topic(topic, 2)
    registry.group(group).offsets.set_many({TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0})
    return Move(registry, broker.address, group), topic


@contextmanager
def _scala(broker: KafkaBroker, registry: Registry, move: Move, topic: str) -> Iterator[str]:
    with ScalaConsumer(broker, move.group, "anna", {topic: 1}, config={"auto.commit.enable": "false"}) as scala:
        await_members(registry.group(move.group), [scala.id])
        yield scala.id


@contextmanager
def _ours(registry: Registry, move: Move, topic: str) -> Iterator[str]:
    with Member(registry.group(move.group), [topic]) as member:
        member.start()
        assert eventually(lambda: registry.group(move.group).instances())
        yield registry.group(move.group).instances()[0].id


@pytest.fixture(params=["Scala", "ours", "native"])
def live(request: pytest.FixtureRequest, broker: KafkaBroker, registry: Registry, join: Join) -> Live:
    @contextmanager
    def native(move: Move, topic: str) -> Iterator[str]:
        with join(move.group, topic):
            yield "anna"

    kinds: dict[str, Live] = {
        "Scala": lambda move, topic: _scala(broker, registry, move, topic),
        "ours": lambda move, topic: _ours(registry, move, topic),
        "native": native,
    }
    return kinds[request.param]


def test_a_group_with_an_active_member_is_refused_also_by_an_earlier_plan(
    broker: KafkaBroker, registry: Registry, live: Live
) -> None:
    before, topic = _group_of(broker, registry)
    after = Move(registry, broker.address, before.group)
    before.plan()
    assert before.obstacles == ()

    with live(before, topic) as name:
        after.plan()
        assert name in texts(after.obstacles)
        for move in (before, after):
            assert move.apply() == {Outcome.LEFT: 2}
            assert all(name in row.detail for row in move.reports)
        assert move.on_target() == {}
        assert move.mark() is None


def test_a_zkgroups_member_cannot_join_a_moved_group_until_it_is_rolled_back(
    broker: KafkaBroker, registry: Registry
) -> None:
    move, topic = _group_of(broker, registry)
    move.plan()
    assert move.apply() == {Outcome.WRITTEN: 2}

    with pytest.raises(GroupMigratedError), Member(registry.group(move.group), [topic]) as member:
        next(member.generations())

    assert move.roll_back() == {Outcome.WRITTEN: 2}
    with _ours(registry, move, topic):
        assert move.mark() is None
