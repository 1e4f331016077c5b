"""Requests to brokers that move, fail, refuse, or are older than a feature, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from zkgroups.core.kafka_values import NativeState, OffsetRange
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.deadline import Deadline
from zkgroups.exceptions import BrokersTooOldError, NoPermissionError, NotConnectedError
from zkgroups.kafka.requests.group_requests import metadata, topic_ids
from zkgroups.kafka.requests.log_offsets import log_ranges, offsets_at
from zkgroups.kafka.requests.native_groups import list_groups, offsets_retention
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Cluster
from zkgroups.kafka.wire.connection import Code

from .wire.fake_broker import HOST, Asked, Behaviour, FakeBroker, Send, with_brokers

OFFSETS = "__consumer_offsets"
ZERO, ONE, GONE = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("gone", 0)
NO_LEADER = "no leader of orders/0 answered within 4 s: leader not avail"


def patience(seconds: float = 30) -> Deadline:
    return Deadline(seconds)


# Groups of all brokers


def listing(code: int = Code.NONE, **groups: str) -> Behaviour:
    """List these groups with their states."""

    async def answer(asked: Asked, send: Send) -> None:
        kind = codec.ListGroupsResponse
        listed = [
            kind.ListedGroup(group_id=name, protocol_type="consumer", group_state=state, group_type="classic")
            for name, state in groups.items()
        ]
        await send(asked.frame(kind(error_code=int(code), groups=listed)))

    return answer


@with_brokers
async def test_a_group_that_moves_while_groups_are_listed_is_not_missed(
    cluster: Cluster, fakes: Sequence[FakeBroker]
) -> None:
    async def moved(asked: Asked, send: Send) -> None:
        if fakes[0].leaders[OFFSETS] == {0: 0, 1: 1}:
            for fake in fakes:
                fake.leaders = {OFFSETS: {0: 0, 1: 0}}
            fakes[0].behaviours[codec.LIST_GROUPS] = listing(a="Empty", b="Stable")
        await listing()(asked, send)

    for fake in fakes:
        fake.leaders = {OFFSETS: {0: 0, 1: 1}}
    fakes[0].behaviours[codec.LIST_GROUPS] = listing(a="Empty")
    fakes[1].behaviours[codec.LIST_GROUPS] = moved
    assert await list_groups(cluster, patience()) == {"a": NativeState.EMPTY, "b": NativeState.STABLE}


@with_brokers
async def test_a_list_without_the_groups_of_a_broker_is_an_error(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
    fakes[0].behaviours[codec.LIST_GROUPS] = listing(a="Empty")
    fakes[1].behaviours[codec.LIST_GROUPS] = listing(Code.COORDINATOR_LOAD_IN_PROGRESS, b="Empty")
    with pytest.raises(NotConnectedError, match="within 4 s: coordinator load in progress"):
        await list_groups(cluster, patience(4))
    fakes[1].behaviours[codec.LIST_GROUPS] = listing(Code.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(NoPermissionError, match="groups of broker 1"):
        await list_groups(cluster, patience())
    await fakes[1].stop()
    with pytest.raises(NotConnectedError, match="within 4 s: no connection to"):
        await list_groups(cluster, patience(4))


@with_brokers
async def test_a_last_attempt_without_time_does_not_replace_the_reason_of_earlier_ones(
    cluster: Cluster, fakes: Sequence[FakeBroker]
) -> None:
    deadline = patience(4)

    async def answer_late(asked: Asked, send: Send) -> None:
        if codec.LIST_GROUPS in fakes[1].asked:
            await asyncio.sleep(deadline.remaining + 0.1)
        await fakes[0].answer(asked, send)

    fakes[0].behaviours[codec.LIST_GROUPS] = listing(a="Empty")
    fakes[1].behaviours[codec.LIST_GROUPS] = listing(Code.COORDINATOR_LOAD_IN_PROGRESS)
    for fake in fakes:
        fake.behaviours[codec.METADATA] = answer_late
    with pytest.raises(NotConnectedError, match="within 4 s: coordinator load in progress"):
        await list_groups(cluster, deadline)


# A setting of all brokers


def configured(minutes: str | None, code: int = Code.NONE) -> Behaviour:
    async def answer(asked: Asked, send: Send) -> None:
        kind = codec.DescribeConfigsResponse.DescribeConfigsResult
        [wanted] = asked.message.resources
        setting = kind.DescribeConfigsResourceResult(
            name=wanted.configuration_keys[0],
            value=minutes,
            read_only=False,
            is_sensitive=False,
            synonyms=[],
            documentation=None,
        )
        result = kind(
            error_code=int(code),
            resource_type=4,
            resource_name=wanted.resource_name,
            error_message=None,
            configs=[setting] if minutes else [],
        )
        await send(asked.frame(codec.DescribeConfigsResponse(results=[result])))

    return answer


@pytest.mark.parametrize(
    ("second", "seconds"),
    [
        (configured("5"), 300),
        (configured(None, Code.CLUSTER_AUTHORIZATION_FAILED), 600),
        (configured(None, Code.REQUEST_TIMED_OUT), 600),
        (None, 600),
    ],
)
@with_brokers
async def test_the_shortest_retention_of_all_brokers_counts(
    cluster: Cluster, fakes: Sequence[FakeBroker], second: Behaviour | None, seconds: int
) -> None:
    fakes[0].behaviours[codec.DESCRIBE_CONFIGS] = configured("10")
    if second is None:
        await fakes[1].stop()
    else:
        fakes[1].behaviours[codec.DESCRIBE_CONFIGS] = second
    assert await offsets_retention(cluster, patience(4)) == seconds


@with_brokers
async def test_brokers_without_settings_report_no_retention(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
    for fake in fakes:
        fake.last_versions = {codec.DESCRIBE_CONFIGS: -1}
    assert await offsets_retention(cluster, patience()) is None


# Topics


@with_brokers
async def test_topics_that_a_user_may_not_see_are_an_error(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
    async def refused(asked: Asked, send: Send) -> None:
        kind = codec.MetadataResponse
        topic = kind.MetadataResponseTopic(error_code=29, name="orders", topic_id=None, partitions=[])
        own = kind.MetadataResponseBroker(node_id=0, host=HOST, port=fakes[0].port)
        await send(asked.frame(kind(brokers=[own], topics=[topic], cluster_id=None, controller_id=-1)))

    fakes[0].behaviours[codec.METADATA] = refused
    with pytest.raises(NoPermissionError, match="topic 'orders'"):
        await topic_ids(cluster, ["orders"], patience())


@with_brokers
async def test_a_broker_that_has_just_started_does_not_hide_topics(
    cluster: Cluster, fakes: Sequence[FakeBroker]
) -> None:
    """Until the controller has told it, a broker with ZooKeeper knows neither brokers nor topics."""

    async def empty(asked: Asked, send: Send) -> None:
        await send(asked.frame(codec.MetadataResponse(brokers=[], topics=[], cluster_id=None, controller_id=-1)))
        del fakes[0].behaviours[codec.METADATA]

    fakes[0].behaviours[codec.METADATA] = empty
    found = await metadata(cluster, ["orders"], patience())
    assert (found.brokers.keys(), found.topics["orders"].leaders) == ({0, 1}, {0: 0, 1: 1})
    assert codec.METADATA not in fakes[0].behaviours


# Offsets in logs


def answering(answers: Mapping[int, int | Code]) -> Behaviour:
    """Answer requests for offsets: by partition, the offset or the error."""

    async def answer(asked: Asked, send: Send) -> None:
        kind = codec.ListOffsetsResponse.ListOffsetsTopicResponse
        topics = [
            kind(name=topic.name, partitions=[_partition(each, asked.version, answers) for each in topic.partitions])
            for topic in asked.message.topics
        ]
        await send(asked.frame(codec.ListOffsetsResponse(topics=topics)))

    return answer


def _partition(each: Any, version: int, answers: Mapping[int, int | Code]) -> Any:
    found = answers[each.partition_index]
    code, offset = (found, -1) if isinstance(found, Code) else (Code.NONE, found)
    kind = codec.ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    old = [offset] if version == 0 and code == Code.NONE else []
    return kind(partition_index=each.partition_index, error_code=int(code), offset=offset, old_style_offsets=old)


@with_brokers
async def test_a_partition_that_moves_is_asked_for_at_its_new_leader(
    cluster: Cluster, fakes: Sequence[FakeBroker]
) -> None:
    async def moved(asked: Asked, send: Send) -> None:
        for fake in fakes:
            fake.leaders = {"orders": {0: 1, 1: 1}}
        await answering({0: Code.NOT_LEADER_OR_FOLLOWER})(asked, send)

    fakes[0].behaviours[codec.LIST_OFFSETS] = moved
    fakes[1].behaviours[codec.LIST_OFFSETS] = answering({0: 7, 1: 8})
    assert await log_ranges(cluster, [ZERO, ONE], patience()) == {ZERO: OffsetRange(7, 7), ONE: OffsetRange(8, 8)}


@with_brokers
async def test_a_leader_that_never_answers_leaves_only_its_partitions_unknown(
    cluster: Cluster, fakes: Sequence[FakeBroker]
) -> None:
    fakes[0].behaviours[codec.LIST_OFFSETS] = answering({0: Code.LEADER_NOT_AVAILABLE})
    fakes[1].behaviours[codec.LIST_OFFSETS] = answering({1: 8})
    found = await log_ranges(cluster, [ZERO, ONE, GONE], patience(4))
    assert found == {ZERO: None, ONE: OffsetRange(8, 8), GONE: None}
    with pytest.raises(NotConnectedError, match=NO_LEADER):
        await log_ranges(cluster, [ZERO, GONE], patience(4))
    await fakes[0].stop()
    fakes[1].leaders = {"orders": {0: -1, 1: 1}}
    assert await log_ranges(cluster, [ZERO, ONE], patience()) == {ZERO: None, ONE: OffsetRange(8, 8)}


@with_brokers
async def test_the_others_are_answered_although_one_leader_used_all_of_the_time_of_a_slow_network(
    cluster: Cluster, fakes: Sequence[FakeBroker]
) -> None:
    """Each answer takes longer than what is left for the last attempt."""

    def late(behaviour: Behaviour) -> Behaviour:
        async def answer(asked: Asked, send: Send) -> None:
            await asyncio.sleep(0.05)
            await behaviour(asked, send)

        return answer

    for fake, answers in zip(fakes, ({0: Code.LEADER_NOT_AVAILABLE}, {1: 8}), strict=True):
        fake.behaviours = {codec.METADATA: late(fake.answer), codec.LIST_OFFSETS: late(answering(answers))}
    assert await log_ranges(cluster, [ZERO, ONE], patience(4)) == {ZERO: None, ONE: OffsetRange(8, 8)}
    assert await offsets_at(cluster, {ZERO: 1, ONE: 1}, patience(4)) == {ZERO: None, ONE: 8}
    with pytest.raises(NotConnectedError, match=NO_LEADER):
        await log_ranges(cluster, [ZERO], patience(4))


@with_brokers
async def test_a_permanent_error_of_a_leader_is_raised(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
    fakes[0].behaviours[codec.LIST_OFFSETS] = answering({0: Code.TOPIC_AUTHORIZATION_FAILED})
    with pytest.raises(NoPermissionError, match="orders/0"):
        await log_ranges(cluster, [ZERO], patience())


@with_brokers
async def test_brokers_without_message_times_are_not_asked_for_any(
    cluster: Cluster, fakes: Sequence[FakeBroker]
) -> None:
    """To them, a time selects a file of the log, and the answer is the offset at its start."""

    async def self_consistent(asked: Asked, send: Send) -> None:
        times = {each.timestamp for topic in asked.message.topics for each in topic.partitions}
        assert times <= {-1, -2}
        await answering({0: 0, 1: 3 if times == {-2} else 7})(asked, send)

    for fake in fakes:
        fake.last_versions = {codec.LIST_OFFSETS: 0}
        fake.behaviours[codec.LIST_OFFSETS] = self_consistent
    assert await offsets_at(cluster, {ZERO: 0, GONE: 0}, patience()) == {ZERO: 0, GONE: None}
    for times in ({ONE: 5}, {ZERO: 5, ONE: 2**62}):
        with pytest.raises(BrokersTooOldError, match=r"store no message times \(new in release 0\.10\.1\)"):
            await offsets_at(cluster, times, patience())
    assert await log_ranges(cluster, [ONE], patience()) == {ONE: OffsetRange(3, 7)}
