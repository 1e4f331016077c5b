"""The pytest plugin: real servers for a test run, and an empty registry for each test.

Load it in a `conftest.py` with `pytest_plugins = ["zkgroups.testing.plugin"]`, or with `-p zkgroups.testing.plugin`.
It imports a server, and what the server needs, only when a test asks for its fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from zkgroups import Registry

    from .kafka_broker import KafkaBroker
    from .server_choice import Server
    from .zookeeper_server import ZooKeeperServer

_MARKS = {
    "zookeeper": "needs a ZooKeeper server",
    "spark": "needs pyspark and Java",
    "kafka": "needs Kafka brokers",
    "docker": "needs a Docker engine",
}

_LEGACY_RELEASE = "1.1.1"
_LEGACY_ZOOKEEPER = "3.4.14"

T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in _MARKS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}; see zkgroups.testing.missing")


@pytest.fixture(scope="session")
def zkgroups_zookeeper() -> Iterator[Server]:
    """A ZooKeeper server for the whole run, one for each worker of pytest-xdist; see `zkgroups.testing.zookeeper`."""
    from . import server_choice

    with ExitStack() as stack:
        yield _enter(stack, "zookeeper", server_choice.zookeeper())


@pytest.fixture
def zkgroups_hosts(zkgroups_zookeeper: Server) -> Iterator[str]:
    """The address of that server, with an empty chroot for this test."""
    from .server_choice import fresh_chroot

    with fresh_chroot(zkgroups_zookeeper) as hosts:
        yield hosts


@pytest.fixture
def zkgroups_registry(zkgroups_hosts: str) -> Iterator[Registry]:
    """A registry connected to an empty chroot."""
    from zkgroups import Registry

    with Registry.connect(zkgroups_hosts) as registry:
        yield registry


@pytest.fixture(scope="session")
def zkgroups_kafka() -> Iterator[KafkaBroker]:
    """A current Kafka broker for the whole run. Tests share it, so each test names topics of its own."""
    from .kafka_broker import KafkaBroker

    with ExitStack() as stack:
        yield _enter(stack, "kafka", KafkaBroker())


@pytest.fixture(scope="session")
def zkgroups_legacy_zookeeper() -> Iterator[ZooKeeperServer]:
    """The ZooKeeper server of the Kafka 1.1.1 broker: 3.4, as in most clusters that still have such a broker."""
    from .zookeeper_server import ZooKeeperServer, default_release

    with ExitStack() as stack:
        yield _enter(stack, "kafka", ZooKeeperServer(release=default_release() or _LEGACY_ZOOKEEPER))


@pytest.fixture(scope="session")
def zkgroups_legacy_kafka(zkgroups_legacy_zookeeper: ZooKeeperServer) -> Iterator[KafkaBroker]:
    """A Kafka 1.1.1 broker for the whole run, with a ZooKeeper server of its own."""
    from .kafka_broker import KafkaBroker

    zookeeper = f"{zkgroups_legacy_zookeeper.address}/kafka"
    with ExitStack() as stack:
        yield _enter(stack, "kafka", KafkaBroker(release=_LEGACY_RELEASE, zookeeper=zookeeper))


def _enter(stack: ExitStack, needed: str, server: AbstractContextManager[T]) -> T:
    """Start the server. If something is missing, skip the test, or fail it if `ZKGROUPS_REQUIRE` names the server."""
    from zkgroups.exceptions import MissingDependencyError

    from .server_choice import missing

    try:
        return stack.enter_context(server)
    except MissingDependencyError as error:
        missing(needed, str(error))
