"""All operations in one script, with a connection that is cut at every request in turn: every answer stays right."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping

import pytest

from zkgroups.core.kafka_values import NativeGroup, NativeOffset, NativeState, OffsetRange
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.deadline import Deadline
from zkgroups.exceptions import BrokersTooOldError, GroupNotFoundError, OutcomeUnknownError
from zkgroups.kafka.requests.commit_offsets import commit
from zkgroups.kafka.requests.fetch_offsets import fetch
from zkgroups.kafka.requests.group_requests import Coordinators, metadata, topic_ids
from zkgroups.kafka.requests.log_offsets import log_ranges, offsets_at
from zkgroups.kafka.requests.native_groups import (
    can_delete_offsets,
    delete,
    delete_offsets,
    describe,
    list_groups,
    offsets_retention,
)
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Cluster
from zkgroups.kafka.wire.errors import addresses
from zkgroups.testing import KafkaBroker, Server, fresh_chroot

from .conftest import Writer
from .wire.conftest import run, with_cluster
from .wire.cutting_proxy import CuttingProxy, Moment

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

GROUPS = 3
_runs = itertools.count()


def patience() -> Deadline:
    return Deadline(30)


async def script(cluster: Cluster, broker: KafkaBroker, topic: str) -> None:
    """Run every operation, and check every answer."""
    coordinators = Coordinators(cluster)
    names = [f"cut-{topic}-{next(_runs)}" for _ in range(GROUPS)]
    places = [TopicPartition(topic, number) for number in range(2)]

    def kept(group: str, *ats: TopicPartition) -> Mapping[TopicPartition, NativeOffset]:
        return {at: NativeOffset(group, at, 7 + at.partition, "note" if at.partition else None) for at in ats}

    assert (await metadata(cluster, [topic, "none"], patience())).topics[topic].leaders.keys() == {0, 1}
    assert len(await topic_ids(cluster, [topic, "none"], patience())) == (broker.release != "1.1.1")
    ranges = await log_ranges(cluster, [*places, TopicPartition("none", 0)], patience())
    assert ranges == {**dict.fromkeys(places, OffsetRange(0, 0)), TopicPartition("none", 0): None}
    assert await offsets_at(cluster, dict.fromkeys(places, 5), patience()) == dict.fromkeys(places, 0)
    assert await offsets_retention(cluster, patience()) == (1 if broker.release == "1.1.1" else 7) * 86_400

    offsets = [each for name in names for each in kept(name, *places).values()]
    assert await commit(cluster, coordinators, offsets, 30) == {name: dict.fromkeys(places) for name in names}
    there = await fetch(cluster, coordinators, [*names, "nobody's"], patience())
    assert there == {**{name: kept(name, *places) for name in names}, "nobody's": {}}
    states = await describe(cluster, coordinators, [*names, "nobody's"], patience())
    assert states.pop("nobody's") == NativeGroup("nobody's", NativeState.DEAD)
    assert states == {name: NativeGroup(name, NativeState.EMPTY) for name in names}
    assert set(names) <= (await list_groups(cluster, patience())).keys()

    found = await delete_offsets(cluster, coordinators, {names[0]: places[:1]}, patience())
    there = await fetch(cluster, coordinators, names[:1], patience())
    if await can_delete_offsets(cluster, patience()):
        assert (found, there) == ({names[0]: {places[0]: None}}, {names[0]: kept(names[0], places[1])})
    else:
        assert isinstance(found[names[0]][places[0]], BrokersTooOldError)
        assert there == {names[0]: kept(names[0], *places)}
    gone = await delete(cluster, coordinators, [*names, "nobody's"], patience())
    # If the answer is lost, the request itself may have deleted the group.
    assert isinstance(gone.pop("nobody's"), GroupNotFoundError | None)
    assert gone == dict.fromkeys(names)
    there = await fetch(cluster, coordinators, names, patience())
    assert there == {name: {} for name in names}


async def was_cut(broker: KafkaBroker, topic: str, number: int, moment: Moment) -> bool:
    """Run the script, and cut at this request. Return False if there were fewer requests."""
    [address] = addresses(broker.address)
    async with CuttingProxy(address) as proxy, Cluster(str(proxy.address)) as cluster, asyncio.timeout(120):
        proxy.arm(number, moment)
        await script(cluster, broker, topic)
        return proxy.cut


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_every_answer_is_right_whichever_request_is_cut(
    broker: KafkaBroker, make_topic: Callable[..., str], every: bool
) -> None:
    """At every request, and for longer with every moment. If the broker is slow, there are more requests."""
    topic, number = make_topic(2), 1
    while all(
        run(was_cut(broker, topic, number, moment))
        for moment in (Moment if every else [[*Moment][number % len(Moment)]])
    ):
        number += 1
    assert number > len(codec.APIS)


@pytest.mark.soak
@pytest.mark.zookeeper
@pytest.mark.parametrize("release", ["2.8.2", "3.9.1"])
def test_every_answer_is_right_on_releases_between_the_oldest_and_the_newest(release: str, zookeeper: Server) -> None:
    async def use(cluster: Cluster) -> None:
        await script(cluster, broker, "orders")

    with (
        fresh_chroot(zookeeper) as hosts,
        KafkaBroker(release=release, zookeeper=hosts if release.startswith("2.") else None) as broker,
    ):
        broker.create_topic("orders", 2)
        with_cluster(broker.address, use)


@pytest.mark.parametrize("key", [codec.OFFSET_COMMIT, codec.OFFSET_DELETE, codec.DELETE_GROUPS])
def test_a_request_without_an_answer_is_not_sent_again_over_the_commit_of_another_client(
    broker: KafkaBroker, make_topic: Callable[..., str], writer: Writer, key: int
) -> None:
    """A consumer that ran for a moment, while this client had no connection."""
    at = TopicPartition(make_topic(), 0)
    group = f"shared-{at.topic}"
    writer.commit(group, {(at.topic, 0): 3})

    async def use() -> None:
        [address] = addresses(broker.address)
        async with CuttingProxy(address) as proxy, Cluster(str(proxy.address)) as cluster:
            coordinators = Coordinators(cluster)
            if key == codec.OFFSET_DELETE and not await can_delete_offsets(cluster, patience()):
                return
            before = await fetch(cluster, coordinators, [group], patience())
            proxy.arm_after(key, lambda: writer.commit(group, {(at.topic, 0): 80}))
            if key == codec.OFFSET_COMMIT:
                found = (await commit(cluster, coordinators, [NativeOffset(group, at, 50)], 30, before))[group][at]
            elif key == codec.OFFSET_DELETE:
                found = (await delete_offsets(cluster, coordinators, {group: [at]}, patience(), before))[group][at]
            else:
                found = (await delete(cluster, coordinators, [group], patience(), before))[group]
            assert proxy.cut
            assert isinstance(found, OutcomeUnknownError)
            now = (await fetch(cluster, coordinators, [group], patience()))[group]
            assert isinstance(now, Mapping)
            assert now[at].offset == 80

    run(use())
