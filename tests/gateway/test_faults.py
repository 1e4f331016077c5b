"""A member works on beside a thousand clients that send garbage, stop, or never read, and after a broker was killed."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.cli.running import started
from tests.waiting import LONGEST, eventually
from zkgroups.kafka.wire import codec
from zkgroups.testing import KafkaBroker, local_server
from zkgroups.testing.kafka_broker import silent_logger

from .peers import Member, describe, member, offsets, settled
from .running import reserved, running

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(1000)]


def fetch(topic: str, id: int) -> bytes:
    """The frame of a Fetch request in version 4, for up to a megabyte."""
    name = topic.encode()
    body = struct.pack(">hhih", 1, 4, id, -1) + struct.pack(">iiiibi", -1, 100, 1, 2**20, 0, 1)
    body += struct.pack(">h", len(name)) + name + struct.pack(">iiqi", 1, 0, 0, 2**20)
    return struct.pack(">i", len(body)) + body


TOPIC = "gateway-besieged"
SECONDS = 3.0
MOST_KB = 450_000
LARGE_JOIN = struct.pack(">ihhi", 1_000_000, codec.JOIN_GROUP, 5, 1) + bytes(980_000)
HOSTILE = [
    (200, b""),
    (150, b"\0\0"),
    (150, struct.pack(">ihhi", 2**31 - 1, 1, 11, 1)),
    (400, LARGE_JOIN),
    (100, b"".join(fetch(TOPIC, id) for id in range(20))),
]
"""The number of clients, and what each of them sends. None of them reads."""


class Attacker:
    """A connection that sends as much as the other side takes."""

    def __init__(self, port: int, data: bytes) -> None:
        self._socket = socket.create_connection((local_server.HOST, port))
        self._socket.setblocking(False)
        self._left = memoryview(data)

    def send(self) -> None:
        try:
            self._left = self._left[self._socket.send(self._left) :] if self._left else self._left
        except BlockingIOError:
            pass
        except OSError:  # it was disconnected
            self._left = self._left[:0]

    def close(self) -> None:
        self._socket.close()


@contextmanager
def attack(port: int) -> Iterator[Sequence[Attacker]]:
    attackers: list[Attacker] = []
    try:
        for count, data in HOSTILE:
            attackers += [Attacker(port, data) for _ in range(count)]
        yield attackers
    finally:
        for each in attackers:
            each.close()


def peak_memory(pid: int) -> int:
    """The largest memory of a process, in KB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def test_a_member_goes_on_beside_a_thousand_hostile_clients(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic(TOPIC, 2)
    producer = Producer({"bootstrap.servers": kafka_broker.address, "log_level": 0})
    for _ in range(1200):
        producer.produce(TOPIC, bytes(1000), partition=0)
    assert producer.flush(LONGEST) == 0
    with reserved(2) as (port, broker_port):
        address = f"{local_server.HOST}:{port}"
        listen = ("--listen", address, "--broker-ports", f"{broker_port}-{broker_port}", "-b", kafka_broker.address)
        patient = {"session.timeout.ms": 30_000}
        with (
            started("gateway", *listen, "--memory") as process,
            member(address, "besieged", TOPIC, **patient) as healthy,
        ):
            assert process.stdout is not None
            assert process.stdout.readline().strip() == address
            assert settled(healthy, shares={2})
            with attack(port) as attackers:
                deadline = time.monotonic() + SECONDS
                while time.monotonic() < deadline:
                    for each in attackers:
                        each.send()
                for written in (10, 20, 30):
                    kafka_broker.write(TOPIC, 1, 10)
                    assert eventually(
                        lambda: healthy.poll() or sum(at == 1 for at, _ in healthy.read) == written,  # noqa: B023
                        timeout=LONGEST,
                    )
                    assert all(each.error is None for each in healthy.consumer.commit(asynchronous=False))
                assert [len(each.assignment.topic_partitions) for each in describe(address, "besieged").members] == [2]
                assert healthy.revoked == []
                assert peak_memory(process.pid) < MOST_KB


# A broker that is killed, and a gateway that is restarted, under real clients


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
                assert eventually(lambda: len(read(found)) > 100)
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
            assert eventually(lambda: read(found) >= set(written))
            assert all(each.error is None for each in found.consumer.commit(asynchronous=False))
        assert sum(offsets(gateway.bootstrap, "g", topic).values()) == len(written)
