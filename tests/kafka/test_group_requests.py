"""Bulk requests about groups on real brokers: offsets to the byte, states, deletions, and coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from zkgroups.core.kafka_values import NativeGroup, NativeOffset, NativeState
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.deadline import Deadline
from zkgroups.exceptions import BrokersTooOldError, GroupNotFoundError, TooLargeError, UnknownPartitionError
from zkgroups.kafka.requests import commit_requests
from zkgroups.kafka.requests.commit_offsets import commit
from zkgroups.kafka.requests.commit_requests import CommitRequest
from zkgroups.kafka.requests.coordinators import Coordinators, partition_of
from zkgroups.kafka.requests.fetch_offsets import fetch
from zkgroups.kafka.requests.native_groups import delete, describe
from zkgroups.kafka.requests.offset_deletes import can_delete_offsets, delete_offsets
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Cluster
from zkgroups.testing import KafkaBroker

from .wire.conftest import with_cluster

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

NAMES = ("a b", "größe/日本🎉", "with a NUL\0", "x" * 300)


@pytest.mark.parametrize("version", range(2, 10))
def test_a_template_makes_the_bytes_of_the_encoder(version: int) -> None:
    places = [TopicPartition(topic, number) for topic in ("a", "b") for number in (0, 3, 200)]
    for group in (*NAMES, "y" * 127, "z" * 20_000):
        offsets = [NativeOffset(group, at, 2**63 - 1 - number) for number, at in enumerate(places)]
        plain = codec.encode(commit_requests._message(group, offsets), version, 77, "client")
        frame, template = commit_requests.encode(CommitRequest(group, offsets), version, 77, "client")
        assert template is not None
        assert frame == plain


def test_only_an_equal_answer_without_errors_is_not_decoded() -> None:
    at = TopicPartition("a", 0)
    _, template = commit_requests.encode(CommitRequest("g", [NativeOffset("g", at, 1)]), 8, 1, "another client")
    kind = codec.OffsetCommitResponse

    def answer(*codes: int, first: int = 0) -> bytes:
        part = kind.OffsetCommitResponseTopic.OffsetCommitResponsePartition
        parts = [part(partition_index=number, error_code=code) for number, code in enumerate(codes, first)]
        response = kind(throttle_time_ms=0, topics=[kind.OffsetCommitResponseTopic(name="a", partitions=parts)])
        return b"\0\0\0\1\0" + bytes(response.encode(version=8))

    assert commit_requests.read(8, answer(), template) == {}
    assert commit_requests.read(8, answer(16), template) == {("a", 0): 16}
    assert commit_requests.read(8, answer(0, first=7), template) == {("a", 7): 0}
    assert template is not None
    assert template.good is None
    assert commit_requests.read(8, answer(0), template) == {("a", 0): 0}
    assert commit_requests.read(8, b"\0\0\0\2" + answer(0)[4:], template) is None
    assert commit_requests.read(8, answer(16), template) == {("a", 0): 16}


def test_offsets_are_committed_and_read_to_the_byte_and_groups_deleted(
    broker: KafkaBroker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(3)
    places = [TopicPartition(topic, number) for number in range(3)]
    epoch = None if broker.release == "1.1.1" else 5
    wanted = [NativeOffset(group, at, 7 + at.partition) for group in NAMES for at in places]
    wanted += [NativeOffset("bytes", places[0], 2**63 - 1, "ü \0 note\0", epoch)]
    long = NativeOffset("bytes", places[1], 1, "x" * 4097)

    async def use(cluster: Cluster) -> None:
        coordinators = Coordinators(cluster)
        found = await commit(cluster, coordinators, [*wanted, long], 30)
        assert isinstance(found["bytes"].pop(places[1]), TooLargeError)
        assert {error for those in found.values() for error in those.values()} == {None}

        names = [*NAMES, "bytes"]
        there = await fetch(cluster, coordinators, [*names, "nobody's"], Deadline(30))
        assert there.pop("nobody's") == {}
        assert there == {name: {each.at: each for each in wanted if each.group == name} for name in names}

        states = await describe(cluster, coordinators, names, Deadline(30))
        assert states == {name: NativeGroup(name, NativeState.EMPTY) for name in names}
        gone = await delete(cluster, coordinators, [*names, "nobody's"], Deadline(30))
        assert isinstance(gone.pop("nobody's"), GroupNotFoundError)
        assert gone == dict.fromkeys(names)
        states = await describe(cluster, coordinators, names, Deadline(30))
        assert states == {name: NativeGroup(name, NativeState.DEAD) for name in names}

    with_cluster(broker.address, use)


def test_the_hash_of_a_group_is_its_partition(legacy_kafka: KafkaBroker, make_topic: Callable[..., str]) -> None:
    """The values are those of Java's String.hashCode."""
    assert [partition_of(name, 2**31) for name in ("", "a", "hello world")] == [0, 97, 1794106052]
    assert partition_of("polygenelubricants", 50) == 0  # the lowest hash of all


