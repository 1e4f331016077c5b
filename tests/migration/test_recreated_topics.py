"""A topic that is deleted and recreated after the plan, on a cluster with another ZooKeeper."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tests.kafka.conftest import Writer
from tests.migration.conftest import Join, MakeTopic
from tests.migration.moving import Move
from tests.waiting import eventually
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.core.migration.follow_rules import FollowState
from zkgroups.core.migration.plan_rows import Match, Outcome
from zkgroups.kafka import Brokers
from zkgroups.kafka.errors import Offsets
from zkgroups.kafka.requests.commit_offsets import Outcomes
from zkgroups.migration.apply import apply_groups
from zkgroups.testing import KafkaBroker

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]
RECREATED = "topics were recreated since the plan: "


@pytest.fixture
def topic(broker: KafkaBroker, make_topic: MakeTopic) -> str:
    """Two partitions with twenty messages each."""
    name = make_topic()
    fill(broker, name)
    return name


@pytest.fixture
def move(registry: Registry, broker: KafkaBroker, topic: str) -> Move:
    """A plan for a group that has read some messages."""
    registry.group(topic).offsets.set_many({TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 10})
    move = Move(registry, broker.address, topic)
    move.plan()
    assert all(row.topic_id for row in move.rows)
    return move


def fill(broker: KafkaBroker, topic: str) -> None:
    for partition in range(2):
        broker.write(topic, partition, 20)


def recreate(broker: KafkaBroker, topic: str) -> None:
    """Recreate the topic with as many messages, so that the log has the same offsets."""
    writer = Writer(broker.address)
    writer.admin.delete_topics([topic])[topic].result()
    with Brokers.connect(broker.address) as brokers:
        assert eventually(lambda: not brokers.partitions([topic]))
    assert eventually(lambda: is_created(broker, topic))
    fill(broker, topic)


def is_created(broker: KafkaBroker, topic: str) -> bool:
    """Create the topic. Return False while an old broker, which no longer shows the earlier topic, still deletes it."""
    try:
        broker.create_topic(topic, 2)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def test_nothing_is_written_to_a_topic_that_was_recreated_since_the_plan(
    broker: KafkaBroker, topic: str, move: Move
) -> None:
    recreate(broker, topic)

    assert move.apply() == {Outcome.LEFT: 2}
    assert {row.detail for row in move.reports} == {f"{RECREATED}{topic}/0, {topic}/1"}
    with move.following() as following:
        [group] = following.end().values()
    assert (group.state, "topic recreated" in group.detail) == (FollowState.LEFT, True)
    assert (move.on_target(), move.mark()) == ({}, None)
    move.plan()
    assert move.apply() == {Outcome.WRITTEN: 2}, "a new plan is for the new topic"


def test_nothing_is_copied_back_from_a_topic_that_was_recreated_after_the_migration(
    registry: Registry, broker: KafkaBroker, topic: str, move: Move
) -> None:
    planned = move.rows
    move.rows = [row._replace(topic_id=None) for row in planned]
    assert move.apply() == {Outcome.WRITTEN: 2}, "plans of earlier versions have no ids"
    move.rows = planned
    assert move.verify() == {Match.EQUAL: 2}
    recreate(broker, topic)
    Writer(broker.address).commit(topic, {(topic, 0): 5, (topic, 1): 15})

    assert move.verify() == {Match.RECREATED: 2}
    with move.following(to_zookeeper=True) as following:
        [group] = following.end().values()
    assert (group.state, group.detail) == (FollowState.LEFT, f"{topic}: topic recreated")
    assert {each.offset for each in registry.group(topic).offsets} == {5, 10}


def test_a_rollback_does_not_restore_offsets_of_an_earlier_topic(
    broker: KafkaBroker, topic: str, move: Move, make_topic: MakeTopic
) -> None:
    other = make_topic()
    Writer(broker.address).commit(topic, {(topic, 0): 3, (other, 0): 0})
    move.plan()
    assert move.apply() == {Outcome.WRITTEN: 2, Outcome.SKIPPED: 1}
    recreate(broker, topic)

    assert move.roll_back(to_zookeeper=True) == {Outcome.LEFT: 3}
    move.roll_back()

    of_it = {row.partition: (row.outcome, row.detail) for row in move.reports if row.topic == topic}
    assert of_it[0] == (Outcome.SKIPPED, "topic recreated")
    assert {at: found.offset for at, found in move.on_target().items()} == {TopicPartition(other, 0): 0}


def test_a_rollback_restores_no_offset_of_an_earlier_topic_on_brokers_without_topic_ids(
    legacy_kafka: KafkaBroker,
) -> None:
    """Their ZooKeeper has the transaction that created the topic, if it is the one of the source."""
    name = "recreated-without-id"
    legacy_kafka.create_topic(name, 2)
    fill(legacy_kafka, name)
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        registry.group(name).offsets.set_many({TopicPartition(name, 0): 5, TopicPartition(name, 1): 10})
        Writer(legacy_kafka.address).commit(name, {(name, 0): 3})
        move = Move(registry, legacy_kafka.address, name)
        assert {row.topic_id for row in move.plan()} == {None}
        assert move.apply() == {Outcome.WRITTEN: 2}
        recreate(legacy_kafka, name)

        assert move.roll_back()[Outcome.SKIPPED] == 1
        assert {row.detail for row in move.reports if row.partition == 0} == {"topic recreated"}
        assert TopicPartition(name, 0) not in move.on_target()
        assert move.mark() is None


@pytest.mark.parametrize(("single", "committed"), [(True, 5), (False, 15)], ids=["offsets", "group"])
def test_a_rollback_that_deletes_offsets_keeps_those_of_the_new_topic(
    broker: KafkaBroker, topic: str, move: Move, committed: int, single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether brokers can delete single offsets, or only the group; and whether the new offset is the planned one."""
    monkeypatch.setattr(Brokers, "can_delete_offsets", lambda _: single)
    at = TopicPartition(topic, 0)
    Writer(broker.address).commit(topic, {(topic, 0): 3})
    other = TopicPartition(f"{topic}-other", 0)
    broker.create_topic(other.topic, 1)
    move.commit_to_source({other: 0})
    move.plan()
    assert move.apply() == {Outcome.WRITTEN: 3}
    recreate(broker, topic)
    Writer(broker.address).commit(topic, {(topic, 0): committed})

    assert move.roll_back() == {Outcome.LEFT: 3}
    assert {row.detail for row in move.reports} == {f"offsets were committed on the target since the migration: {at}"}
    assert {at: found.offset for at, found in move.on_target().items()} == {at: committed, other: 0}

    move.roll_back(force=True)
    of_it = {(row.topic, row.partition): (row.outcome, row.written, row.detail) for row in move.reports}
    rewritten = (Outcome.SKIPPED, None) if single else (Outcome.WRITTEN, committed)
    assert of_it[topic, 0] == (*rewritten, "topic recreated")
    assert of_it[other.topic, 0] == (Outcome.WRITTEN, None, "deleted")
    assert {at: found.offset for at, found in move.on_target().items()} == {at: committed}


