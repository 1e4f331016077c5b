"""Several gateways as processes, with real clients: killed, suspended, started at once, and restarted one by one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import aiokafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from tests.cli.running import TIMEOUT
from tests.waiting import eventually
from zkgroups import Registry
from zkgroups.core.znodes.own_nodes import decode_coordinator
from zkgroups.testing import KafkaBroker

from .live_moves import Load
from .peers import JavaConsumer, consumer_groups, kafka_python, member, settled
from .running import GatewayProcess

pytestmark = pytest.mark.timeout(300)

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

        assert eventually(shared), java.lines()
        assert len(sessions(registry, group)) == 1
        assert coordinator_port(registry, group) == first.broker_port
        listed = consumer_groups(legacy_kafka.release, other.address, "--list").split()
        assert listed.count(group) == 1
        shown = consumer_groups(legacy_kafka.release, other.address, "--describe", "--group", group)
        assert sum(line.split()[:1] == [topic] for line in shown.splitlines()) == 8, shown


def test_no_message_is_read_twice_when_gateways_are_restarted_under_load(
    legacy_kafka: KafkaBroker, registry: Registry, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    """Members commit what they have read before their gateway ends."""
    both, group = ",".join(each.address for each in gateways), "restarted-under-load"
    with Load(legacy_kafka, group, 4, [both, both]) as load:
        assert eventually(lambda: load.is_settled)
        with load.writing():
            for _ in range(2):
                written = load.written
                assert eventually(lambda: load.written > written + 10)  # noqa: B023
                [coordinator] = [each for each in gateways if each.broker_port == coordinator_port(registry, group)]
                before = sessions(registry, group)
                assert len(before) == 1
                coordinator.end()
                # The other gateway may have members already, while the process was ending.
                assert sessions(registry, group).isdisjoint(before)
                coordinator.start()
                coordinator.wait_ready()
                assert eventually(lambda: load.is_settled and len(sessions(registry, group)) == 1)
        assert eventually(lambda: load.has_read_all)
    assert sum(load.read.values()) == len(load.read)
