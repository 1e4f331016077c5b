"""Several gateways as processes, with real clients: killed, suspended, started at once, and restarted one by one."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import aiokafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from tests.cli.running import TIMEOUT
from tests.testing.waiting import eventually
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.coordinator import Subscription, encode_subscription
from zkgroups.core.znodes.coordinator_node import decode_coordinator
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.address import Address
from zkgroups.testing import KafkaBroker, ports

from .gateway_process import GatewayProcess
from .java_peers import JavaConsumer, consumer_groups
from .live_moves import Load
from .running import LONGEST, RawClient
from .test_librdkafka import Member, describe, member, settled
from .test_python_clients import kafka_python

pytestmark = pytest.mark.timeout(300)

REFUSED = (14, 15, 16, 25)
"""The coordinator is loading, not available, another one, or does not know the member."""


@pytest.fixture
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield registry


def coordinator_port(registry: Registry, group: str) -> int:
    """The port of the coordinator's broker; 0 if the group has none."""
    path = f"/zkgroups/coordinators/{group}"
    if registry.client.exists(path) is None:
        return 0
    return decode_coordinator(registry.client.get(path)[0]).first_port


def sessions(registry: Registry, group: str) -> set[int]:
    """The sessions in which members of the group are registered: one for each gateway that has members."""
    return {each.session for each in registry.group(group).instances()}


@contextmanager
def aiokafka_member(bootstrap: str, group: str, topic: str) -> Iterator[set[tuple[int, int]]]:
    """A member written with aiokafka. It reads until the end of the block, and commits what it has read."""
    read: set[tuple[int, int]] = set()
    ended = threading.Event()

    async def use() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[RangePartitionAssignor],
            heartbeat_interval_ms=200,
            session_timeout_ms=10_000,
            metadata_max_age_ms=1000,
            enable_auto_commit=True,
            auto_commit_interval_ms=100,
        )
        await consumer.start()
        try:
            while not ended.is_set():
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    read.update((each.partition, each.offset) for each in messages)
        finally:
            await consumer.stop()

    thread = threading.Thread(target=asyncio.run, args=(use(),))
    thread.start()
    try:
        yield read
    finally:
        ended.set()
        thread.join(TIMEOUT)


