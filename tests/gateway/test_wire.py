"""Frames at a gateway: their order, requests without answers, unknown versions, and clients that misbehave."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups.gateway import Limits
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.address import Address
from zkgroups.testing import KafkaBroker

from .conftest import Front
from .running import LONGEST, QUICK, RunningGateway, close_all, open_many, produce, running

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(1000)]

UNSUPPORTED_VERSION = 35

# A batch with one message of one byte.
A_RECORD = bytes.fromhex(
    "000000000000000000000039000000000245c436d50000000000000000018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff000000010e00000001026d00"
)


def heartbeat(group: str) -> Any:
    return codec.HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")


def test_answers_come_in_the_order_of_the_requests(front: Front) -> None:
    """A heartbeat is answered at once, and the requests around it by the broker."""
    with front.gateway.connect() as client:
        for id in range(0, 60, 3):
            client.send(codec.MetadataRequest(topics=[]), 1, id)
            client.send(heartbeat("here-nobody"), 0, id + 1)
            client.send(heartbeat("there-nobody"), 0, id + 2)
        assert [codec.correlation_id(client.frame()) for _ in range(60)] == list(range(60))


def test_a_request_without_an_answer_does_not_shift_the_others(front: Front) -> None:
    topic = "gateway-acks"
    front.broker.create_topic(topic)
    with front.gateway.connect() as client:
        for id in range(1, 6):
            client.socket.sendall(produce(topic, 0, acks=id % 2, id=id, records=A_RECORD))
        client.send(codec.MetadataRequest(topics=[]), 1, 6)
        assert [codec.correlation_id(client.frame()) for _ in range(4)] == [1, 3, 5, 6]


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(front: Front) -> None:
    with front.gateway.connect() as client:
        client.socket.sendall(struct.pack(">ihhih", 10, codec.API_VERSIONS, 99, 7, -1))
        assert client.answer(codec.API_VERSIONS, 0).error_code == UNSUPPORTED_VERSION
        assert client.ask(codec.ApiVersionsRequest(), 0, 8).error_code == 0


def test_an_old_broker_that_does_not_know_the_version_is_passed_on_in_version_0(legacy_kafka: KafkaBroker) -> None:
    with running(legacy_kafka.address) as gateway, gateway.connect() as client:
        request = codec.ApiVersionsRequest(client_software_name="c", client_software_version="1")
        client.send(request, 3, 7)
        frame = client.frame()
        assert frame[:6] == struct.pack(">ih", 7, UNSUPPORTED_VERSION)
        offered = {each.api_key: each.max_version for each in client.ask(codec.ApiVersionsRequest(), 0).api_keys}
        assert offered[codec.JOIN_GROUP] == 2
        assert 25 not in offered


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00",
    "2 GB": struct.pack(">ihhi", 2**31 - 1, 1, 11, 1),
    "negative": struct.pack(">i", -1),
    "empty": struct.pack(">i", 0),
    "unknown request": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "hidden request": struct.pack(">ihhih", 10, 68, 0, 1, -1),
    "hidden version": struct.pack(">ihhih", 10, 1, 16, 1, -1),
    "join without fields": struct.pack(">ihhih", 10, codec.JOIN_GROUP, 5, 1, -1),
    "produce without acks": struct.pack(">ihhih", 10, 0, 3, 1, -1),
    "join of 5 MB": struct.pack(">ihhi", 5_000_000, codec.JOIN_GROUP, 5, 1),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_client_that_sends_no_requests_is_disconnected(strict: RunningGateway, data: bytes) -> None:
    with strict.connect() as client:
        client.socket.sendall(data)
        assert client.ended


@pytest.fixture(scope="module")
def strict(kafka_broker: KafkaBroker) -> Any:
    """A gateway that is impatient and small."""
    with running(kafka_broker.address, limits=Limits(connections=300, stall_timeout=0.3, groups=3)) as gateway:
        yield gateway


@pytest.mark.parametrize("half", [b"\0", b"\0\0\0\x20\0\x0b", produce("t", 0, acks=1, id=1, records=b"x" * 99)[:-50]])
def test_a_client_that_stops_within_a_frame_is_disconnected(strict: RunningGateway, half: bytes) -> None:
    with strict.connect() as client:
        client.socket.sendall(half)
        assert client.ended


def test_a_client_that_reads_nothing_does_not_stall_others(kafka_broker: KafkaBroker) -> None:
    topic = "gateway-slow"
    kafka_broker.create_topic(topic)
    kafka_broker.write(topic, 0, 20_000)
    with running(kafka_broker.address, limits=Limits(stall_timeout=1.0)) as gateway:
        with gateway.connect() as client:
            [broker] = client.ask(codec.MetadataRequest(topics=[]), 1).brokers
        address = Address(broker.host, broker.port)
        with gateway.connect(address) as slow, gateway.connect(address) as quick:
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)  # the system would keep 32 MiB
            slow.socket.sendall(b"".join(fetch(topic, id) for id in range(200)))
            for id in range(50):
                assert quick.ask(codec.MetadataRequest(topics=[]), 1, id).brokers
            assert eventually(lambda: gateway.gateway.connections == 1, timeout=LONGEST)
            assert quick.ask(heartbeat("any"), 0, 51).error_code


def fetch(topic: str, id: int) -> bytes:
    """The frame of a Fetch request in version 4, for up to a megabyte."""
    name = topic.encode()
    body = struct.pack(">hhih", 1, 4, id, -1) + struct.pack(">iiiibi", -1, 100, 1, 2**20, 0, 1)
    body += struct.pack(">h", len(name)) + name + struct.pack(">iiqi", 1, 0, 0, 2**20)
    return struct.pack(">i", len(body)) + body


def test_more_connections_than_permitted_are_disconnected_and_others_served(strict: RunningGateway) -> None:
    address = strict.gateway.address
    assert eventually(lambda: strict.gateway.connections == 0, timeout=LONGEST)  # those of other tests have ended
    writers = strict.run(open_many(address, 400, b""))
    try:
        assert eventually(lambda: strict.gateway.connections == 300, timeout=LONGEST)
        with strict.connect() as one_more:
            assert one_more.ended
    finally:
        strict.run(close_all(writers))
    assert eventually(lambda: strict.gateway.connections == 0, timeout=LONGEST)
    with strict.connect() as client:
        assert client.ask(codec.MetadataRequest(topics=[]), 1).brokers


def test_no_more_groups_are_created_than_permitted(strict: RunningGateway) -> None:
    def commit(group: str) -> int:
        kind = codec.OffsetCommitRequest.OffsetCommitRequestTopic
        partitions = [kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")]
        request = codec.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[kind(name="t", partitions=partitions)],
        )
        with strict.connect() as client:
            found: int = client.ask(request, 2).topics[0].partitions[0].error_code
        return found

    assert [commit(f"group-{number}") for number in range(4)] == [0, 0, 0, 15]
    assert commit("group-0") == 0


def test_a_join_request_that_waits_ends_with_its_connection(kafka_broker: KafkaBroker) -> None:
    with running(kafka_broker.address, config=replace(QUICK, initial_rebalance_delay=300)) as gateway:
        client = gateway.connect()
        client.send(codec.JoinGroupRequest(**join("waiting")), 2)
        with gateway.connect() as other:
            describe = codec.DescribeGroupsRequest(groups=["waiting"])
            assert eventually(lambda: other.ask(describe, 0).groups[0].group_state == "PreparingRebalance")
        client.close()
        assert eventually(lambda: gateway.gateway.connections == 0, timeout=LONGEST)


def join(group: str) -> dict[str, Any]:
    protocol = codec.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    return {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [protocol],
    }


def test_no_member_of_a_group_is_its_leader(front: Front) -> None:
    with front.gateway.connect() as client:
        answer = client.ask(codec.JoinGroupRequest(**join("here-leaderless")), 2)
        assert (answer.error_code, answer.leader, answer.members) == (0, "zkgroups", [])
        assert answer.member_id not in ("", answer.leader)


def test_a_request_about_groups_of_both_sides_is_split(front: Front) -> None:
    with front.gateway.connect() as client:
        request = codec.DescribeGroupsRequest(groups=["here-a", "there-b", "here-c"])
        found = client.ask(request, 0).groups
        assert {each.group_id for each in found} == {"here-a", "there-b", "here-c"}


def test_a_commit_counts_although_the_client_closes_its_connection_at_once(front: Front) -> None:
    def send(offset: int) -> None:
        kind = codec.OffsetCommitRequest.OffsetCommitRequestTopic
        partition = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        topics = [kind(name="t", partitions=[partition])]
        fields = {"group_id": "here-hurried", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        with front.gateway.connect() as client:
            client.send(codec.OffsetCommitRequest(**fields), 2)

    def committed() -> int:
        topics = [codec.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        with front.gateway.connect() as client:
            answer = client.ask(codec.OffsetFetchRequest(group_id="here-hurried", topics=topics), 1)
        found: int = answer.topics[0].partitions[0].committed_offset
        return found

    for offset in range(10):
        send(offset)
        assert eventually(lambda: committed() == offset, timeout=LONGEST)  # noqa: B023


def test_messages_without_acks_are_written_although_the_client_closes_its_connection_at_once(front: Front) -> None:
    topic = "gateway-hurried"
    front.broker.create_topic(topic)
    with front.gateway.connect() as client:
        client.socket.sendall(b"".join(produce(topic, 0, acks=0, id=id, records=A_RECORD) for id in range(50)))
    with front.gateway.connect() as client:
        kind = codec.ListOffsetsRequest.ListOffsetsTopic
        partition = kind.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = codec.ListOffsetsRequest(replica_id=-1, topics=[kind(name=topic, partitions=[partition])])
        assert eventually(lambda: client.ask(request, 1).topics[0].partitions[0].offset == 50, timeout=LONGEST)