def test_following_detects_a_recreated_topic_that_joined_the_group_after_the_plan(
    registry: Registry, broker: KafkaBroker, topic: str, move: Move, make_topic: MakeTopic
) -> None:
    late = TopicPartition(make_topic(), 0)
    fill(broker, late.topic)
    with registry.group(topic).instance() as instance:
        instance.register([topic])
        move.commit_to_source({late: 14})
        with move.following() as following:
            assert eventually(lambda: late in move.on_target())
            recreate(broker, late.topic)
            instance.deregister()
            [group] = following.end().values()

    assert (group.state, f"{late.topic}: topic recreated" in group.detail) == (FollowState.LEFT, True)
    assert late not in move.on_target()


def test_following_back_detects_a_recreated_topic_that_joined_the_group_after_the_plan(
    registry: Registry, broker: KafkaBroker, topic: str, move: Move, make_topic: MakeTopic, join: Join
) -> None:
    late = TopicPartition(make_topic(), 0)
    fill(broker, late.topic)
    assert move.apply() == {Outcome.WRITTEN: 2}
    offsets = registry.group(topic).offsets
    with join(topic, topic) as consumer:
        consumer.commit(offsets=[KafkaPartition(late.topic, late.partition, 12)], asynchronous=False)
        with move.following(to_zookeeper=True) as following:
            assert eventually(lambda: offsets.fetch(late) is not None)
            recreate(broker, late.topic)
            consumer.commit(offsets=[KafkaPartition(late.topic, late.partition, 15)], asynchronous=False)
            [group] = following.end().values()

    assert (group.state, group.detail) == (FollowState.LEFT, f"{late.topic}: topic recreated")
    found = offsets.fetch(late)
    assert isinstance(found, CommittedOffset)
    assert found.offset == 12


def test_a_topic_that_is_recreated_between_the_check_and_the_commit_is_reported(
    registry: Registry, broker: KafkaBroker, topic: str, move: Move
) -> None:
    class Raced(Brokers):
        def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
            recreate(broker, topic)
            return super().commit(offsets, **options)

    with Raced.connect(broker.address) as brokers:
        report = apply_groups(move.rows, brokers, registry, execute=True)

    assert {(row.outcome, row.detail) for row in report} == {
        (Outcome.OVERTAKEN, f"while offsets were written: {RECREATED}{topic}/0, {topic}/1")
    }
