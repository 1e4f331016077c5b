"""Members that start while no ZooKeeper server answers: they wait, and join when a server does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import EventKind, LoneMember, Registry, TopicPartition
from zkgroups.testing import TcpProxy

from .conftest import Running

pytestmark = pytest.mark.zookeeper

Partitions = frozenset[TopicPartition]


@pytest.fixture
def proxy(zookeeper: Any) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper.address) as proxy:
        yield proxy


@pytest.fixture
def hosts(proxy: TcpProxy, zookeeper_hosts: str) -> str:
    return f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"


def until_it_has_tried(running: Running) -> None:
    running.until(lambda: any(event.kind is EventKind.FAILED for event in running.events), "a failure")


@pytest.mark.parametrize("lone", [False, True], ids=["member", "lone member"])
def test_a_member_that_starts_while_disconnected_joins_after_the_reconnect(
    proxy: TcpProxy, hosts: str, connect: Callable[..., Registry], orders: Partitions, lone: bool
) -> None:
    registry = connect(hosts, session_timeout=6.0)
    proxy.refuse()
    proxy.cut()
    place: Any = registry if lone else registry.group("billing")
    with Running(place, **({"make": LoneMember} if lone else {})) as a:
        until_it_has_tried(a)
        proxy.accept()
        a.until_holding(orders)
    assert a.errors == []


def test_a_member_that_never_joined_has_nothing_to_leave(
    proxy: TcpProxy, hosts: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.refuse()
    client = KazooClient(hosts, timeout=6.0)
    client.start_async()
    try:
        with Running(Registry(client, timeout=2.0).group("billing")) as a:
            until_it_has_tried(a)
        assert not [record for record in caplog.records if "could not leave" in record.getMessage()]
        assert a.events[-1].kind is EventKind.LEFT
    finally:
        client.stop()
        client.close()


def test_a_member_over_a_client_that_has_never_connected_waits_for_the_first_server(
    proxy: TcpProxy, hosts: str, orders: Partitions
) -> None:
    proxy.refuse()
    client = KazooClient(hosts, timeout=6.0)
    client.start_async()
    try:
        with Running(Registry(client, timeout=2.0).group("billing")) as a:
            until_it_has_tried(a)
            proxy.accept()
            a.until_holding(orders)
        assert a.errors == []
    finally:
        client.stop()
        client.close()


def test_connecting_waits_for_the_first_server_until_its_timeout_and_a_member_joins_as_soon(
    proxy: TcpProxy, hosts: str, orders: Partitions
) -> None:
    proxy.refuse()
    later = threading.Timer(1.0, proxy.accept)
    later.start()
    with Registry.connect(hosts, session_timeout=6.0, timeout=600.0) as registry:
        with Running(registry.group("billing")) as a, Running(registry, make=LoneMember) as alone:
            a.until_holding(orders)
            alone.until_holding(orders)
        assert a.member._membership.timeout == alone.member._membership.timeout < 6.0 / 3
    later.join()
