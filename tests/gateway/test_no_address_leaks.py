"""No client ever sees the address of a broker, and clients find a leader that has moved to another broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource
from kafka import KafkaAdminClient
from kafka import TopicPartition as Partition

from tests.waiting import LONGEST, eventually
from zkgroups.gateway.connections.streams import ClientStream, FrameStream
from zkgroups.testing import KafkaBroker, local_server
from zkgroups.testing.kafka_broker import silent_logger

from .peers import JavaConsumer, administrator, member
from .running import RunningGateway, running

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(1000)]

REAL = "localhost"
"""The name that the brokers have for themselves. The gateway is known as 127.0.0.1."""
TOPIC = "orders"
MESSAGES = 50


class Named(KafkaBroker):
    """A broker that calls itself localhost."""

    def _properties(self) -> str:
        return f"{super()._properties()}advertised.listeners={self._own_name()}\n"

    def _own_name(self) -> str:
        return f"PLAINTEXT://{REAL}:{self.address.rsplit(':')[-1]}"

    @property
    def controller(self) -> str:
        return self._address("CONTROLLER")


class Second(Named):
    """A second broker of the same cluster."""

    def __init__(self, first: Named) -> None:
        super().__init__()
        self._first = first

    def _properties(self) -> str:
        more = {
            "node.id": "2",
            "process.roles": "broker",
            "controller.quorum.voters": f"1@{self._first.controller}",
            "listeners": f"PLAINTEXT://{self.address}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
        return super()._properties() + "".join(f"{key}={value}\n" for key, value in more.items())


class Watched(NamedTuple):
    """A gateway in front of two brokers, and all bytes that it has sent to each client."""

    gateway: RunningGateway
    sent: dict[int, bytearray]


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    sent: defaultdict[int, bytearray] = defaultdict(bytearray)

    def recording(client: FrameStream, data: bytes | memoryview) -> None:
        if isinstance(client, ClientStream):
            sent[id(client)] += data
        send(client, data)

    send = FrameStream.send
    with Named() as first, Second(first), pytest.MonkeyPatch.context() as patch:
        first.create_topic(TOPIC)
        patch.setattr(FrameStream, "send", recording)
        with running(first.address, brokers=2) as gateway:
            yield Watched(gateway, sent)


def leader(bootstrap: str) -> int:
    with administrator(bootstrap) as admin:
        found: int = admin.list_topics(TOPIC).topics[TOPIC].partitions[0].leader
        return found


def move(bootstrap: str, to: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.alter_partition_reassignments({Partition(TOPIC, 0): [to]})
    finally:
        admin.close()
    assert eventually(lambda: leader(bootstrap) == to)


def write(bootstrap: str, **config: Any) -> None:
    with Producer({"bootstrap.servers": bootstrap, **config}, logger=silent_logger()) as producer:
        if "transactional.id" in config:
            producer.init_transactions(LONGEST)
            producer.begin_transaction()
        for _ in range(MESSAGES):
            producer.produce(TOPIC, b"m", partition=0)
        if "transactional.id" in config:
            producer.commit_transaction(LONGEST)
        assert producer.flush(LONGEST) == 0


def test_clients_follow_a_leader_to_another_broker_and_see_only_the_gateway(watched: Watched) -> None:
    bootstrap = watched.gateway.bootstrap
    with (
        member(bootstrap, "librdkafka", TOPIC) as consumer,
        JavaConsumer("4.3.1", bootstrap, "java", TOPIC) as java,
    ):
        for number, (to, config) in enumerate([(2, {}), (1, {"transactional.id": "t"})], start=1):
            move(bootstrap, to)
            write(bootstrap, **config)
            wanted = number * MESSAGES
            assert eventually(lambda: consumer.poll() or len(set(consumer.read)) == wanted)  # noqa: B023
            assert eventually(lambda: len(set(java.read)) == wanted)  # noqa: B023
    check(watched)


def test_settings_of_brokers_are_shown_without_addresses(watched: Watched) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    with administrator(watched.gateway.bootstrap) as admin:
        settings = admin.describe_configs([resource])[resource].result(LONGEST)
        found = admin.describe_cluster().result(LONGEST)
    assert settings["advertised.listeners"].value is None
    assert settings["log.cleaner.threads"].value == "1"
    assert {each.host for each in found.nodes} == {local_server.HOST}
    assert len({each.port for each in found.nodes}) == 2
    check(watched)


def check(watched: Watched) -> None:
    """No byte to any client is part of a broker's name."""
    assert len(watched.sent) > 1
    assert any(local_server.HOST.encode() in data for data in watched.sent.values())
    assert not [data for data in watched.sent.values() if REAL.encode() in data]
