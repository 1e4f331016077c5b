"""Shared fixtures: registries with their own sessions, a proxy, and a plain client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from zkgroups import Consumergroup, Registry
from zkgroups.testing import TcpProxy

Connect = Callable[..., Registry]


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
def proxied(proxy: TcpProxy, zookeeper_hosts: str, connect: Connect) -> Registry:
    """A registry whose connection goes through the proxy."""
    return connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2])


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
