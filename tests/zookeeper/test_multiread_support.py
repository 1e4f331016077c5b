"""Probing servers for MultiRead: once per process and server, and without log messages."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from tests.lasting import lasting_client
from zkgroups import Registry, TopicPartition
from zkgroups.testing import Op, TcpProxy, ZooKeeperServer
from zkgroups.zookeeper.kazoo_compat.tcp_connection import Endpoints, endpoints
from zkgroups.zookeeper.requests import multiread_support

from ..releases import needs_multiread
from .bulk_reads import plant_offsets, run_together, shown
from .conftest import Connect

pytestmark = pytest.mark.zookeeper

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


def test_all_registries_of_a_process_probe_a_server_without_a_version_once(
    old_proxy: TcpProxy,
    old_address: str,
    old_hosts: str,
    complaints: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multiread_support, "_version", lambda *_: None)
    with lasting_client(old_hosts) as client:
        expected = plant_offsets(client, 3, 2, 10)
    for _ in range(3):
        with Registry.connect(old_address) as registry:
            states: list[str] = []
            registry.client.add_listener(states.append)
            assert shown(registry.offsets()) == expected
            assert states == []
    assert old_proxy.requests_by_type[Op.MULTI_READ] == 1
    assert complaints() == 1


READ = """
import sys
from zkgroups import Registry
from zkgroups.zookeeper.requests import multiread_support

if sys.argv[2]:
    multiread_support._version = lambda *_: None
with Registry.connect(sys.argv[1]) as registry:
    print(len(list(registry.offsets())))
"""


@pytest.mark.parametrize("hidden", ["", "its version is hidden"])
def test_reading_from_an_old_server_prints_nothing_on_stderr(old_hosts: str, hidden: str) -> None:
    with lasting_client(old_hosts) as client:
        plant_offsets(client, 3, 2, 10)
    ended = subprocess.run(
        [sys.executable, "-c", READ, old_hosts, hidden], capture_output=True, text=True, timeout=120, check=True
    )
    assert (ended.stdout, ended.stderr) == ("60\n", "")


@needs_multiread
def test_registries_that_start_together_probe_a_new_server_once(
    proxy: TcpProxy, zookeeper_hosts: str, connect: Connect, raw: object
) -> None:
    expected = plant_offsets(raw, 3, 2, 10)
    hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
    registries = [connect(hosts) for _ in range(6)]
    together, trouble = threading.Barrier(len(registries)), list[object]()

    def read(registry: Registry) -> None:
        together.wait(30)
        if shown(registry.offsets()) != expected:
            trouble.append(registry)

    run_together([lambda each=each: read(each) for each in registries], trouble)  # type: ignore[misc]
    assert trouble == []
    assert proxy.connections == len(registries) + 1
    assert proxy.requests_by_type[Op.MULTI_READ] >= len(registries)
    assert all(registry._context.session.reads_many.values() for registry in registries)


def test_an_old_server_under_the_address_of_a_new_one_costs_one_reconnect_and_no_claim(
    old_proxy: TcpProxy, old_address: str, old_hosts: str, connect: Connect
) -> None:
    """As after a rollback of an upgrade: the process remembers the newer server."""
    with lasting_client(old_hosts) as client:
        expected = plant_offsets(client, 8, 2, 40)
    old = connect(old_address, timeout=60.0)
    connection = endpoints(old.client)
    assert connection is not None
    multiread_support._SERVERS.set_supports(connection, True)
    states: list[str] = []
    old.client.add_listener(states.append)
    me = old.group("mine").instance("me")
    me.register(["orders"])
    claims = [me.claim(TopicPartition("orders", number)) for number in range(4)]
    trouble: list[object] = []

    def read() -> None:
        for _ in range(3):
            found = [name for name in shown(old.offsets()) if not name.startswith("mine/")]
            if found != expected:
                trouble.append(found)

    def commit(number: int) -> None:
        for offset in range(20):
            claims[number].commit(offset)

    run_together([read] * 4 + [lambda n=n: commit(n) for n in range(4)], trouble)  # type: ignore[misc]
    assert trouble == []
    assert states == ["SUSPENDED", "CONNECTED"]
    assert all(claim.held for claim in claims)
    spent = old_proxy.requests_by_type[Op.MULTI_READ]
    assert spent > 0
    assert len(list(old.offsets())) == len(expected) + 4
    assert old_proxy.requests_by_type[Op.MULTI_READ] == spent


def test_one_connection_lost_during_the_request_does_not_count() -> None:
    servers = multiread_support._Servers()
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
    with multiread_support._SERVERS.probing(connection):
        child = os.fork()
        if child == 0:
            os._exit(0 if multiread_support._SERVERS.probing(connection).acquire(timeout=30) else 1)
        _, status = os.waitpid(child, 0)
    assert status == 0
