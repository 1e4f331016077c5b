"""Fixtures for all tests: ZooKeeper servers, brokers, and Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from zkgroups import Registry
from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import KafkaBroker, Server, ZooKeeperServer, fresh_chroot, missing

pytest.register_assert_rewrite("tests.spark.model")

# A process that a shell starts in the background ignores Ctrl-C. Commands that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# These releases have no MultiRead, which ZooKeeper 3.6 introduced.
OLD_RELEASES = ("3.4.14", "3.5.10")
# In seconds. The first test that asks for such a server may have to wait until it is downloaded.
DOWNLOAD_TIMEOUT = 1000


# Fixtures of the brokers that all tests share.
KAFKA = {"kafka", "kafka_broker", "legacy_kafka"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need brokers, run them in two processes, and give tests time for downloads.

    Tests that also need Spark run in the process of Spark, which takes longer to start. Tests that need only the old
    broker, for example with Scala members, run in a process of their own: they mostly wait, and together with all other
    tests of brokers they would take longer than everything else.
    """
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if names & KAFKA:
            item.add_marker(pytest.mark.kafka)
            if "spark" not in names and item.get_closest_marker("xdist_group") is None:
                only_old = names & (KAFKA | {"broker"}) == {"legacy_kafka"}
                item.add_marker(pytest.mark.xdist_group("legacy_kafka" if only_old else "kafka"))
        if names & (KAFKA | {"old_zookeeper"}) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(DOWNLOAD_TIMEOUT))


@pytest.fixture(autouse=True)
def forgotten_servers() -> None:
    """Forget which servers support MultiRead: the next server may be another release on the same port."""
    if (support := sys.modules.get("zkgroups.zookeeper.requests.multiread_support")) is not None:
        support._SERVERS.forget()


@pytest.fixture(scope="session")
def zookeeper(zkgroups_zookeeper: Server) -> Server:
    return zkgroups_zookeeper


@pytest.fixture
def zookeeper_hosts(zkgroups_hosts: str) -> str:
    return zkgroups_hosts


@pytest.fixture
def registry(zkgroups_registry: Registry) -> Registry:
    return zkgroups_registry


@pytest.fixture(scope="session")
def kafka_broker(zkgroups_kafka: KafkaBroker) -> KafkaBroker:
    return zkgroups_kafka


@pytest.fixture(scope="session")
def kafka(zkgroups_kafka: KafkaBroker) -> str:
    return zkgroups_kafka.address


@pytest.fixture(scope="session")
def legacy_kafka(zkgroups_legacy_kafka: KafkaBroker) -> KafkaBroker:
    return zkgroups_legacy_kafka


@pytest.fixture(scope="session", params=OLD_RELEASES)
def old_zookeeper(request: pytest.FixtureRequest) -> Iterator[ZooKeeperServer]:
    """A server of an old release, for the whole session. A test that uses it runs once for each release."""
    try:
        started = ZooKeeperServer(release=request.param).start()
    except MissingDependencyError as error:
        missing("zookeeper", str(error))
    with started:
        yield started


@pytest.fixture
def old_hosts(old_zookeeper: ZooKeeperServer) -> Iterator[str]:
    """The address of an old server with a fresh chroot for this test."""
    with fresh_chroot(old_zookeeper) as hosts:
        yield hosts
