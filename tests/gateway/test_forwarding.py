"""Bytes between a client and a broker, in simulated time: forwarded at once, in order, no faster than they are read."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.simulation.loop import HOST, Network, Socket, simulated
from tests.waiting import LONGEST
from zkgroups.gateway import Limits
from zkgroups.gateway.connections.client_connection import ClientConnection
from zkgroups.gateway.connections.streams import ClientStream, FrameStream, GroupCodec, listen
from zkgroups.gateway.connections.upstream import Upstream
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Runner
from zkgroups.kafka.wire.errors import Address

from .running import produce

FETCH = 1
SIZE = 4 << 20
MOST_BUFFERED = 1 << 20
"""More than the buffers of the gateway and of both connections."""


class Wire:
    """A gateway between two sockets: of a client, and of a broker."""

    def __init__(self, network: Network, limits: Limits) -> None:
        self._network, self._limits = network, limits
        self._accepted: list[Any] = []
        self._listener = network.listen(0, self._accepted.append)
        self._serving: list[asyncio.Task[None]] = []
        self._runner = Runner()
        server = self._runner.run(listen(HOST, 0, None, self._accept, longest_request=limits.request_size))
        self.client = Socket(network.connect(server.sockets[0].getsockname()[1]), LONGEST)

    def _accept(self, client: ClientStream) -> None:
        upstream, nothing = Upstream(lambda: [Address(HOST, self._listener)], None), None
        connection = ClientConnection(client, upstream, nothing, nothing, GroupCodec(), self._limits, node=1)  # type: ignore[arg-type]
        self._serving.append(asyncio.create_task(connection.serve()))

    def broker(self) -> Socket:
        """Accept the connection of the gateway."""
        self._network.machine.until(lambda: self._accepted, LONGEST)
        return Socket(self._accepted.pop(), LONGEST)


@pytest.fixture
def wire() -> Iterator[Callable[..., Wire]]:
    with simulated() as network:
        yield lambda **limits: Wire(network, Limits(**limits))


def fetch(id: int) -> bytes:
    """A request that is forwarded."""
    return struct.pack(">ihhih", 10, FETCH, 4, id, -1)


def answer(id: int, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(body), id) + body


def api_versions(id: int) -> bytes:
    """A request that the gateway answers by itself, because it does not know the version."""
    return struct.pack(">ihhih", 10, codec.API_VERSIONS, 99, id, -1)


def received(found: Socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := found.recv(min(size - len(data), 1 << 20))):
        data += more
    return bytes(data)


def next_id(found: Socket) -> int:
    size, id = struct.unpack(">ii", received(found, 8))
    received(found, size - 4)
    return int(id)


def send_until_blocked(found: Socket, data: bytes) -> int:
    """Send as much as the other side takes. Return the number of bytes that were sent."""
    found.settimeout(30.0)
    sent = 0
    try:
        while sent < len(data):
            sent += found.send(memoryview(data)[sent : sent + (1 << 20)])
    except TimeoutError:
        pass
    found.settimeout(LONGEST)
    return sent


@contextmanager
def sending(found: Socket, data: bytes) -> Iterator[None]:
    """Send bytes on another thread."""
    thread = threading.Thread(target=found.sendall, args=(data,))
    thread.start()
    yield
    thread.join(LONGEST)


def test_a_request_and_an_answer_are_forwarded_before_they_are_complete(wire: Callable[..., Wire]) -> None:
    found = wire()
    request = produce("t", 0, acks=1, id=7, records=bytes(1000))
    found.client.sendall(request[:600])
    broker = found.broker()
    assert received(broker, 600) == request[:600]
    found.client.sendall(request[600:])
    assert received(broker, len(request) - 600) == request[600:]
    broker.sendall(answer(7, bytes(1000))[:500])
    assert received(found.client, 500) == answer(7, bytes(1000))[:500]


def test_an_answer_of_the_gateway_waits_for_the_end_of_a_forwarded_answer(wire: Callable[..., Wire]) -> None:
    found = wire()
    found.client.sendall(fetch(1) + api_versions(2) + fetch(3))
    broker = found.broker()
    assert received(broker, 28) == fetch(1) + fetch(3)
    answers = answer(1, bytes(1000)) + answer(3)
    broker.sendall(answers[:200])
    assert received(found.client, 200) == answers[:200]
    broker.sendall(answers[200:])
    assert received(found.client, len(answer(1, bytes(1000))) - 200)[-1:] == b"\0"
    assert [next_id(found.client), next_id(found.client)] == [2, 3]


def test_adjacent_requests_are_forwarded_although_a_later_one_is_cut(wire: Callable[..., Wire]) -> None:
    """The last request arrives in two halves, of which the first one is too short to be understood."""
    found = wire()
    requests = b"".join(map(fetch, range(20)))
    found.client.sendall(requests[:-12])
    broker = found.broker()
    assert received(broker, len(requests) - 14) == requests[:-14]
    found.client.sendall(requests[-12:])
    assert received(broker, 14) == fetch(19)


def test_no_more_requests_are_in_flight_than_permitted(wire: Callable[..., Wire]) -> None:
    found = wire(requests_in_flight=3)
    found.client.sendall(b"".join(map(fetch, range(5))))
    broker = found.broker()
    assert [next_id_of_request(broker) for _ in range(3)] == [0, 1, 2]
    broker.settimeout(30.0)
    with pytest.raises(TimeoutError):
        broker.recv(1)
    broker.settimeout(LONGEST)
    broker.sendall(answer(0) + answer(1))
    assert [next_id_of_request(broker) for _ in range(2)] == [3, 4]
    broker.sendall(answer(2) + answer(3) + answer(4))
    assert [next_id(found.client) for _ in range(5)] == [0, 1, 2, 3, 4]


def next_id_of_request(broker: Socket) -> int:
    _, _, _, id, _ = struct.unpack(">ihhih", received(broker, 14))
    return int(id)


def test_a_client_sends_no_more_than_the_broker_reads_and_nothing_is_lost(wire: Callable[..., Wire]) -> None:
    found = wire()
    request = produce("t", 0, acks=1, id=1, records=os.urandom(SIZE))
    sent = send_until_blocked(found.client, request)
    assert sent < MOST_BUFFERED
    broker = found.broker()
    with sending(found.client, request[sent:]):
        is_same = received(broker, len(request)) == request
    assert is_same


def test_a_broker_sends_no_more_than_the_client_reads_and_nothing_is_lost(wire: Callable[..., Wire]) -> None:
    found = wire()
    found.client.sendall(fetch(1) + fetch(2))
    broker = found.broker()
    received(broker, 28)
    data = answer(1, os.urandom(SIZE)) + answer(2)
    sent = send_until_blocked(broker, data)
    assert sent < MOST_BUFFERED
    with sending(broker, data[sent:]):
        is_same = received(found.client, len(data)) == data
    assert is_same


def test_everything_that_a_broker_sent_before_it_disconnected_reaches_a_slow_client(wire: Callable[..., Wire]) -> None:
    found = wire()
    found.client.sendall(fetch(1))
    broker = found.broker()
    assert next_id_of_request(broker) == 1
    data = answer(1, os.urandom(SIZE))
    sent = send_until_blocked(broker, data)
    broker.close()
    read = bytearray()
    while more := found.client.recv(1 << 15):
        read += more
        time.sleep(0.0005)  # a slow client
    is_same = read == data[:sent]
    assert is_same


def test_a_broker_that_stops_within_an_answer_is_disconnected_and_so_is_the_client(wire: Callable[..., Wire]) -> None:
    found = wire(stall_timeout=0.3)
    found.client.sendall(fetch(1))
    broker = found.broker()
    received(broker, 14)
    broker.sendall(answer(1, bytes(100))[:50])
    assert received(found.client, 51) == answer(1, bytes(100))[:50]
    assert broker.recv(1) == b""


def test_nobody_is_disconnected_because_of_a_slow_answer(wire: Callable[..., Wire]) -> None:
    """The next request has begun, but the gateway does not need it before the answer."""
    found = wire(stall_timeout=0.3, requests_in_flight=1)
    found.client.sendall(fetch(1) + fetch(2)[:10])
    broker = found.broker()
    assert next_id_of_request(broker) == 1
    broker.settimeout(30.0)
    with pytest.raises(TimeoutError):
        broker.recv(1)
    broker.settimeout(LONGEST)
    found.client.sendall(fetch(2)[10:])
    broker.sendall(answer(1))
    assert next_id(found.client) == 1
    assert next_id_of_request(broker) == 2


def test_bytes_that_nobody_reads_do_not_keep_a_closed_connection_open() -> None:
    async def use(port: int) -> None:
        transport, stream = await asyncio.get_running_loop().create_connection(
            lambda: FrameStream(longest=1000), HOST, port
        )
        while not transport.get_write_buffer_size():
            stream.send(bytes(100_000))
        stream.close(5.0)
        while not stream.ended:
            await asyncio.sleep(0.1)

    accepted: list[Any] = []
    with simulated() as network:
        asyncio.run(asyncio.wait_for(use(network.listen(0, accepted.append)), LONGEST))
        network.machine.sleep(1)
        assert accepted[0].is_reset
