"""Failures 13 and 22: offsets of deleted messages are never copied unchanged. Whole runs, on real logs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.conftest import Writer
from tests.testing.unique import unique_numbers
from tests.testing.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.offset_decision import OutOfRange, Reason, Rule
from zkgroups.core.migration.plan_rows import Match, Outcome
from zkgroups.testing import KafkaBroker

from .moving import Move
from .native import NativeReader, NumberedProducer

_numbers = unique_numbers()


@pytest.fixture
def topic(legacy_kafka: KafkaBroker) -> str:
    """A topic with three partitions; partition 0 starts at the ninth message, as after retention."""
    name = f"lost-{next(_numbers)}"
    legacy_kafka.create_topic(name, 3)
    NumberedProducer(name, 3, legacy_kafka.address).write(120)
    Writer(legacy_kafka.address).delete_before(name, 0, 8)
    return name


@pytest.fixture
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield registry


def test_a_group_whose_messages_were_deleted_is_refused_without_on_out_of_range(
    legacy_kafka: KafkaBroker, registry: Registry, topic: str
) -> None:
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    registry.group(topic).offsets.set_many({first: 5, second: 10, third: 1000})
    refused = Move(registry, legacy_kafka.address, topic)

    refused.plan()
    assert tuple(map(str, refused.obstacles)) == ("1 refused: before the start", "1 refused: past the end")
    assert refused.apply() == {Outcome.LEFT: 3}
    assert refused.on_target() == {}

    move = Move(registry, legacy_kafka.address, topic, rule=Rule(OutOfRange.EARLIEST))
    move.plan()
    assert [row.reason for row in move.rows] == [Reason.CLAMPED, Reason.UNCHANGED, Reason.CLAMPED]
    assert move.apply() == {Outcome.WRITTEN: 3}
    assert move.verify() == {Match.EQUAL: 3}
    with NativeReader(legacy_kafka.address, topic, topic, 3) as native:
        done = native.do_all()
    begun = {at: min(each.offset for each in done if each.at == at) for at in (first, second, third)}
    assert begun == {first: 8, second: 10, third: 0}


def test_only_the_new_offsets_of_a_recreated_topic_are_moved(
    legacy_kafka: KafkaBroker, registry: Registry, topic: str
) -> None:
    """The new topic has as many messages, so the old offset is in its log."""
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    offsets = registry.group(topic).offsets
    offsets.set_many({first: 5, second: 10, third: 15})
    writer = Writer(legacy_kafka.address)
    writer.admin.delete_topics([topic])[topic].result()
    assert eventually(lambda: registry.topic(topic) is None, timeout=30)
    legacy_kafka.create_topic(topic, 2)
    NumberedProducer(topic, 2, legacy_kafka.address).write(40)
    offsets.reset({second: 1}, force=True)
    move = Move(registry, legacy_kafka.address, topic)

    move.plan()

    assert [row.reason for row in move.rows] == [Reason.OLDER, Reason.UNCHANGED, Reason.NO_PARTITION]
    assert move.apply() == {Outcome.SKIPPED: 2, Outcome.WRITTEN: 1}
    assert {at: each.offset for at, each in move.on_target().items()} == {second: 1}
    assert move.roll_back()[Outcome.LEFT] == 0
    assert move.on_target() == {}
