"""Frames at a gateway: their order, requests without answers, unknown versions, limits, and clients that misbehave.

In simulated time, in front of a fake broker; and what only a broker can show, on real ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from tests.kafka.wire.fake_broker import FakeBroker
from tests.simulation.loop import Network, simulated
from tests.waiting import eventually
from zkgroups.gateway import Limits
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Runner
from zkgroups.testing import KafkaBroker

from .conftest import HERE, Front
from .running import QUICK, RunningGateway, produce, running

UNKNOWN_TOPIC_OR_PARTITION = 3
GROUP_AUTHORIZATION_FAILED = 30
UNSUPPORTED_VERSION = 35

# A batch with one message of one byte.
A_RECORD = bytes.fromhex(
    "000000000000000000000039000000000245c436d50000000000000000018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff000000010e00000001026d00"
)

Start = Callable[..., RunningGateway]


@pytest.fixture
def network() -> Iterator[Network]:
    with simulated() as network:
        yield network


@pytest.fixture
def start(network: Network) -> Iterator[Start]:
    """Start a gateway in front of a fake broker, with limits and other options."""
    with ExitStack() as stack:

        def start(limits: Limits | None = None, bootstrap: str = "", **options: Any) -> RunningGateway:
            if not bootstrap:
                runner, fake = Runner(), FakeBroker()
                stack.callback(runner.close)
                runner.run(fake.start())
                bootstrap = str(fake.address)
            numbers = [network.free_port(), network.free_port()]
            return stack.enter_context(running(bootstrap, limits=limits, numbers=numbers, **options))

        yield start


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway that answers for some groups."""
    return start(pattern=HERE)


def heartbeat(group: str) -> Any:
    return codec.HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")


def test_answers_come_in_the_order_of_the_requests(gateway: RunningGateway) -> None:
    """A heartbeat is answered at once, and the requests around it by the broker."""
    with gateway.connect() as client:
        for id in range(0, 60, 2):
            client.send(codec.MetadataRequest(topics=[]), 1, id)
            client.send(heartbeat("here-nobody"), 0, id + 1)
        assert [codec.correlation_id(client.frame()) for _ in range(60)] == list(range(60))


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(gateway: RunningGateway) -> None:
    with gateway.connect() as client:
        client.socket.sendall(struct.pack(">ihhih", 10, codec.API_VERSIONS, 99, 7, -1))
        assert client.answer(codec.API_VERSIONS, 0).error_code == UNSUPPORTED_VERSION
        assert client.ask(codec.ApiVersionsRequest(), 0, 8).error_code == 0


def test_a_read_only_gateway_refuses_what_writes_and_says_so(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    with start(read_only=True).connect() as client:
        assert client.ask(heartbeat("here"), 0).error_code == GROUP_AUTHORIZATION_FAILED
        assert client.ask(codec.DescribeGroupsRequest(groups=["here"]), 0).groups[0].error_code == 0
    assert "refused the request Heartbeat of client 'raw'" in caplog.text


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
    "less than a length": b"\0",
    "a part of a request": b"\0\0\0\x20\0\x0b",
    "a part of a forwarded request": produce("t", 0, acks=1, id=1, records=b"x" * 99)[:-50],
}


def test_a_client_that_sends_no_requests_or_stops_within_one_is_disconnected(gateway: RunningGateway) -> None:
    for name, data in GARBAGE.items():
        with gateway.connect() as client:
            client.socket.sendall(data)
            assert client.ended, name


def test_more_connections_than_permitted_are_disconnected_and_others_served(start: Start) -> None:
    gateway = start(Limits(connections=3))
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(gateway.connect())
        assert eventually(lambda: gateway.gateway.connections == 3)
        with gateway.connect() as one_more:
            assert one_more.ended
    assert eventually(lambda: gateway.gateway.connections == 0)
    with gateway.connect() as client:
        assert client.ask(codec.MetadataRequest(topics=[]), 1).brokers


def commit_of(group: str, topic: str, member_id: str, generation: int, offset: int) -> Any:
    """A commit for the first partition of a topic."""
    kind = codec.OffsetCommitRequest.OffsetCommitRequestTopic
    value = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    topics = [kind(name=topic, partitions=[value])]
    fields = {"group_id": group, "member_id": member_id, "generation_id_or_member_epoch": generation}
    return codec.OffsetCommitRequest(**fields, retention_time_ms=-1, topics=topics)


def test_no_more_groups_are_created_than_permitted(start: Start) -> None:
    gateway = start(Limits(groups=3))

    def commit(group: str) -> int:
        with gateway.connect() as client:
            found: int = client.ask(commit_of(group, "t", "", -1, 1), 2).topics[0].partitions[0].error_code
        return found

    assert [commit(f"group-{number}") for number in range(4)] == [0, 0, 0, 15]
    assert commit("group-0") == 0


def join(group: str) -> dict[str, Any]:
    protocol = codec.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    fields = {"group_id": group, "member_id": "", "protocol_type": "consumer", "protocols": [protocol]}
    return fields | {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}


def test_a_join_request_that_waits_ends_with_its_connection(start: Start) -> None:
    gateway = start(config=replace(QUICK, initial_rebalance_delay=300))
    client = gateway.connect()
    client.send(codec.JoinGroupRequest(**join("waiting")), 2)
    with gateway.connect() as other:
        describe = codec.DescribeGroupsRequest(groups=["waiting"])
        assert eventually(lambda: other.ask(describe, 0).groups[0].group_state == "PreparingRebalance")
    client.close()
    assert eventually(lambda: gateway.gateway.connections == 0)


