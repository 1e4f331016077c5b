"""Members of a gateway and real Scala members in one group."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.consumer.scala import STILL, ScalaConsumer, await_owners, settle
from tests.waiting import eventually
from zkgroups import Owner, Registry, TopicPartition
from zkgroups.core.rebalance.assignors import round_robin_assignor
from zkgroups.gateway.zookeeper_storage import GroupSettings, ZooKeeperStorage, coordinator_config
from zkgroups.testing import KafkaBroker

from .kafka_member import KafkaMember
from .peers import Member, describe, member
from .running import running
from .served import Served

pytestmark = pytest.mark.zookeeper

TOPIC, GROUP = "gateway-mixed-groups", "gateway-mixed-groups"
PARTITIONS, MESSAGES = 6, 20


def test_librdkafka_shares_a_group_with_a_scala_member(legacy_kafka: KafkaBroker) -> None:
    legacy_kafka.create_topic(TOPIC, PARTITIONS)
    for partition in range(PARTITIONS):
        legacy_kafka.write(TOPIC, partition, MESSAGES)
    with ExitStack() as stack:
        registry = stack.enter_context(Registry.connect(legacy_kafka.zookeeper))
        group = registry.group(GROUP)
        gateway = stack.enter_context(
            running(
                legacy_kafka.address,
                config=coordinator_config(),
                storage=lambda _counts, report: stack.enter_context(ZooKeeperStorage(registry, report)),
            )
        )
        config = {"zookeeper.session.timeout.ms": "20000"}
        scala = stack.enter_context(ScalaConsumer(legacy_kafka, GROUP, "~scala", {TOPIC: 1}, config=config))
        everything = PARTITIONS * MESSAGES
        assert eventually(lambda: len(scala.messages) == everything)
        assert eventually(lambda: committed(registry) == dict.fromkeys(range(PARTITIONS), MESSAGES))

        with member(gateway.bootstrap, GROUP, TOPIC, **{"client.id": "app"}) as modern:
            assert eventually(lambda: polled(modern).partitions == {0, 1, 2})
            owners = {owner.at.partition: owner.id for owner in group.owners() if isinstance(owner, Owner)}
            assert {n for n, id in owners.items() if id != f"{scala.id}-0"} == {0, 1, 2}
            legacy_kafka.write(TOPIC, 1, 5)
            assert eventually(lambda: len(polled(modern).read) == 5)
            assert modern.read[0] == (1, MESSAGES)
            assert all(each.error is None for each in modern.consumer.commit(asynchronous=False))
            shown = {each.member_id: each.client_id for each in describe(gateway.bootstrap, GROUP).members}
            assert shown[scala.id] == "scala"
            assert sorted(shown.values()) == ["app", "scala"]
        await_owners(group, {TopicPartition(TOPIC, n): f"{scala.id}-0" for n in range(PARTITIONS)})
        assert committed(registry)[1] == MESSAGES + 5
    assert modern.errors == []


def test_members_share_by_the_strategy_of_the_scala_members(legacy_kafka: KafkaBroker) -> None:
    topic = name = "gateway-roundrobin"
    legacy_kafka.create_topic(topic, 7)
    with (
        Registry.connect(legacy_kafka.zookeeper) as registry,
        Served(registry, settings=GroupSettings(foreign_assignor="roundrobin")) as served,
        KafkaMember(served, name, topic) as member,
        ScalaConsumer(legacy_kafka, name, "scala", {topic: 2}, strategy="roundrobin") as scala,
    ):
        group = registry.group(name)
        assert eventually(lambda: member.member_id != "")
        ids = {member.member_id, scala.id}
        owners = settle(registry, group, round_robin_assignor, ids, still=STILL)
        own = {at for at, owner in owners.items() if owner == f"{member.member_id}-0"}
        assert own
        assert eventually(lambda: member.assigned == own)
        assert TopicPartition(topic, 0) in owners


def committed(registry: Registry) -> dict[int, int]:
    found = registry.group(GROUP).offsets.fetch_many(TopicPartition(TOPIC, n) for n in range(PARTITIONS))
    return {at.partition: getattr(each, "offset", -1) for at, each in found.items()}


def polled(modern: Member) -> Member:
    modern.poll()
    return modern
