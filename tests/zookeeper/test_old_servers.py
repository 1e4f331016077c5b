"""Servers without MultiRead: how they are detected, and read like new ones."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from kazoo.security import make_digest_acl

from tests.lasting import lasting_client
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.testing import Op, TcpProxy, ZooKeeperServer
from zkgroups.zookeeper.kazoo_compat.closing import Endpoints, endpoints
from zkgroups.zookeeper.requests import multiread

from .conftest import Connect
from .helpers import ODD, plant, plant_offsets, run_together, shown

pytestmark = pytest.mark.zookeeper


def unlike_clocks(found: Iterable[object]) -> list[object]:
    """Leave out fields that differ between two servers."""
    return [(o.group, o.at, o.offset, o.version) if isinstance(o, CommittedOffset) else o for o in found]


def grow(client: Any) -> None:
    """A tree with all special kinds of nodes."""
    plant_offsets(client, 8, 2, 40)
    plant(client, [f"/consumers/odd/offsets/{topic}/{n}" for topic in ODD for n in (10, 9, 0)], b"12")
    plant(client, ["/consumers/g0001/offsets/t00/x", "/consumers/g0001/offsets/t00/077"])
    client.set("/consumers/g0002/offsets/t01/3", b"7.5")
    client.set("/consumers/g0002/offsets/t01/4", b"x" * 900_000)
    client.set("/consumers/g0002/offsets/t01/5", b"8")
    client.ensure_path("/consumers/g0003/offsets/empty")
    client.ensure_path("/consumers/without offsets/ids")
    for path in ("g0004/offsets", "g0005/offsets/t01", "g0006/offsets/t00/5"):
        client.set_acls(f"/consumers/{path}", [make_digest_acl("alice", "secret", all=True)])


@pytest.fixture
def old(old_proxy: TcpProxy, old_hosts: str, connect: Connect) -> Registry:
    return connect(f"{old_proxy.address}/{old_hosts.partition('/')[2]}")


def test_an_old_server_is_read_like_a_new_one_and_never_receives_multiread_on_the_main_connection(
    registry: Registry, raw: Any, old: Registry, old_proxy: TcpProxy, old_hosts: str
) -> None:
    grow(raw)
    with lasting_client(old_hosts) as client:
        grow(client)
    states: list[str] = []
    old.client.add_listener(states.append)
    with old.group("mine").instance("me") as me:
        me.register(["orders"])
        claim = me.claim(TopicPartition("orders", 0))
        found = unlike_clocks(old.offsets())
        assert found == unlike_clocks(registry.offsets())
        assert len(found) > 500
        described = [d for d in old.describe() if d.group != "mine"]
        assert [(d.group, d.state, d.topics) for d in described] == [
            (d.group, d.state, d.topics) for d in registry.describe()
        ]
        assert old_proxy.requests_by_type[Op.MULTI_READ] == 0
        assert old_proxy.connections == 2  # the second connection asked for the version
        assert claim.held
        claim.commit(5)
    assert states == []


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "not answered"])
def test_without_a_second_connection_everything_is_read_after_a_single_wait(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may allow one connection per client, and a firewall may drop the second one silently."""
    monkeypatch.setattr(multiread, "PROBE_TIMEOUT", 3.0)
    monkeypatch.setattr(multiread, "VERSION_TIMEOUT", 1.5)
    with ZooKeeperServer(config={} if silent else {"maxClientCnxns": "1"}) as server, socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        with lasting_client(server.address) as client:
            expected = plant_offsets(client, 12, 2, 20)
        with TcpProxy(server.address) as proxy, Registry.connect(proxy.address, timeout=30.0) as registry:
            if silent:
                proxy._target = hole.getsockname()
            assert shown(registry.offsets()) == expected
            assert proxy.requests_by_type[Op.MULTI_READ] == 0
            connections = proxy.connections
            assert shown(registry.offsets()) == expected
            assert proxy.connections == connections


UNKNOWN = "unknown type"


"""The message that an old server logs for the request."""


@pytest.fixture
def old_address(old_proxy: TcpProxy, old_hosts: str) -> str:
    """The address of the old server through the proxy, in the chroot of this test."""
    return f"{old_proxy.address}/{old_hosts.partition('/')[2]}"


@pytest.fixture
def complaints(old_zookeeper: ZooKeeperServer) -> Callable[[], int]:
    """How many messages the old server has logged since the start of the test."""
    log = old_zookeeper.data_dir / "server.log"
    before = log.read_text().count(UNKNOWN)
    return lambda: log.read_text().count(UNKNOWN) - before


def test_all_registries_of_a_process_ask_an_old_server_for_its_version_once(
    old_proxy: TcpProxy, old_address: str, old_hosts: str, complaints: Callable[[], int]
) -> None:
    with lasting_client(old_hosts) as client:
        expected = plant_offsets(client, 3, 2, 10)
    for _ in range(5):
        with Registry.connect(old_address) as registry:
            assert shown(registry.offsets()) == expected
    assert old_proxy.connections == 5 + 1
    assert old_proxy.requests_by_type[Op.MULTI_READ] == 0
    assert complaints() == 0


def test_an_old_server_under_the_address_of_a_new_one_costs_one_reconnect_and_no_claim(
    old_proxy: TcpProxy, old_address: str, old_hosts: str, connect: Connect
) -> None:
    """As after a rollback of an upgrade: the process remembers the newer server."""
    with lasting_client(old_hosts) as client:
        expected = plant_offsets(client, 8, 2, 40)
    old = connect(old_address, timeout=60.0)
    connection = endpoints(old.client)
    assert connection is not None
    multiread._SERVERS.set_supports(connection, True)
    states: list[str] = []
    old.client.add_listener(states.append)
    me = old.group("mine").instance("me")
    me.register(["orders"])
    claims = [me.claim(TopicPartition("orders", number)) for number in range(4)]

    def read() -> None:
        for _ in range(3):
            assert [name for name in shown(old.offsets()) if not name.startswith("mine/")] == expected

    def commit(number: int) -> None:
        for offset in range(20):
            claims[number].commit(offset)

    assert run_together([read] * 4 + [lambda n=n: commit(n) for n in range(4)]) == [None] * 8  # type: ignore[misc]
    assert states == ["SUSPENDED", "CONNECTED"]
    assert all(claim.held for claim in claims)
    spent = old_proxy.requests_by_type[Op.MULTI_READ]
    assert spent > 0
    assert len(list(old.offsets())) == len(expected) + 4
    assert old_proxy.requests_by_type[Op.MULTI_READ] == spent


def test_one_connection_lost_during_the_request_does_not_count() -> None:
    servers = multiread._Servers()
    first, second, third = (Endpoints(("127.0.0.1", port), ("127.0.0.1", 2181), None) for port in (1, 2, 3))
    servers.set_supports(first, True)
    for _ in range(3):  # several requests were in flight
        servers.lost(first)
    assert servers.supports(second) is None
    servers.set_supports(second, True)
    servers.answered(second)
    servers.lost(second)
    assert servers.supports(third) is None
    servers.set_supports(third, True)
    servers.lost(third)
    assert servers.supports(first) is False


def test_a_fork_does_not_wait_for_a_lock_of_its_parent() -> None:
    connection = Endpoints(("127.0.0.1", 1), ("127.0.0.1", 2), None)
    with multiread._SERVERS.probing(connection):
        child = os.fork()
        if child == 0:
            os._exit(0 if multiread._SERVERS.probing(connection).acquire(timeout=30) else 1)
        _, status = os.waitpid(child, 0)
    assert status == 0
