"""Brokers that close idle connections or are killed, and a gateway that is restarted under its clients."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.testing.waiting import eventually
from zkgroups.gateway import Limits
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.address import addresses
from zkgroups.testing import KafkaBroker
from zkgroups.testing.kafka_client import silent_logger

from .running import LONGEST, QUICK, RawClient, reserved, running
from .test_librdkafka import Member, describe, member, offsets, settled

IDLE = Limits(idle_timeout=0.5)


def test_a_connection_that_the_broker_closed_while_idle_is_opened_again(kafka_broker: KafkaBroker) -> None:
    """Another gateway stands for a broker that closes idle connections."""
    with (
        running(kafka_broker.address, limits=IDLE) as broker,
        running(broker.bootstrap, pattern="here") as gateway,
        gateway.connect() as client,
    ):
        assert client.ask(codec.MetadataRequest(topics=[]), 1).brokers
        for _ in range(2):
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
    slow = replace(QUICK, initial_rebalance_delay=6 * IDLE.idle_timeout)
    with (
        running(kafka_broker.address, limits=IDLE, config=slow) as gateway,
        gateway.connect() as idle,
        gateway.connect() as busy,
    ):
        busy.send(codec.JoinGroupRequest(**slow_join()), 2)
        assert idle.ended
        assert busy.answer(codec.JOIN_GROUP, 2).error_code == 0


def slow_join() -> dict[str, object]:
    protocol = codec.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    fields = {"group_id": "idle", "member_id": "", "protocol_type": "consumer", "protocols": [protocol]}
    return fields | {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}


def test_a_rebalance_works_after_the_broker_has_closed_all_idle_connections() -> None:
    """The gateway asks the broker for the partitions on a connection that was idle since the first rebalance."""
    topic = "gateway-idle"
    with KafkaBroker(config={"connections.max.idle.ms": "3000"}) as broker, running(broker.address) as gateway:
        broker.create_topic(topic, 6)
        with member(gateway.bootstrap, "g", topic) as first:
            assert settled(first, shares={6})
            with RawClient(addresses(broker.address)[0]) as idle:
                assert idle.ask(codec.MetadataRequest(topics=[]), 1).brokers
                assert idle.ended  # and so are all connections that were used before
            with member(gateway.bootstrap, "g", topic) as second:
                assert settled(first, second, shares={3})
                broker.write(topic, 0, 2)
                assert eventually(
                    lambda: first.poll() or second.poll() or len(first.read + second.read) == 2, timeout=LONGEST
                )
        assert first.errors + second.errors == []


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


def test_messages_and_commits_go_on_after_a_broker_was_killed_under_load() -> None:
    """The broker is started again. Nothing that a producer was told is written gets lost."""
    topic, stop, written = "gateway-broker-killed", threading.Event(), list[tuple[int, int]]()
    with KafkaBroker() as broker, running(broker.address) as gateway:
        broker.create_topic(topic, 2)
        producer = Producer(
            {"bootstrap.servers": gateway.bootstrap, "enable.idempotence": True}, logger=silent_logger()
        )

        def delivered(error: object, message: Any) -> None:
            assert error is None
            written.append((message.partition(), message.offset()))

        def send() -> None:
            while not stop.wait(0.01):
                producer.produce(topic, b"m", on_delivery=delivered)
                producer.poll(0)

        def read(found: Member) -> set[tuple[int, int]]:
            for _ in range(100):
                found.poll()
            return set(found.read)

        with member(gateway.bootstrap, "g", topic) as found:
            assert settled(found, shares={2})
            sending = threading.Thread(target=send)
            sending.start()
            try:
                assert eventually(lambda: len(read(found)) > 100, timeout=LONGEST)
                broker.kill()
                broker.start()
                before = len(written)
                assert eventually(
                    lambda: written[before:] and read(found) > set(written[: before + 1]), timeout=2 * LONGEST
                )
            finally:
                stop.set()
                sending.join()
            assert producer.flush(LONGEST) == 0
            assert eventually(lambda: read(found) >= set(written), timeout=2 * LONGEST)
            assert all(each.error is None for each in found.consumer.commit(asynchronous=False))
        assert sum(offsets(gateway.bootstrap, "g", topic).values()) == len(written)


def members(bootstrap: str) -> list[int]:
    """The number of partitions of each member; nothing if the gateway does not know its brokers yet."""
    with suppress(KafkaException):
        return [len(each.assignment.topic_partitions) for each in describe(bootstrap, "g").members]
    return []
