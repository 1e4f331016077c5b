"""The pytest plugin: marks, a ZooKeeper server and Kafka brokers for the run, and a fresh registry for each test.

Everybody who has zkgroups installed loads this file with every pytest run: no server, and none of what one needs, is
imported before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from zkgroups import Registry

    from .kafka import KafkaBroker
    from .server_choice import Server

_MARKS = {
    "zookeeper": "needs a ZooKeeper server",
    "spark": "needs pyspark and Java",
    "kafka": "needs Kafka brokers",
    "docker": "needs a Docker engine",
}


T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in _MARKS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}; see zkgroups.testing.missing")


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[Server]:
    """A ZooKeeper server for the whole run (one per worker of pytest-xdist): see `zkgroups.testing.zookeeper`."""
    from zkgroups.exceptions import MissingDependencyError

    from . import server_choice
    from .requirements import missing

    with ExitStack() as stack:
        try:
            server = stack.enter_context(server_choice.zookeeper())
        except MissingDependencyError as error:
            missing("zookeeper", str(error))
        yield server


@pytest.fixture
def zookeeper_hosts(zookeeper: Server) -> Iterator[str]:
    """The server's address with a fresh chroot for this test."""
    from .server_choice import fresh_chroot

    with fresh_chroot(zookeeper) as hosts:
        yield hosts


@pytest.fixture
def registry(zookeeper_hosts: str) -> Iterator[Registry]:
    """A registry on a chroot of its own."""
    from zkgroups import Registry

    with Registry.connect(zookeeper_hosts) as registry:
        yield registry


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """A Kafka broker of today for the whole run; its topics are all tests', so that each names its own."""
    from .kafka import KafkaBroker

    with ExitStack() as stack:
        yield _started(stack, KafkaBroker())


@pytest.fixture(scope="session")
def kafka(kafka_broker: KafkaBroker) -> str:
    """The address of a Kafka broker of today, for the whole run."""
    return kafka_broker.address


@pytest.fixture(scope="session")
def legacy_kafka() -> Iterator[KafkaBroker]:
    """A Kafka broker of the days of ZooKeeper, on one of its own, for the whole run."""
    from .kafka import KafkaBroker
    from .server import ZooKeeperServer

    with ExitStack() as stack:
        zookeeper = _started(stack, ZooKeeperServer())
        yield _started(stack, KafkaBroker(release="1.1.1", zookeeper=f"{zookeeper.address}/kafka"))


def _started(stack: ExitStack, server: AbstractContextManager[T]) -> T:
    from zkgroups.exceptions import MissingDependencyError

    from .requirements import missing

    try:
        return stack.enter_context(server)
    except MissingDependencyError as error:
        missing("kafka", str(error))
