"""Complete migrations with real consumers on both sides, checked message by message.

The source is the old broker, with its topics and groups in one ZooKeeper. The target is the same cluster in one
run, and a current broker in the other. There, a mirror has written the same messages with the same offsets: a
migration copies numbers, so mirrors that assign new offsets are not supported.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testing.unique import unique_numbers
from tests.testing.waiting import eventually
from zkgroups import Registry
from zkgroups.core.migration.follow_rules import FollowState
from zkgroups.core.migration.plan_rows import Match, Outcome
from zkgroups.testing import KafkaBroker

from .legacy import LegacyReader
from .moving import Move
from .native import NativeReader, NumberedProducer, judge

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
def scene(legacy_kafka: KafkaBroker, destination: KafkaBroker) -> Iterator[Scene]:
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield Scene(legacy_kafka, destination, registry, next(_numbers))


def test_a_native_consumer_continues_where_the_scala_consumer_stopped(scene: Scene) -> None:
    scene.producer.write(150)
    with scene.legacy(80) as legacy:
        first = legacy.finish()

    scene.move.plan()
    assert scene.move.apply() == {Outcome.WRITTEN: PARTITIONS}
    assert scene.move.verify() == {Match.EQUAL: PARTITIONS}

    scene.producer.write(20)
    with scene.native() as native:
        judge(scene.producer.written, first, native.do_all())


def test_after_a_rollback_the_scala_consumer_continues_where_the_native_consumer_stopped(scene: Scene) -> None:
    scene.producer.write(150)
    with scene.legacy(60) as legacy:
        first = legacy.finish()
    scene.move.plan()
    scene.move.apply()
    with scene.native() as native:
        second = native.do(50)

    assert Outcome.LEFT not in scene.move.roll_back(to_zookeeper=True)

    assert scene.move.on_target() == {}
    with scene.legacy(150 - len(first) - len(second)) as legacy:
        judge(scene.producer.written, first, second, legacy.finish())


def test_consumers_are_switched_and_switched_back_while_messages_arrive(scene: Scene) -> None:
    scene.producer.write(30)
    with scene.producer.going_on():
        with scene.legacy() as legacy:
            legacy.until_done(40)
            assert eventually(scene.move.plan, timeout=30)  # the group has rows once an offset was committed
            with scene.move.following() as follow:
                follow.until_written()
                legacy.until_done(len(legacy.messages) + 30)
                first = legacy.finish()
                assert [group.state for group in follow.end()] == [FollowState.DONE]

        with scene.native() as native:
            native.do(50)
            native.commit()
            with scene.move.following(to_zookeeper=True) as follow:
                follow.until_written()
                second = native.do(30)
                native.close()
                assert [group.state for group in follow.end()] == [FollowState.DONE]

    with scene.legacy(len(scene.producer.written) - len(first) - len(second)) as legacy:
        judge(scene.producer.written, first, second, legacy.finish())
