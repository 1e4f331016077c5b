"""Clients of every family at gateways in front of both brokers: they join, share, commit, take over and leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Partition

from tests.waiting import LONGEST, eventually
from zkgroups import CommittedOffset, Consumergroup, Owner, Registry
from zkgroups.gateway.zookeeper_storage import ZooKeeperStorage, coordinator_config
from zkgroups.testing import KafkaBroker
from zkgroups.testing.kafka_broker import silent_logger

from ..printing_consumer import PrintingConsumer
from .conftest import Front
from .peers import (
    GoConsumer,
    JavaConsumer,
    administrator,
    commit,
    consumer_groups,
    describe,
    listed,
    member,
    offsets,
    settled,
)
from .running import RunningGateway, running

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(1000)]

MakeTopic = Callable[..., str]
current_broker = pytest.mark.parametrize("front", ["kafka_broker"], indirect=True)

# librdkafka


def test_members_join_share_commit_leave_and_resume(front: Front, make_topic: MakeTopic) -> None:
    """A group is deleted once it is empty."""
    topic, bootstrap = make_topic(6, messages=3), front.gateway.bootstrap
    group = f"here-{topic}"
    with administrator(bootstrap) as admin, member(bootstrap, group, topic) as first:
        assert settled(first, shares={6})
        assert eventually(lambda: first.poll() or len(first.read) == 18)
        assert all(each.error is None for each in first.consumer.commit(asynchronous=False))
        with member(bootstrap, group, topic) as second:
            assert settled(first, second, shares={3})
            shown = describe(bootstrap, group)
            assert shown.state is ConsumerGroupState.STABLE
            assert sorted(len(each.assignment.topic_partitions) for each in shown.members) == [3, 3]
            assert {(each.client_id, each.host) for each in shown.members} == {("rdkafka", "/127.0.0.1")}
        assert settled(first, shares={6})
        assert second.read == []
        with pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups([group])[group].result(LONGEST)
        assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    assert eventually(lambda: describe(bootstrap, group).state is ConsumerGroupState.EMPTY)
    assert offsets(bootstrap, group, topic) == dict.fromkeys(range(6), 3)
    with administrator(bootstrap) as admin:
        admin.delete_consumer_groups([group])[group].result(LONGEST)
    assert offsets(bootstrap, group, topic) == {}
    assert group not in listed(bootstrap)


@current_broker
def test_cooperative_members_keep_the_partitions_that_do_not_move(front: Front, make_topic: MakeTopic) -> None:
    topic, bootstrap = make_topic(4), front.gateway.bootstrap
    config = {"partition.assignment.strategy": "cooperative-sticky"}
    with member(bootstrap, f"here-{topic}", topic, **config) as first:
        assert settled(first, shares={4})
        with member(bootstrap, f"here-{topic}", topic, **config) as second:
            assert settled(first, second, shares={2})
            assert sorted(first.revoked) == sorted(second.partitions)


@current_broker
def test_a_static_member_keeps_its_partitions_while_it_restarts(front: Front, make_topic: MakeTopic) -> None:
    topic, bootstrap = make_topic(4), front.gateway.bootstrap
    group = f"here-{topic}"
    with member(bootstrap, group, f"^{topic}$") as other:
        with member(bootstrap, group, topic, **{"group.instance.id": "one"}) as static:
            assert settled(other, static, shares={2})
            before, revoked = static.partitions.copy(), other.revoked.copy()
        with member(bootstrap, group, topic, **{"group.instance.id": "one"}) as static:
            assert eventually(lambda: other.poll() or static.poll() or static.partitions == before)
        assert (len(other.partitions), other.revoked) == (2, revoked)
        assert "one" in {each.group_instance_id for each in describe(bootstrap, group).members}


def test_groups_that_do_not_match_stay_with_the_broker(front: Front, make_topic: MakeTopic) -> None:
    topic, bootstrap = make_topic(), front.gateway.bootstrap
    here, there = f"here-{topic}", f"there-{topic}"
    commit(bootstrap, here, topic, 7)
    commit(bootstrap, there, topic, 8)
    assert (offsets(bootstrap, here, topic), offsets(bootstrap, there, topic)) == ({0: 7}, {0: 8})
    assert offsets(front.broker.address, here, topic) == {}
    assert offsets(front.broker.address, there, topic) == {0: 8}
    assert [name for name in listed(bootstrap) if name.endswith(topic)] == [here, there]
    with member(bootstrap, there, topic) as found:
        assert settled(found, shares={1})
        assert describe(front.broker.address, there).state is ConsumerGroupState.STABLE


def test_a_transaction_is_committed_but_offsets_cannot_take_part(front: Front, make_topic: MakeTopic) -> None:
    topic, bootstrap = make_topic(), front.gateway.bootstrap
    settings = {"bootstrap.servers": bootstrap, "transactional.id": topic}
    with Producer(settings, logger=silent_logger()) as producer, member(bootstrap, f"here-{topic}", topic) as found:
        producer.init_transactions(LONGEST)
        producer.begin_transaction()
        producer.produce(topic, b"m")
        producer.commit_transaction(LONGEST)
        assert eventually(lambda: found.poll() or found.read == [(0, 0)])
        producer.begin_transaction()
        with pytest.raises(KafkaException) as refused:
            producer.send_offsets_to_transaction(
                [Partition(topic, 0, 1)], found.consumer.consumer_group_metadata(), LONGEST
            )
    assert refused.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE


# Python and Java


STALLED_MS = 25_000
"""A consumer whose last request is never answered waits 30 s before it ends."""


def test_java_and_librdkafka_share_a_group_and_kafkas_tool_shows_it(front: Front, make_topic: MakeTopic) -> None:
    """The tool also resets and deletes. The partitions of a member that is killed go to the other."""
    topic, bootstrap = make_topic(4, messages=2), front.gateway.bootstrap
    group, release = f"here-{topic}", front.broker.release
    config = {"client.id": "java"}
    with member(bootstrap, group, topic) as other:
        assert settled(other, shares={4})
        for number in range(2):
            with JavaConsumer(release, bootstrap, group, topic, config=config) as java:
                assert eventually(lambda: other.poll() or len(other.partitions) == len(java.partitions) == 2), (
                    java.lines()
                )
                if number:
                    java.kill()
                else:
                    shown = consumer_groups(release, bootstrap, "--describe", "--group", group)
                    rows = [line.split() for line in shown.splitlines() if topic in line]
                    assert sorted("java" in " ".join(row) for row in rows) == [False, False, True, True], shown
                    assert java.leave() < STALLED_MS
                assert eventually(lambda: other.poll() or len(other.partitions) == 4)
    to_end = ("--reset-offsets", "--to-latest", "--execute", "--group", group, "--topic", topic)
    shown = consumer_groups(release, bootstrap, *to_end)
    assert offsets(bootstrap, group, topic) == dict.fromkeys(range(4), 2), shown
    assert consumer_groups(release, bootstrap, "--list").split().count(group) == 1
    shown = consumer_groups(release, bootstrap, "--delete", "--group", group)
    assert offsets(bootstrap, group, topic) == {}, shown


@current_broker
def test_a_client_of_the_next_generation_of_groups_is_told_the_cure(front: Front, make_topic: MakeTopic) -> None:
    settings = {"group.protocol": "consumer", "session.timeout.ms": "", "heartbeat.interval.ms": ""}
    topic = make_topic()
    with JavaConsumer(front.broker.release, front.gateway.bootstrap, f"here-{topic}", topic, config=settings) as java:
        assert eventually(lambda: any("group.protocol=classic" in line for line in java.lines()))


# Other families, with their groups in ZooKeeper

QUICK = replace(coordinator_config(), min_session_timeout=1.0, initial_rebalance_delay=0.2)


def family_of(name: str, bootstrap: str, group: str, topic: str) -> PrintingConsumer:
    if name.startswith("java"):
        return JavaConsumer(name[5:], bootstrap, group, topic)
    return GoConsumer(name, bootstrap, group, topic)


@pytest.fixture(scope="module")
def legacy_registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield registry


@pytest.fixture(scope="module")
def gateway(legacy_kafka: KafkaBroker, legacy_registry: Registry) -> Iterator[RunningGateway]:
    """A gateway with its groups in ZooKeeper."""
    with ExitStack() as stack:

        def storage(_topics: object, report: Any) -> ZooKeeperStorage:
            return stack.enter_context(ZooKeeperStorage(legacy_registry, report))

        with running(legacy_kafka.address, config=QUICK, storage=storage) as gateway:
            yield gateway


def committed(group: Consumergroup) -> dict[int, int]:
    return {each.at.partition: each.offset for each in group.offsets if isinstance(each, CommittedOffset)}


def holders(group: Consumergroup) -> list[int]:
    """The number of partitions of each member, in order."""
    owners = [owner.id for owner in group.owners() if isinstance(owner, Owner)]
    return sorted(owners.count(id) for id in set(owners))


@pytest.mark.parametrize("family", ["franz-go", "kafka-go", "sarama", "java-3.9.1"])
def test_two_members_share_the_second_takes_over_continues_and_leaves(
    family: str, gateway: RunningGateway, legacy_registry: Registry, legacy_kafka: KafkaBroker
) -> None:
    topic = group_name = f"family-{family}"
    legacy_kafka.create_topic(topic, 4)
    for partition in range(4):
        legacy_kafka.write(topic, partition, 3)
    group, everything = legacy_registry.group(group_name), {f"{topic}-{number}" for number in range(4)}
    where = (gateway.bootstrap, group_name, topic)
    with family_of(family, *where) as first, family_of(family, *where) as second:
        assert eventually(lambda: holders(group) == [2, 2]), (first.lines(), second.lines())
        assert eventually(lambda: len(first.partitions) == 2 and first.partitions | second.partitions == everything)
        assert eventually(lambda: committed(group) == dict.fromkeys(range(4), 3)), first.lines()
        assert sorted({*first.read, *second.read}) == [
            f"{topic}-{number}@{at}" for number in range(4) for at in range(3)
        ]
        first.kill()
        assert eventually(lambda: second.partitions == everything and holders(group) == [4]), second.lines()
        before = len(second.read)
        for partition in range(4):
            legacy_kafka.write(topic, partition, 1)
        assert eventually(lambda: committed(group) == dict.fromkeys(range(4), 4)), second.lines()
        # A member that stands still for longer than its session reads again what it has not committed.
        assert set(second.read[before:]) == {f"{at}@3" for at in everything}
        assert second.leave() < STALLED_MS
    # The gateway answers a member that leaves before it deletes the member's nodes.
    assert eventually(lambda: ([*group.instances()], holders(group)) == ([], []))
