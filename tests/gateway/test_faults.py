"""Brokers that close idle connections, and a gateway that is restarted under its clients."""

from __future__ import annotations

from contextlib import ExitStack

from tests.testing.waiting import eventually
from zkgroups.gateway import Limits
from zkgroups.kafka.wire import codec
from zkgroups.testing import KafkaBroker

from .running import LONGEST, reserved, running
from .test_librdkafka import describe, member, settled

IDLE = Limits(idle_timeout=0.3)


def test_a_connection_that_the_broker_closed_while_idle_is_opened_again(kafka_broker: KafkaBroker) -> None:
    """Another gateway stands for a broker that closes idle connections."""
    with (
        running(kafka_broker.address, limits=IDLE) as broker,
        running(broker.bootstrap, pattern="here") as gateway,
        gateway.connect() as client,
    ):
        assert client.ask(codec.MetadataRequest(topics=[]), 1).brokers
        for _ in range(3):
            assert eventually(lambda: broker.gateway.connections == 0, timeout=LONGEST)
            heartbeat = codec.HeartbeatRequest(group_id="here", generation_id=1, member_id="nobody")
            assert client.ask(heartbeat, 0).error_code == 25
            assert client.ask(codec.MetadataRequest(topics=[]), 1).brokers


def test_a_client_that_has_logged_in_must_do_so_again_after_that(kafka_broker: KafkaBroker) -> None:
    with (
        running(kafka_broker.address, limits=IDLE) as broker,
        running(broker.bootstrap) as gateway,
        gateway.connect() as client,
    ):
        client.ask(codec.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert eventually(lambda: broker.gateway.connections == 0, timeout=LONGEST)
        client.send(codec.MetadataRequest(topics=[]), 1)
        assert client.ended


def test_an_idle_client_is_disconnected_unless_it_waits_for_an_answer(kafka_broker: KafkaBroker) -> None:
    with running(kafka_broker.address, limits=IDLE) as gateway, gateway.connect() as idle, gateway.connect() as busy:
        busy.send(codec.JoinGroupRequest(**slow_join()), 2)
        assert idle.ended
        assert busy.answer(codec.JOIN_GROUP, 2).error_code == 0


def slow_join() -> dict[str, object]:
    protocol = codec.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    fields = {"group_id": "idle", "member_id": "", "protocol_type": "consumer", "protocols": [protocol]}
    return fields | {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}


def test_clients_survive_a_restart_of_the_gateway(kafka_broker: KafkaBroker) -> None:
    topic = "gateway-restarted"
    kafka_broker.create_topic(topic, 2)
    with reserved(2) as numbers, ExitStack() as stack:
        with running(kafka_broker.address, numbers=numbers) as gateway:
            found = stack.enter_context(member(gateway.bootstrap, "g", topic))
            assert settled(found, shares={2})
        with running(kafka_broker.address, numbers=numbers) as gateway:
            assert eventually(lambda: found.poll() or members(gateway.bootstrap) == [2], timeout=LONGEST)
            kafka_broker.write(topic, 0, 3)
            assert eventually(lambda: found.poll() or len(found.read) == 3, timeout=LONGEST)
            stack.close()


def members(bootstrap: str) -> list[int]:
    """The number of partitions of each member."""
    return [len(each.assignment.topic_partitions) for each in describe(bootstrap, "g").members]
