"""Every fault of the proxy, with a real client and a real server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KazooState

from tests.waiting import eventually
from zkgroups.testing import Fault, Op, TcpProxy, ZooKeeperServer
from zkgroups.testing.proxy import Direction

from .conftest import Clients

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def proxy(server: ZooKeeperServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.address) as proxy:
        yield proxy
        # Clients that are closed afterwards need an answer.
        proxy.heal()


@pytest.fixture
def direct(server: ZooKeeperServer, connect: Clients) -> KazooClient:
    """A client that is connected directly to the server."""
    return connect(server.address)


@pytest.fixture
def client(connect: Clients, proxy: TcpProxy) -> KazooClient:
    """A client through the proxy."""
    return connect(proxy.address)


@pytest.fixture
def path(direct: KazooClient) -> str:
    """A node for this test."""
    return str(direct.create(f"/{uuid4().hex}"))


def test_cut_after_reply_delivers_the_reply_first(proxy: TcpProxy, client: KazooClient, path: str) -> None:
    states: list[str] = []
    client.add_listener(states.append)
    for number in range(1, 21):
        fault = proxy.cut_after_reply()

        assert client.retry(client.create, f"{path}/{number}")

        assert fault.fired
        cuts = number * [KazooState.SUSPENDED, KazooState.CONNECTED]
        assert eventually(lambda: states == cuts), states  # noqa: B023


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("cut", "carried_out", "answered"),
    [(TcpProxy.cut_before_request, -1, -1), (TcpProxy.cut_before_reply, 0, -1), (TcpProxy.cut_after_reply, 0, 0)],
)
def test_the_nth_request_is_the_first_that_is_lost_or_the_last_that_is_carried_out_or_answered(
    proxy: TcpProxy,
    client: KazooClient,
    direct: KazooClient,
    path: str,
    cut: Callable[[TcpProxy, int], Fault],
    carried_out: int,
    answered: int,
    n: int,
) -> None:
    session, fault = client.client_id, cut(proxy, n)
    proxy.delay(60, direction="requests")
    answers = [client.create_async(f"{path}/{number}") for number in range(6)]
    assert eventually(lambda: len(client._pending) == 6)
    proxy.delay(0)
    for answer in answers:
        answer.wait(30)

    assert [answer.successful() for answer in answers] == [number < n + answered for number in range(6)]
    assert sorted(direct.get_children(path)) == [str(number) for number in range(n + carried_out)]
    assert fault.fired
    assert client.retry(client.exists, path)
    assert client.client_id == session


def test_replies_to_requests_sent_before_arming_do_not_count(
    proxy: TcpProxy, client: KazooClient, direct: KazooClient, path: str
) -> None:
    proxy.delay(0.2, direction="replies")
    early = client.create_async(f"{path}/early")
    assert eventually(lambda: direct.exists(f"{path}/early"))
    proxy.cut_before_reply()
    late = client.create_async(f"{path}/late")

    assert early.get(timeout=30)
    with pytest.raises(ConnectionLoss):
        late.get(timeout=30)
    assert direct.exists(f"{path}/late")


def test_a_fault_whose_connection_ends_first_takes_the_next_request(
    proxy: TcpProxy, client: KazooClient, direct: KazooClient, path: str
) -> None:
    proxy.delay(60, direction="replies")
    fault = proxy.cut_before_reply()
    first = client.create_async(f"{path}/1")
    assert eventually(lambda: direct.exists(f"{path}/1"))
    proxy.cut()
    proxy.delay(0)
    with pytest.raises(ConnectionLoss):
        first.get(timeout=30)
    assert not fault.fired

    with pytest.raises(ConnectionLoss):
        client.create(f"{path}/2")
    assert fault.fired
    assert direct.exists(f"{path}/2")


@pytest.mark.parametrize("direction", ["requests", "replies"])
def test_dropped_requests_or_replies_never_arrive_and_the_connection_stays(
    proxy: TcpProxy, client: KazooClient, direct: KazooClient, path: str, direction: Direction
) -> None:
    proxy.drop(direction=direction)
    before = proxy.requests
    answer = client.create_async(f"{path}/new")
    assert eventually(lambda: proxy.requests == before + 1)
    if direction == "replies":
        assert eventually(lambda: direct.exists(f"{path}/new"))

    assert client.connected
    assert not answer.ready()
    proxy.heal()

    with pytest.raises(ConnectionLoss):
        answer.get(timeout=30)
    assert (direct.exists(f"{path}/new") is None) == (direction == "requests")
    assert client.retry(client.exists, path)


def test_swallowed_watch_events_never_arrive_and_everything_else_does(
    proxy: TcpProxy, client: KazooClient, direct: KazooClient, path: str
) -> None:
    events: list[object] = []
    client.get(path, watch=events.append)
    proxy.swallow_watch_events()

    direct.set(path, b"1")
    # An answer comes after the events that happened before it.
    assert client.get(path, watch=events.append)[0] == b"1"
    client.handler.sleep_func(0.05)
    assert events == []
    proxy.heal()
    direct.set(path, b"2")

    assert eventually(lambda: len(events) == 1)


def test_requests_are_counted_by_type_and_pings_are_not(
    proxy: TcpProxy, connect: Clients, direct: KazooClient, path: str
) -> None:
    client = connect(proxy.address)
    before = proxy.requests
    client.create(f"{path}/1")
    client.set(f"{path}/1", b"")
    client.get(f"{path}/1")
    client.get_children(path)
    transaction = client.transaction()
    transaction.create(f"{path}/2")
    transaction.commit()
    client._connection._send_ping(30)  # it is idle, and would do so by itself seconds later
    assert eventually(lambda: not client._connection.ping_outstanding.is_set())

    assert proxy.requests - before == 5
    assert eventually(lambda: proxy.replies == proxy.requests)
    assert proxy.requests_by_type == {
        Op.CREATE: 1,
        Op.SET_DATA: 1,
        Op.GET_DATA: 1,
        Op.GET_CHILDREN: 1,
        Op.MULTI: 1,
    }


def test_a_client_that_connects_just_before_close_does_not_hang() -> None:
    for _ in range(20):
        with TcpProxy("127.0.0.1:1") as proxy:
            host, _, port = proxy.address.rpartition(":")
            clients = [socket.create_connection((host, int(port)), timeout=30) for _ in range(20)]
        for client in clients:
            with client, suppress(ConnectionResetError):
                assert client.recv(1) == b""


def test_held_data_arrives_after_heal_and_no_connection_is_closed(
    client: KazooClient, direct: KazooClient, proxy: TcpProxy, path: str
) -> None:
    connections = proxy.connections
    proxy.hold()
    answer = client.set_async(path, b"held")
    assert eventually(lambda: client._pending)
    assert direct.get(path)[0] == b""

    proxy.heal()

    assert answer.get(timeout=30).version == 1
    assert proxy.connections == connections


def test_other_protocols_are_passed_on_unchanged_and_held_until_heal(
    server: ZooKeeperServer,
) -> None:
    with TcpProxy(server.address, framed=False) as proxy:
        host, _, port = proxy.address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=30) as passing,
            socket.create_connection((host, int(port)), timeout=30) as waiting,
        ):
            passing.sendall(b"srvr")
            assert passing.recv(9) == b"Zookeeper"
            proxy.hold()
            waiting.sendall(b"srvr")
            proxy.heal()
            assert waiting.recv(9) == b"Zookeeper"
