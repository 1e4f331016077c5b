"""`zkgroups gateway`: a gateway in the foreground."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import closing

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from tests.gateway.old_members import create_topic
from tests.gateway.running import reserved
from tests.testing.waiting import eventually
from zkgroups import Registration, Registry
from zkgroups.testing import KafkaBroker, ports

from .running import TIMEOUT, run, started

USAGE, UNAVAILABLE, TERMINATED = 2, 7, 143


def test_the_command_serves_clients_until_it_is_terminated(kafka_broker: KafkaBroker) -> None:
    with reserved(2) as (port, broker_port):
        listen = ("--listen", f"{ports.HOST}:{port}", "--broker-ports", f"{broker_port}-{broker_port}")
        with started("gateway", *listen, "-b", kafka_broker.address, "--memory") as process:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address == f"{ports.HOST}:{port}"
            admin = AdminClient({"bootstrap.servers": address})
            brokers = admin.list_topics(timeout=TIMEOUT).brokers.values()
            assert [(each.host, each.port) for each in brokers] == [(ports.HOST, broker_port)]
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (TERMINATED, "")
    assert err.splitlines()[0].startswith("The gateway is running")


def test_clients_join_a_group_in_zookeeper(kafka_broker: KafkaBroker, registry: Registry, zookeeper_hosts: str) -> None:
    create_topic(registry.client, "gateway-joined", 1)
    kafka_broker.create_topic("gateway-joined", 1)
    group = registry.group("billing")
    with reserved(2) as (port, broker_port):
        listen = ("--listen", f"{ports.HOST}:{port}", "--broker-ports", f"{broker_port}-{broker_port}")
        with (
            started("gateway", *listen, "-b", kafka_broker.address, "-z", zookeeper_hosts) as process,
            closing(Consumer({"bootstrap.servers": f"{ports.HOST}:{port}", "group.id": "billing"})) as consumer,
        ):
            consumer.subscribe(["gateway-joined"])
            assert eventually(lambda: consumer.poll(0.05) or group.describe().state == "Stable")
            [instance] = group.instances()
            assert isinstance(instance.registration, Registration)
            assert instance.registration.client_id == "rdkafka"
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=TIMEOUT)
    assert (process.returncode, group.instances()) == (TERMINATED, [])


LISTEN = ("gateway", "--listen", "127.0.0.1:19092")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*LISTEN, "--memory"), "needs the Kafka brokers"),
        ((*LISTEN, "-b", "k:1"), "say where groups are kept"),
        (("gateway", "--listen", "a:1,b:2", "-b", "k:1", "--memory"), "one address"),
        ((*LISTEN, "-b", "k:1", "--memory", "--broker-ports", "5"), "19100-19199"),
        ((*LISTEN, "-b", "k:1", "--memory", "--broker-ports", "19000-19199"), "must not contain"),
        ((*LISTEN, "-b", "k:1", "--memory", "--group", "("), "group"),
        ((*LISTEN, "-b", "k:1", "--memory", "--listen-key", "setup.cfg"), "--listen-cert"),
        ((*LISTEN, "-b", "k:1", "--memory", "--listen-cert", "setup.cfg"), "cannot be read"),
    ],
)
def test_a_command_line_that_cannot_work_is_refused(arguments: Sequence[str], said: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (USAGE, "")
    assert said in done.err


def test_brokers_that_cannot_be_reached_are_reported() -> None:
    port = ports.reserve()
    try:
        done = run(*LISTEN, "-b", f"{ports.HOST}:{port.number}", "--memory")
    finally:
        port.release()
    assert (done.code, done.out) == (UNAVAILABLE, "")
    assert "no broker answered" in done.err