def test_the_clients_of_a_killed_gateway_continue_at_another(
    legacy_kafka: KafkaBroker, registry: Registry, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    """All join at the coordinator, also the client that knows only the other gateway."""
    topic = group = "killed-gateway"
    legacy_kafka.create_topic(topic, 6)
    killed, stays = gateways
    with member(killed.address, group, topic) as first:
        assert settled(first, shares={6})
    quick = {"topic.metadata.refresh.interval.ms": 300}
    with ExitStack() as stack:
        one = stack.enter_context(member(f"{killed.address},{stays.address}", group, topic, **quick))
        assert settled(one, shares={6})
        assert coordinator_port(registry, group) == killed.broker_port
        other = stack.enter_context(member(stays.address, group, topic, **quick))
        assert settled(one, other, shares={3})
        [before] = sessions(registry, group)
        for partition in range(6):
            legacy_kafka.write(topic, partition, 2)
        assert eventually(partial(has_read, (one, other), 12), timeout=LONGEST)
        assert len(describe(killed.address, group).members) == 2
        killed.send(signal.SIGKILL)

        def moved() -> bool:
            has_read((one, other), 12)
            return len(sessions(registry, group) - {before}) == 1

        assert eventually(moved, timeout=LONGEST)
        assert settled(one, other, shares={3})
        assert coordinator_port(registry, group) == stays.broker_port
        for partition in range(6):
            legacy_kafka.write(topic, partition, 2)
        assert eventually(partial(has_read, (one, other), 24), timeout=LONGEST)
        assert sessions(registry, group).isdisjoint({before})


def test_all_clients_that_know_only_another_gateway_join_at_the_coordinator(
    legacy_kafka: KafkaBroker, registry: Registry, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    """Some take the address from the answer to FindCoordinator, others take it from the list of brokers."""
    topic = group = "redirected"
    legacy_kafka.create_topic(topic, 8)
    first, other = gateways
    with ExitStack() as stack:
        one = stack.enter_context(member(first.address, group, topic))
        assert settled(one, shares={8})
        rdkafka = stack.enter_context(
            member(other.address, group, topic, **{"topic.metadata.refresh.interval.ms": 300})
        )
        java = stack.enter_context(JavaConsumer(legacy_kafka.release, other.address, group, topic))
        python = stack.enter_context(kafka_python(other.address, group, topic))
        stack.enter_context(aiokafka_member(other.address, group, topic))

        def shared() -> bool:
            one.poll()
            rdkafka.poll()
            python.poll(50)
            sizes = {len(one.partitions), len(rdkafka.partitions), len(java.partitions), len(python.assignment())}
            return sizes == {1, 2} and len(list(registry.group(group).instances())) == 5

        assert eventually(shared, timeout=2 * LONGEST), java.lines()
        assert len(sessions(registry, group)) == 1
        assert coordinator_port(registry, group) == first.broker_port
        listed = consumer_groups(legacy_kafka.release, other.address, "--list").split()
        assert listed.count(group) == 1
        shown = consumer_groups(legacy_kafka.release, other.address, "--describe", "--group", group)
        assert sum(line.split()[:1] == [topic] for line in shown.splitlines()) == 8, shown


def raw_member(client: RawClient, group: str, topic: str) -> tuple[str, int]:
    """Join a group by single requests. Return the member id and the generation."""
    metadata = encode_subscription(Subscription(frozenset({topic})))
    protocol = codec.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
    fields = {"group_id": group, "protocol_type": "consumer", "protocols": [protocol], "member_id": ""}
    fields |= {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000}
    joined = client.ask(codec.JoinGroupRequest(**fields), 2)
    assert joined.error_code == 0
    sync = codec.SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[]
    )
    assert client.ask(sync, 1).error_code == 0
    return joined.member_id, joined.generation_id


def commit_of(group: str, topic: str, member_id: str, generation: int, offset: int) -> Any:
    kind = codec.OffsetCommitRequest
    partition = kind.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topics = [kind.OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    return kind(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        retention_time_ms=-1,
        topics=topics,
    )


def test_a_gateway_that_was_suspended_for_longer_than_its_session_changes_nothing(
    legacy_kafka: KafkaBroker, registry: Registry, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    """Its client has sent a heartbeat and a commit meanwhile. It answers them after another gateway has taken over."""
    topic = group = "suspended-gateway"
    legacy_kafka.create_topic(topic, 2)
    legacy_kafka.write(topic, 0, 9)
    suspended, other = gateways
    with RawClient(Address(ports.HOST, suspended.port)) as raw:
        member_id, generation = raw_member(raw, group, topic)
        assert raw.ask(commit_of(group, topic, member_id, generation, 1), 2).topics[0].partitions[0].error_code == 0
        [before] = sessions(registry, group)
        suspended.send(signal.SIGSTOP)
        raw.send(codec.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id), 1)
        raw.send(commit_of(group, topic, member_id, generation, 2), 2)
        with member(other.address, group, topic) as found:
            assert settled(found, shares={2})
            assert eventually(lambda: found.poll() or len(found.read) == 8, timeout=LONGEST)
            found.consumer.commit(asynchronous=False)
            [after] = sessions(registry, group)
            assert after != before
            suspended.send(signal.SIGCONT)
            assert raw.answer(codec.HEARTBEAT, 1).error_code in REFUSED
            assert raw.answer(codec.OFFSET_COMMIT, 2).topics[0].partitions[0].error_code in REFUSED
            offset = registry.group(group).offsets.fetch(TopicPartition(topic, 0))
            assert isinstance(offset, CommittedOffset)
            assert offset.offset == 9
            late = codec.HeartbeatRequest(group_id=group, generation_id=1, member_id="x")
            assert eventually(lambda: found.poll() or raw.ask(late, 1).error_code == 16, timeout=LONGEST)
            assert settled(found, shares={2})
            assert sessions(registry, group) == {after}
            assert found.revoked == []


def test_no_message_is_read_twice_when_gateways_are_restarted_under_load(
    legacy_kafka: KafkaBroker, registry: Registry, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    """Members commit what they have read before their gateway ends."""
    both, group = ",".join(each.address for each in gateways), "restarted-under-load"
    with Load(legacy_kafka, group, 4, [both, both]) as load:
        assert eventually(lambda: load.is_settled, timeout=LONGEST)
        with load.writing():
            for _ in range(2):
                written = load.written
                assert eventually(lambda: load.written > written + 10, timeout=LONGEST)  # noqa: B023
                [coordinator] = [each for each in gateways if each.broker_port == coordinator_port(registry, group)]
                before = sessions(registry, group)
                assert len(before) == 1
                coordinator.end()
                # The other gateway may have members already, while the process was ending.
                assert sessions(registry, group).isdisjoint(before)
                coordinator.start()
                coordinator.wait_ready()
                assert eventually(lambda: load.is_settled and len(sessions(registry, group)) == 1, timeout=LONGEST)
        assert eventually(lambda: load.has_read_all, timeout=LONGEST)
    assert sum(load.read.values()) == len(load.read)


def has_read(members: Sequence[Member], count: int) -> bool:
    """Whether the members have read so many messages together. Polls them."""
    for each in members:
        each.poll()
    return len({message for each in members for message in each.read}) == count
