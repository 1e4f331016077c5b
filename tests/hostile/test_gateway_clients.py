"""Damaged requests at a gateway: it goes on, reports no error of its own, and changes no other group."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.cli.running import TIMEOUT, started
from zkgroups import Registry, TopicPartition
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.errors import Address
from zkgroups.testing import KafkaBroker, local_server

from ..gateway.running import RawClient, reserved
from ..seeds import FUZZ_SECONDS, seed
from ..zookeeper.tree import dump, dump_all
from .damage import damaged
from .kafka_targets import requests

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.zookeeper,
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(1000 + FUZZ_SECONDS),
]

CASES = 300
AT_A_TIME = 20


@contextmanager
def gateway(broker: KafkaBroker, hosts: str) -> Iterator[tuple[Address, subprocess.Popen[str]]]:
    with reserved(2) as (port, broker_port):
        address = Address(local_server.HOST, port)
        listen = ("--listen", str(address), "--broker-ports", f"{broker_port}-{broker_port}")
        with started("gateway", *listen, "-b", broker.address, "-z", hosts) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == str(address)
            yield address, process


def attack(address: Address, seconds: float) -> int:
    """Send damaged requests, some at a time. Return how many."""
    chance, samples = random.Random(f"{seed()} gateway"), requests()
    sent, end = 0, time.monotonic() + seconds
    while sent < CASES or time.monotonic() < end:
        clients = [socket.create_connection(address, timeout=TIMEOUT) for _ in range(AT_A_TIME)]
        for client in clients:
            with suppress(OSError):  # it was disconnected
                for _ in range(chance.choice((1, 1, 2, 5))):
                    client.sendall(damaged(chance, samples))
                    sent += 1
                client.shutdown(socket.SHUT_WR)
        for client in clients:
            with suppress(OSError), client:
                while client.recv(1 << 16):
                    pass
    return sent


def attacked(broker: KafkaBroker, registry: Registry, client: Any, hosts: str, seconds: float) -> int:
    client.ensure_path("/brokers/ids")
    client.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
    client.create("/other/offsets/orders/0", b"7", makepath=True)
    with registry.group("healthy group").instance("anna") as anna:
        anna.register(["orders"])
        claim = anna.claim(TopicPartition("orders", 0))
        claim.commit(100)
        before = guarded(client)
        with gateway(broker, hosts) as (address, process):
            sent = attack(address, seconds)
            with RawClient(address) as healthy:
                assert healthy.ask(codec.ApiVersionsRequest(), 0).error_code == 0
                assert healthy.ask(codec.ListGroupsRequest(), 0).error_code == 0
                assert healthy.ask(codec.MetadataRequest(topics=[]), 1).brokers
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=TIMEOUT)
        assert guarded(client) == before
        assert claim.held
    assert "Traceback" not in log, log
    assert "Error" not in log, log
    return sent


def guarded(client: Any) -> Any:
    """The nodes that no request may change."""
    free = ("/consumers", "/zkgroups")
    tree = {path: node for path, node in dump_all(client).items() if not path.startswith(free)}
    return tree | dump(client, "/consumers/healthy group")


@pytest.mark.parametrize("seconds", [0.0, pytest.param(FUZZ_SECONDS, marks=pytest.mark.soak)])
def test_damaged_requests_leave_the_gateway_and_other_groups_as_they_were(
    kafka_broker: KafkaBroker, registry: Registry, raw: Any, zookeeper_hosts: str, seconds: float
) -> None:
    sent = attacked(kafka_broker, registry, raw, zookeeper_hosts, seconds)
    print(f"\n{sent} damaged requests in {seconds:g} s with ZKGROUPS_SEED={seed()}")
    assert sent >= CASES