def test_many_groups_go_in_one_call(broker: KafkaBroker, make_topic: Callable[..., str]) -> None:
    topic = make_topic(2)
    names = [f"many-{topic}-{number}" for number in range(500)]
    wanted = [NativeOffset(name, TopicPartition(topic, part), part) for name in names for part in range(2)]

    async def use(cluster: Cluster) -> None:
        coordinators = Coordinators(cluster)
        found = await commit(cluster, coordinators, wanted, 30)
        assert {error for those in found.values() for error in those.values()} == {None}
        there = await fetch(cluster, coordinators, names, Deadline(30))
        assert there == {name: {each.at: each for each in wanted if each.group == name} for name in names}

    with_cluster(broker.address, use)


@pytest.mark.parametrize("kill", [True, False])
def test_offsets_of_a_restarted_broker_are_committed_or_not(own: KafkaBroker, kill: bool) -> None:
    at = TopicPartition("orders", 0)
    names = [f"restarted-{kill}-{number}" for number in range(2000)]

    async def use(cluster: Cluster) -> None:
        coordinators = Coordinators(cluster)
        running = asyncio.create_task(commit(cluster, coordinators, [NativeOffset(name, at, 9) for name in names], 180))
        await asyncio.sleep(0.2)  # somewhere in between
        await asyncio.to_thread(own.kill if kill else own.stop)
        await asyncio.to_thread(own.start)
        found = await running
        assert {error for those in found.values() for error in those.values()} == {None}
        there = await fetch(cluster, coordinators, names, Deadline(180))
        assert {name: {at: NativeOffset(name, at, 9)} for name in names} == there

    with_cluster(own.address, use)


def test_single_offsets_are_deleted_since_2_4(broker: KafkaBroker, make_topic: Callable[..., str]) -> None:
    topic = make_topic(3)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    wanted = [NativeOffset("single", at, 7) for at in (first, second, third)]

    async def use(cluster: Cluster) -> None:
        coordinators = Coordinators(cluster)
        await commit(cluster, coordinators, wanted, 30)
        unknown = TopicPartition(topic, 9)
        asked = {"single": [second, third, unknown], "nobody's": [first], "empty": []}
        found = await delete_offsets(cluster, coordinators, asked, Deadline(30))
        there = (await fetch(cluster, coordinators, ["single"], Deadline(30)))["single"]
        assert isinstance(there, dict)
        if not await can_delete_offsets(cluster, Deadline(30)):
            assert {type(error) for those in found.values() for error in those.values()} == {BrokersTooOldError}
            assert set(there) == {first, second, third}
            return
        assert isinstance(found["single"][unknown], UnknownPartitionError)
        assert [found["single"][at] for at in (second, third)] == [None, None]
        assert (found["nobody's"], found["empty"]) == ({first: None}, {})
        assert set(there) == {first}

    with_cluster(broker.address, use)