def test_no_member_of_a_group_is_its_leader(gateway: RunningGateway) -> None:
    with gateway.connect() as client:
        answer = client.ask(codec.JoinGroupRequest(**join("here-leaderless")), 2)
        assert (answer.error_code, answer.leader, answer.members) == (0, "zkgroups", [])
        assert answer.member_id not in ("", answer.leader)


def test_a_request_about_groups_of_both_sides_is_split(gateway: RunningGateway) -> None:
    with gateway.connect() as client:
        found = client.ask(codec.DescribeGroupsRequest(groups=["here-a", "there-b", "here-c"]), 0).groups
        assert {each.group_id for each in found} == {"here-a", "there-b", "here-c"}


def test_the_first_versions_of_commits_and_fetches_are_answered(gateway: RunningGateway) -> None:
    """Brokers before 4.0 have them, and kaf commits with version 1."""
    old = codec.OffsetFetchRequest.OffsetFetchRequestTopic
    with gateway.connect() as client:
        for version in (0, 1):
            message = commit_of("here-first-versions", "orders", "", -1, version)
            assert client.ask(message, version).topics[0].partitions[0].error_code == 0
            topics = [old(name="orders", partition_indexes=[0, 1])]
            found = client.ask(codec.OffsetFetchRequest(group_id="here-first-versions", topics=topics), version)
            missing = UNKNOWN_TOPIC_OR_PARTITION if version == 0 else 0
            values = [(each.committed_offset, each.error_code) for each in found.topics[0].partitions]
            assert values == [(version, 0), (-1, missing)]


def test_a_commit_counts_although_the_client_closes_its_connection_at_once(gateway: RunningGateway) -> None:
    topics = [codec.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    with gateway.connect() as reader:
        fetch = codec.OffsetFetchRequest(group_id="here-hurried", topics=topics)
        for offset in range(10):
            with gateway.connect() as client:
                client.send(commit_of("here-hurried", "t", "", -1, offset), 2)
            assert eventually(lambda: reader.ask(fetch, 1).topics[0].partitions[0].committed_offset == offset)  # noqa: B023


# Idle connections

IDLE = Limits(idle_timeout=60.0)


@pytest.mark.parametrize("has_logged_in", [False, True])
def test_a_connection_that_the_broker_closed_while_idle_is_opened_again_unless_the_client_has_logged_in(
    has_logged_in: bool, start: Start
) -> None:
    """Another gateway stands for a broker that closes idle connections."""
    broker = start(IDLE)
    with start(bootstrap=broker.bootstrap, pattern="here").connect() as client:
        assert client.ask(codec.MetadataRequest(topics=[]), 1).brokers
        if has_logged_in:
            client.ask(codec.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        for _ in range(2):
            assert eventually(lambda: broker.gateway.connections == 0)
            if has_logged_in:
                client.send(codec.MetadataRequest(topics=[]), 1)
                assert client.ended
                break
            assert client.ask(heartbeat("here"), 0).error_code == 25
            assert client.ask(codec.MetadataRequest(topics=[]), 1).brokers


def test_an_idle_client_is_disconnected_unless_it_waits_for_an_answer(start: Start) -> None:
    gateway = start(Limits(idle_timeout=3.0), config=replace(QUICK, initial_rebalance_delay=8.0))
    with gateway.connect() as idle, gateway.connect() as busy:
        busy.send(codec.JoinGroupRequest(**join("idle")), 2)
        assert idle.ended
        assert busy.answer(codec.JOIN_GROUP, 2).error_code == 0


# Real brokers


@pytest.mark.kafka
@pytest.mark.xdist_group("gateway")
@pytest.mark.timeout(1000)
def test_requests_without_answers_shift_no_others_and_count_although_their_client_is_gone(front: Front) -> None:
    topic = "gateway-acks"
    front.broker.create_topic(topic)
    with front.gateway.connect() as client:
        for id in range(1, 6):
            client.socket.sendall(produce(topic, 0, acks=id % 2, id=id, records=A_RECORD))
        client.send(codec.MetadataRequest(topics=[]), 1, 6)
        assert [codec.correlation_id(client.frame()) for _ in range(4)] == [1, 3, 5, 6]
    with front.gateway.connect() as client:
        client.socket.sendall(b"".join(produce(topic, 0, acks=0, id=id, records=A_RECORD) for id in range(50)))
    with front.gateway.connect() as client:
        kind = codec.ListOffsetsRequest.ListOffsetsTopic
        partition = kind.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = codec.ListOffsetsRequest(replica_id=-1, topics=[kind(name=topic, partitions=[partition])])
        assert eventually(lambda: client.ask(request, 1).topics[0].partitions[0].offset == 55)


@pytest.mark.kafka
@pytest.mark.xdist_group("gateway")
@pytest.mark.timeout(1000)
def test_an_old_broker_that_does_not_know_the_version_is_passed_on_in_version_0(legacy_kafka: KafkaBroker) -> None:
    with running(legacy_kafka.address) as gateway, gateway.connect() as client:
        request = codec.ApiVersionsRequest(client_software_name="c", client_software_version="1")
        client.send(request, 3, 7)
        assert client.frame()[:6] == struct.pack(">ih", 7, UNSUPPORTED_VERSION)
        offered = {each.api_key: each.max_version for each in client.ask(codec.ApiVersionsRequest(), 0).api_keys}
        assert offered[codec.JOIN_GROUP] == 2
        assert 25 not in offered
