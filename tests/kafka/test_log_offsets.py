"""Offsets in logs: on real brokers, and from leaders that move, fail, or are older than message times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.deadline import Deadline
from zkgroups.exceptions import BrokersTooOldError, NoPermissionError, NotConnectedError
from zkgroups.kafka.requests.log_offsets import log_ranges, offsets_at
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Cluster
from zkgroups.kafka.wire.error_codes import Code
from zkgroups.testing import KafkaBroker

from .conftest import Writer
from .wire.conftest import run, with_brokers, with_cluster
from .wire.fake_broker import Asked, Behaviour, FakeBroker, Send

MakeTopic = Callable[..., str]
PATIENCE = 4
"""In seconds. Even a machine that stands still for most of it gets the answers that come."""
NOON = int(time.time() * 1000) - 3_600_000
ZERO, ONE, GONE = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("gone", 0)
Answers = Mapping[int, int | Code]
"""By partition: the offset, or the error."""


def patience() -> Deadline:
    return Deadline(30)


@pytest.mark.kafka
@pytest.mark.xdist_group("kafka")
@pytest.mark.timeout(1000)
class TestRealBrokers:
    """The logs of both brokers."""

    def test_ranges_and_times_are_answered_for_each_partition(
        self, broker: KafkaBroker, writer: Writer, make_topic: MakeTopic
    ) -> None:
        topic = make_topic(2)
        first, second, beyond = (TopicPartition(topic, number) for number in range(3))
        writer.produce(topic, 0, [NOON, NOON + 1000, NOON + 2000])
        writer.delete_before(topic, 0, 1)
        strange = [TopicPartition(name, 0) for name in ("none", "a b", "größe", "x" * 40_000)]
        wanted = {0: 1, NOON: 1, NOON + 1001: 2, NOON + 2001: 3, 2**62: 3}

        async def use(cluster: Cluster) -> None:
            found = await log_ranges(cluster, [second, beyond, first, *strange], patience())
            unknown: dict[TopicPartition, None] = dict.fromkeys([beyond, *strange])
            assert found == {second: OffsetRange(0, 0), first: OffsetRange(1, 3)} | unknown
            assert list(found)[:2] == [second, beyond]
            for ms, offset in wanted.items():
                times = dict.fromkeys([first, second, beyond], ms)
                assert await offsets_at(cluster, times, patience()) == {first: offset, second: 0, beyond: None}
            assert "none" not in (await cluster.metadata()).topics

        with_cluster(broker.address, use)

    def test_a_topic_that_was_just_created_is_waited_for(self, broker: KafkaBroker, writer: Writer) -> None:
        name = f"fresh-{time.monotonic_ns()}"
        writer.create_topic(name, [[1]] * 300)
        wanted = [TopicPartition(name, number) for number in range(300)]

        async def use(cluster: Cluster) -> None:
            assert eventually(lambda: len(writer.admin.list_topics(name).topics[name].partitions) == 300, timeout=120)
            assert set((await log_ranges(cluster, wanted, patience())).values()) == {OffsetRange(0, 0)}

        with_cluster(broker.address, use)


def answering(answers: Answers) -> Behaviour:
    """Answer requests for offsets like this."""

    async def answer(asked: Asked, send: Send) -> None:
        kind = codec.ListOffsetsResponse.ListOffsetsTopicResponse
        topics = [
            kind(name=topic.name, partitions=[_partition(each, asked.version, answers) for each in topic.partitions])
            for topic in asked.message.topics
        ]
        await send(asked.frame(codec.ListOffsetsResponse(topics=topics)))

    return answer


def _partition(each: Any, version: int, answers: Answers) -> Any:
    found = answers[each.partition_index]
    code, offset = (found, -1) if isinstance(found, Code) else (Code.NONE, found)
    kind = codec.ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    old = [offset] if version == 0 and code == Code.NONE else []
    return kind(partition_index=each.partition_index, error_code=int(code), offset=offset, old_style_offsets=old)


def test_a_partition_that_moves_is_asked_for_at_its_new_leader() -> None:
    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        async def moved(asked: Asked, send: Send) -> None:
            for fake in fakes:
                fake.leaders = {"orders": {0: 1, 1: 1}}
            await answering({0: Code.NOT_LEADER_OR_FOLLOWER})(asked, send)

        fakes[0].behaviours[codec.LIST_OFFSETS] = moved
        fakes[1].behaviours[codec.LIST_OFFSETS] = answering({0: 7, 1: 8})
        assert await log_ranges(cluster, [ZERO, ONE], patience()) == {ZERO: OffsetRange(7, 7), ONE: OffsetRange(8, 8)}

    with_brokers(use)


def test_a_leader_that_never_answers_leaves_only_its_partitions_unknown() -> None:
    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        fakes[0].behaviours[codec.LIST_OFFSETS] = answering({0: Code.LEADER_NOT_AVAILABLE})
        fakes[1].behaviours[codec.LIST_OFFSETS] = answering({1: 8})
        found = await log_ranges(cluster, [ZERO, ONE, GONE], Deadline(PATIENCE))
        assert found == {ZERO: None, ONE: OffsetRange(8, 8), GONE: None}
        with pytest.raises(
            NotConnectedError, match=f"no leader of orders/0 answered within {PATIENCE} s: leader not avail"
        ):
            await log_ranges(cluster, [ZERO, GONE], Deadline(PATIENCE))

        await fakes[0].stop()
        fakes[1].leaders = {"orders": {0: -1, 1: 1}}
        found = await log_ranges(cluster, [ZERO, ONE], patience())
        assert found == {ZERO: None, ONE: OffsetRange(8, 8)}

    with_brokers(use)


def test_the_others_are_answered_although_one_leader_used_all_of_the_time_of_a_slow_network() -> None:
    """Each answer takes longer than what is left for the last attempt."""

    def late(behaviour: Behaviour) -> Behaviour:
        async def answer(asked: Asked, send: Send) -> None:
            await asyncio.sleep(0.05)
            await behaviour(asked, send)

        return answer

    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        for fake, answers in zip(fakes, ({0: Code.LEADER_NOT_AVAILABLE}, {1: 8}), strict=True):
            fake.behaviours = {codec.METADATA: late(fake.answer), codec.LIST_OFFSETS: late(answering(answers))}
        assert await log_ranges(cluster, [ZERO, ONE], Deadline(PATIENCE)) == {ZERO: None, ONE: OffsetRange(8, 8)}
        assert await offsets_at(cluster, {ZERO: NOON, ONE: NOON}, Deadline(PATIENCE)) == {ZERO: None, ONE: 8}
        with pytest.raises(
            NotConnectedError, match=f"no leader of orders/0 answered within {PATIENCE} s: leader not avail"
        ):
            await log_ranges(cluster, [ZERO], Deadline(PATIENCE))

    with_brokers(use)


def test_a_permanent_error_is_raised() -> None:
    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        fakes[0].behaviours[codec.LIST_OFFSETS] = answering({0: Code.TOPIC_AUTHORIZATION_FAILED})
        with pytest.raises(NoPermissionError, match="orders/0"):
            await log_ranges(cluster, [ZERO], patience())

    with_brokers(use)


def test_brokers_without_message_times_are_not_asked_for_any() -> None:
    """To them, a time selects a file of the log, and the answer is the offset at its start."""

    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        for fake in fakes:
            fake.last_versions = {codec.LIST_OFFSETS: 0}
            fake.behaviours[codec.LIST_OFFSETS] = self_consistent
        assert await offsets_at(cluster, {ZERO: 0, GONE: 0}, patience()) == {ZERO: 0, GONE: None}
        for times in ({ONE: 5}, {ZERO: 5, ONE: 2**62}):
            with pytest.raises(BrokersTooOldError, match=r"store no message times \(new in release 0\.10\.1\)"):
                await offsets_at(cluster, times, patience())
        assert await log_ranges(cluster, [ONE], patience()) == {ONE: OffsetRange(3, 7)}

    async def self_consistent(asked: Asked, send: Send) -> None:
        times = {each.timestamp for topic in asked.message.topics for each in topic.partitions}
        assert times <= {-1, -2}
        await answering({0: 0, 1: 3 if times == {-2} else 7})(asked, send)

    with_brokers(use)


def test_brokers_that_cannot_be_reached_are_an_error_in_time() -> None:
    async def use() -> None:
        async with Cluster("127.0.0.1:1") as cluster:
            with pytest.raises(
                NotConnectedError, match=rf"no broker at 127\.0\.0\.1:1 answered within {PATIENCE} s: no conn"
            ):
                await log_ranges(cluster, [ZERO], Deadline(PATIENCE))

    run(use())
