"""Members, producers and administrators of librdkafka at a gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient

from tests.testing.waiting import eventually
from zkgroups.testing.kafka_client import silent_logger

from .conftest import Front
from .running import LONGEST

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(1000)]

MakeTopic = Callable[..., str]


class Member:
    """A consumer in a group, and the partitions that it has."""

    def __init__(self, bootstrap: str, group: str, *topics: str, **config: Any) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 200,
        }
        self.consumer = Consumer({**settings, **config}, logger=silent_logger())
        self.partitions: set[int] = set()
        self.revoked: list[int] = []
        self.read: list[tuple[int, int]] = []
        self.errors: list[KafkaError] = []
        self.consumer.subscribe(list(topics), on_assign=self._assign, on_revoke=self._revoke)

    def _assign(self, _consumer: Consumer, partitions: list[Partition]) -> None:
        self.partitions = self.partitions | {each.partition for each in partitions}  # others may iterate over the old

    def _revoke(self, _consumer: Consumer, partitions: list[Partition]) -> None:
        self.partitions = self.partitions - {each.partition for each in partitions}
        self.revoked += [each.partition for each in partitions]

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is None:
            return
        if (error := message.error()) is not None:
            self.errors.append(error)
        else:
            self.read.append((message.partition(), message.offset()))


@contextmanager
def member(*arguments: Any, **config: Any) -> Iterator[Member]:
    found = Member(*arguments, **config)
    try:
        yield found
    finally:
        found.consumer.close()


def settled(*members: Member, shares: set[int]) -> bool:
    """Poll all until their shares have these sizes, in any order, and nothing is shared by two."""

    def done() -> bool:
        for each in members:
            each.poll()
        sizes = {len(each.partitions) for each in members}
        return sizes == shares and len(set().union(*(each.partitions for each in members))) == sum(
            len(each.partitions) for each in members
        )

    return eventually(done, timeout=LONGEST)


def test_members_join_share_commit_leave_and_resume(front: Front, make_topic: MakeTopic) -> None:
    topic, bootstrap = make_topic(6, messages=3), front.gateway.bootstrap
    group = f"here-{topic}"
    with member(bootstrap, group, topic) as first:
        assert settled(first, shares={6})
        assert eventually(lambda: first.poll() or len(first.read) == 18, timeout=LONGEST)
        assert all(each.error is None for each in first.consumer.commit(asynchronous=False))
        with member(bootstrap, group, topic) as second:
            assert settled(first, second, shares={3})
            shown = describe(bootstrap, group)
            assert shown.state is ConsumerGroupState.STABLE
            assert sorted(len(each.assignment.topic_partitions) for each in shown.members) == [3, 3]
            assert {(each.client_id, each.host) for each in shown.members} == {("rdkafka", "/127.0.0.1")}
        assert settled(first, shares={6})
        assert second.read == []
    assert eventually(lambda: describe(bootstrap, group).state is ConsumerGroupState.EMPTY)
    assert offsets(bootstrap, group, topic) == dict.fromkeys(range(6), 3)


@pytest.mark.parametrize("front", ["kafka_broker"], indirect=True)
def test_cooperative_members_keep_the_partitions_that_do_not_move(front: Front, make_topic: MakeTopic) -> None:
    topic, bootstrap = make_topic(4), front.gateway.bootstrap
    config = {"partition.assignment.strategy": "cooperative-sticky"}
    with member(bootstrap, f"here-{topic}", topic, **config) as first:
        assert settled(first, shares={4})
        with member(bootstrap, f"here-{topic}", topic, **config) as second:
            assert settled(first, second, shares={2})
            assert sorted(first.revoked) == sorted(second.partitions)


@pytest.mark.parametrize("front", ["kafka_broker"], indirect=True)
def test_a_static_member_keeps_its_partitions_while_it_restarts(front: Front, make_topic: MakeTopic) -> None:
    topic, bootstrap = make_topic(4), front.gateway.bootstrap
    group = f"here-{topic}"
    with member(bootstrap, group, f"^{topic}$") as other:
        with member(bootstrap, group, topic, **{"group.instance.id": "one"}) as static:
            assert settled(other, static, shares={2})
            before, revoked = static.partitions.copy(), other.revoked.copy()
        with member(bootstrap, group, topic, **{"group.instance.id": "one"}) as static:
            assert eventually(lambda: other.poll() or static.poll() or static.partitions == before, timeout=LONGEST)
        assert (len(other.partitions), other.revoked) == (2, revoked)
        assert "one" in {each.group_instance_id for each in describe(bootstrap, group).members}


def describe(bootstrap: str, group: str) -> Any:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return admin.describe_consumer_groups([group])[group].result(LONGEST)


def offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(LONGEST)
    return {each.partition: each.offset for each in found.topic_partitions if each.topic == topic}


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    request = [ConsumerGroupTopicPartitions(group, [Partition(topic, 0, offset)])]
    found = admin.alter_consumer_group_offsets(request)[group].result(LONGEST)
    assert all(each.error is None for each in found.topic_partitions)


def listed(bootstrap: str) -> list[str]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return [each.group_id for each in admin.list_consumer_groups().result(LONGEST).valid]


def test_groups_that_do_not_match_stay_with_the_broker(front: Front, make_topic: MakeTopic) -> None:
    topic, bootstrap = make_topic(), front.gateway.bootstrap
    here, there = f"here-{topic}", f"there-{topic}"
    commit(bootstrap, here, topic, 7)
    commit(bootstrap, there, topic, 8)
    assert offsets(bootstrap, here, topic) == {0: 7}
    assert offsets(bootstrap, there, topic) == {0: 8}
    assert offsets(front.broker.address, here, topic) == {}
    assert offsets(front.broker.address, there, topic) == {0: 8}
    assert [name for name in listed(bootstrap) if name.endswith(topic)] == [here, there]
    with member(bootstrap, there, topic) as found:
        assert settled(found, shares={1})
        assert describe(front.broker.address, there).state is ConsumerGroupState.STABLE


def test_a_group_is_deleted_once_it_is_empty(front: Front, make_topic: MakeTopic) -> None:
    topic, bootstrap = make_topic(), front.gateway.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    group = f"here-{topic}"
    with member(bootstrap, group, topic) as found:
        assert settled(found, shares={1})
        with pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups([group])[group].result(LONGEST)
        assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    assert eventually(lambda: describe(bootstrap, group).state is ConsumerGroupState.EMPTY)
    commit(bootstrap, group, topic, 5)
    admin.delete_consumer_groups([group])[group].result(LONGEST)
    assert offsets(bootstrap, group, topic) == {}
    assert group not in listed(bootstrap)


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_messages_are_written_with_any_acks(front: Front, make_topic: MakeTopic, acks: object) -> None:
    topic = make_topic()
    producer = Producer({"bootstrap.servers": front.gateway.bootstrap, "acks": acks}, logger=silent_logger())
    large = b"x" * 900_000
    for _ in range(5):
        producer.produce(topic, large)
    assert producer.flush(LONGEST) == 0
    consumer = Consumer({"bootstrap.servers": front.broker.address, "group.id": "there-unused"})
    try:
        end = lambda: consumer.get_watermark_offsets(Partition(topic, 0), timeout=LONGEST)[1]  # noqa: E731
        assert eventually(lambda: end() == 5, timeout=LONGEST)
    finally:
        consumer.close()


def test_a_transaction_is_committed_but_offsets_cannot_take_part(front: Front, make_topic: MakeTopic) -> None:
    topic, bootstrap = make_topic(), front.gateway.bootstrap
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic}, logger=silent_logger())
    producer.init_transactions(LONGEST)
    producer.begin_transaction()
    producer.produce(topic, b"m")
    producer.commit_transaction(LONGEST)
    with member(bootstrap, f"here-{topic}", topic) as found:
        assert eventually(lambda: found.poll() or found.read == [(0, 0)], timeout=LONGEST)
        producer.begin_transaction()
        with pytest.raises(KafkaException) as refused:
            producer.send_offsets_to_transaction(
                [Partition(topic, 0, 1)], found.consumer.consumer_group_metadata(), LONGEST
            )
    assert refused.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE
