"""Two brokers between which all groups move while offsets are committed, fetched and deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple, Protocol

import pytest
from kafka import KafkaAdminClient
from kafka import TopicPartition as Partition

from tests.lasting import lasting_client
from tests.waiting import eventually
from zkgroups.core.kafka_values import NativeGroup, NativeOffset, NativeState
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.deadline import Deadline
from zkgroups.kafka.requests.commit_offsets import commit
from zkgroups.kafka.requests.fetch_offsets import fetch
from zkgroups.kafka.requests.group_requests import Coordinators
from zkgroups.kafka.requests.native_groups import delete, describe, list_groups
from zkgroups.kafka.wire.cluster import Cluster
from zkgroups.testing import KafkaBroker, Server, fresh_chroot

from .wire.conftest import with_cluster

# A group of its own, because these tests start their own brokers.
pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper, pytest.mark.xdist_group("moving"), pytest.mark.timeout(1000)]

OFFSETS = "__consumer_offsets"
NAMES = [f"moving-{number}" for number in range(500)]
MOVES = 4
LONGEST = 180.0


class Move(Protocol):
    """Begins to move all groups to some brokers, and the first becomes their coordinator."""

    def __call__(self, *brokers: int) -> None: ...


class Pair(NamedTuple):
    """Two brokers. All groups are at the first."""

    first: KafkaBroker
    second: KafkaBroker
    move: Move


class Joining(KafkaBroker):
    """A second broker without ZooKeeper."""

    def __init__(self, first: KafkaBroker) -> None:
        super().__init__()
        self._first = first

    def _overrides(self) -> dict[str, str]:
        return {
            "node.id": "2",
            "process.roles": "broker",
            "controller.quorum.voters": f"1@{self._first._address('CONTROLLER')}",
            "listeners": f"PLAINTEXT://{self.address}",
        }


@pytest.fixture(scope="module", params=["1.1.1", "4.3.1"])
def pair(request: pytest.FixtureRequest, zookeeper: Server) -> Iterator[Pair]:
    with ExitStack() as stack:
        if request.param == "4.3.1":
            first = stack.enter_context(KafkaBroker())
            second: KafkaBroker = stack.enter_context(Joining(first))
            admin = KafkaAdminClient(bootstrap_servers=first.address)
            stack.callback(admin.close)

            def move(*brokers: int) -> None:
                admin.alter_partition_reassignments({Partition(OFFSETS, number): [*brokers] for number in range(4)})
        else:
            hosts = stack.enter_context(fresh_chroot(zookeeper))
            first = stack.enter_context(KafkaBroker(release="1.1.1", zookeeper=hosts))
            second = stack.enter_context(KafkaBroker(release="1.1.1", zookeeper=hosts, config={"broker.id": "2"}))
            client = stack.enter_context(lasting_client(hosts))

            def move(*brokers: int) -> None:
                plan = [{"topic": OFFSETS, "partition": number, "replicas": brokers} for number in range(4)]
                assert eventually(lambda: not client.exists("/admin/reassign_partitions"))
                client.create("/admin/reassign_partitions", json.dumps({"version": 1, "partitions": plan}).encode())

        first.create_topic("orders")
        yield Pair(first, second, move)


async def moved(cluster: Cluster, move: Move, to: int) -> None:
    """Move all groups, and wait until they are there."""
    await asyncio.to_thread(move, to)
    async with asyncio.timeout(LONGEST):
        while set((await cluster.metadata([OFFSETS])).topics[OFFSETS].leaders.values()) != {to}:
            await asyncio.sleep(0.01)


def test_every_offset_ends_right_while_all_groups_move(pair: Pair) -> None:
    at = TopicPartition("orders", 0)

    async def moving(address: str) -> None:
        async with Cluster(address) as cluster:
            for number in range(MOVES):
                await moved(cluster, pair.move, 2 - number % 2)

    async def use(cluster: Cluster) -> None:
        coordinators = Coordinators(cluster)
        async with asyncio.timeout(LONGEST):  # the first broker may hear late of the second one
            while len((await cluster.metadata([])).brokers) != 2:
                await asyncio.sleep(0.01)
        moves = asyncio.create_task(moving(pair.first.address))
        rounds = 0
        while not moves.done() or not rounds:
            rounds += 1
            wanted = {name: {at: NativeOffset(name, at, rounds)} for name in NAMES}
            committed = await commit(cluster, coordinators, [each[at] for each in wanted.values()], LONGEST)
            assert committed == {name: {at: None} for name in NAMES}
            assert await fetch(cluster, coordinators, NAMES, Deadline(LONGEST)) == wanted
            found = await describe(cluster, coordinators, NAMES, Deadline(LONGEST))
            assert found == {name: NativeGroup(name, NativeState.EMPTY) for name in NAMES}
            await list_groups(cluster, Deadline(LONGEST))
        await moves
        async with asyncio.timeout(LONGEST):  # a new coordinator of release 4 first lists none of its groups
            while not set(NAMES) <= (await list_groups(cluster, Deadline(LONGEST))).keys():
                await asyncio.sleep(0.01)

    with_cluster(pair.first.address, use)


def test_groups_are_deleted_once_while_they_move(pair: Pair) -> None:
    """A broker of release 1.1 that is about to lose groups may answer that it deleted them, and keep them."""
    at = TopicPartition("orders", 0)

    async def use(cluster: Cluster) -> None:
        coordinators = Coordinators(cluster)
        for to in (2, 1):
            await commit(cluster, coordinators, [NativeOffset(name, at, 7) for name in NAMES], LONGEST)
            await asyncio.to_thread(pair.move, to)
            left = NAMES
            while left:
                assert await delete(cluster, coordinators, left, Deadline(LONGEST)) == dict.fromkeys(left)
                there = await fetch(cluster, coordinators, left, Deadline(LONGEST))
                left = [name for name in left if there[name] != {}]
                assert not left or pair.first.release == "1.1.1"
            await moved(cluster, lambda *_: None, to)

    with_cluster(pair.first.address, use)
