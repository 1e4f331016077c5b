"""A server for tests that do not break it, and kazoo clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import ZooKeeperServer, missing

Clients = Callable[..., KazooClient]


@pytest.fixture(scope="session")
def server() -> Iterator[ZooKeeperServer]:
    """A server that is never broken. The plugin's `zookeeper` may be an external server."""
    try:
        started = ZooKeeperServer().start()
    except MissingDependencyError as error:
        missing("zookeeper", str(error))
    with started:
        yield started


@pytest.fixture
def connect() -> Iterator[Clients]:
    """Connect clients that reconnect quickly, and close them after the test. Their sessions outlive a machine that
    stands still."""
    clients: list[KazooClient] = []

    def connect(hosts: str, **options: object) -> KazooClient:
        retry = KazooRetry(max_tries=-1, delay=0.01, backoff=1, max_delay=0.05)
        client = KazooClient(hosts, connection_retry=retry, **{"timeout": 40.0} | options)
        clients.append(client)
        client.start(timeout=60)
        return client

    yield connect
    for client in clients:
        client.stop()
        client.close()
