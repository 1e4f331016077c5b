"""Shared fixtures: registries with their own sessions, a proxy, and a plain client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from tests.lasting import lasting_client
from zkgroups import (
    ChangeKind,
    Consumergroup,
    Registry,
    TopicPartition,
    Watch,
    Watched,
)
from zkgroups.testing import TcpProxy, ZooKeeperServer
from zkgroups.zookeeper.requests import multiread

from .helpers import SECRET, told, told_many
from .sick import Tree

Connect = Callable[..., Registry]

LONG_SESSION = 300.0
"""In seconds. So long a session is proved so seldom that no proof is counted as the request that a fault waits for."""


@pytest.fixture(autouse=True)
def patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the answer of a server that stands still. Otherwise other requests are sent, which tests count."""
    monkeypatch.setattr(multiread, "VERSION_TIMEOUT", 30.0)
    monkeypatch.setattr(multiread, "PROBE_TIMEOUT", 30.0)


@pytest.fixture
def connect(zookeeper_hosts: str) -> Iterator[Connect]:
    """Connect more registries in the chroot of this test. The options are those of `Registry.connect`."""
    with ExitStack() as stack:

        def connect(hosts: str = zookeeper_hosts, **options: Any) -> Registry:
            return stack.enter_context(Registry.connect(hosts, **options))

        yield connect


@pytest.fixture
def proxy(zookeeper: Any) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy(zookeeper.address) as proxy:
        yield proxy


@pytest.fixture
def old_proxy(old_zookeeper: ZooKeeperServer) -> Iterator[TcpProxy]:
    """A proxy in front of a server without MultiRead."""
    with TcpProxy(old_zookeeper.address) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: TcpProxy, zookeeper_hosts: str, connect: Connect) -> Registry:
    """A registry whose connection goes through the proxy."""
    return connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], session_timeout=LONG_SESSION)


@pytest.fixture
def raw(zookeeper_hosts: str) -> Iterator[Any]:
    """A plain kazoo client in the chroot of this test, for foreign members and for assertions."""
    client = KazooClient(
        zookeeper_hosts, timeout=20.0, connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1)
    )
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def group(registry: Registry) -> Consumergroup:
    return registry.group("billing")


@pytest.fixture
def alice(zookeeper_hosts: str) -> Iterator[Any]:
    """A plain client whose new nodes only alice may use."""
    with lasting_client(zookeeper_hosts, auth_data=[("digest", f"alice:{SECRET}")]) as client:
        yield client


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "session"


@pytest.fixture
def tree(raw: KazooClient) -> Tree:
    return Tree(raw)


@pytest.fixture
def watch(group: Consumergroup) -> Iterator[Callable[[Watched], Watch]]:
    """Return the watch after its first `RESCANNED`."""
    watches: list[Watch] = []

    def begin(what: Watched) -> Watch:
        watches.append(group.watch(what))
        assert told(watches[-1]).kind is ChangeKind.RESCANNED
        return watches[-1]

    yield begin
    for each in watches:
        each.close()


@pytest.fixture
def far(proxied: Registry, watch: Callable[[Watched], Watch]) -> Iterator[Watch]:
    """A watch of the offsets through the proxy, after one reported offset."""
    group = proxied.group("billing")
    group.offsets.set(TopicPartition("orders", 0), 1)
    with group.watch(Watched.OFFSETS) as offsets:
        told_many(offsets, 2)
        yield offsets
