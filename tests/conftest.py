"""Fixtures for all tests: ZooKeeper servers, brokers, and Ctrl-C."""

from __future__ import annotations

import gc
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import seeds, spark_archive
from tests.scheduler import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from zkgroups import Registry
from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import KafkaBroker, Server, ZooKeeperServer, fresh_chroot, missing
from zkgroups.testing.zookeeper_server import RELEASE_VARIABLE, default_release

pytest.register_assert_rewrite("tests.spark.model")

seeds.pin()

# Other tests run at the same time, so the time of one example means nothing. `make soak` draws other examples.
FRESH = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fresh", FRESH)
settings.register_profile("same", FRESH, derandomize=True)
settings.load_profile("same")

# The thousands of tests stay until the end. Python need not search them for garbage, neither now nor later. Hypothesis
# looks for users of random generators when it is imported, so it must be imported before everything is frozen.
gc.disable()

# A process that a shell starts in the background ignores Ctrl-C. Commands that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# These releases have no MultiRead, which ZooKeeper 3.6 introduced.
OLD_RELEASES = ("3.4.14", "3.5.10")
OLDEST = OLD_RELEASES[0]
# In seconds. The first test that asks for such a server may have to wait until it is downloaded.
DOWNLOAD_TIMEOUT = 1000


# Fixtures of the brokers that all tests share.
KAFKA = {"kafka", "kafka_broker", "legacy_kafka"}

GATEWAY = Path(__file__).parent / "gateway"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with the mark `oldest` on the oldest release, too, unless the whole run has a release of its own."""
    if metafunc.definition.get_closest_marker("oldest") and default_release() is None:
        metafunc.parametrize("zkgroups_zookeeper", ["", OLDEST], ids=["3.9", OLDEST], indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need brokers, run them in few processes, and give tests time for downloads.

    Each process starts brokers of its own. In one process, all tests of brokers would take longer than everything else.
    So there are three: for the gateway, for tests that need only the old broker, and for the others. Tests that also
    need Spark run in a process of Spark, which takes longer to start.

    Tests that share an ensemble or a server with their module run in one process: each process would start its own.
    """
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if names & KAFKA:
            item.add_marker(pytest.mark.kafka)
            if "spark" not in names and item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(_brokers_of(item, names)))
        if "spark" not in names and item.get_closest_marker("xdist_group") is None and _shares_a_server(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
        if (names & (KAFKA | {"old_zookeeper"}) or default_release()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(DOWNLOAD_TIMEOUT))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _brokers_of(item: pytest.Item, names: set[str]) -> str:
    """Return the group of a test that needs brokers."""
    if item.path.is_relative_to(GATEWAY):
        return "gateway"
    return "legacy_kafka" if names & (KAFKA | {"broker"}) == {"legacy_kafka"} else "kafka"


def _shares_a_server(item: pytest.Item) -> bool:
    """Return whether a test of ZooKeeper has a fixture that lives as long as its module."""
    fixtures = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    in_module = any(overriding[-1].scope == "module" for overriding in fixtures.values())
    return in_module and item.get_closest_marker("zookeeper") is not None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark"):
        spark_archive.use_archive()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Fail a test that leaves another handler of Ctrl-C: it would end the process when a later test presses Ctrl-C."""
    yield
    left = signal.signal(signal.SIGINT, signal.default_int_handler)
    assert left is signal.default_int_handler, f"the test left a handler of Ctrl-C: {left}"


def pytest_report_header() -> str:
    return f"{seeds.VARIABLE}={seeds.seed()} {RELEASE_VARIABLE}={default_release() or ''}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long the tests of each folder took, as a sum over all processes, and how to draw the same again."""
    seconds = Counter[str]()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds["/".join(report.nodeid.split("/")[:2]).partition("::")[0]] += report.duration
    if len(seconds) > 1:
        parts = (f"{part.removeprefix('tests/')} {sum_:.0f}" for part, sum_ in seconds.most_common() if sum_ >= 1)
        terminalreporter.write_line(f"Seconds: {', '.join(parts)}")
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"Tests that draw at random draw the same with {seeds.VARIABLE}={seeds.seed()}.")


@pytest.fixture(autouse=True)
def forgotten_servers() -> None:
    """Forget which servers support MultiRead: the next server may be another release on the same port."""
    if (support := sys.modules.get("zkgroups.zookeeper.requests.multiread")) is not None:
        support._SERVERS.forget()


@pytest.fixture(scope="session")
def zkgroups_zookeeper(request: pytest.FixtureRequest, zkgroups_zookeeper: Server) -> Server:
    """The server for the whole run, or the oldest one for a test that asks for it."""
    if not getattr(request, "param", ""):
        return zkgroups_zookeeper
    found: Server = request.getfixturevalue("oldest_zookeeper")
    return found


@pytest.fixture(scope="session")
def oldest_zookeeper() -> Iterator[ZooKeeperServer]:
    with _started(OLDEST) as started:
        yield started


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
def legacy_zookeeper(zkgroups_legacy_zookeeper: ZooKeeperServer) -> ZooKeeperServer:
    """The server of the old broker."""
    return zkgroups_legacy_zookeeper


@pytest.fixture(scope="session")
def legacy_kafka(zkgroups_legacy_kafka: KafkaBroker) -> KafkaBroker:
    return zkgroups_legacy_kafka


@pytest.fixture(scope="session", params=OLD_RELEASES)
def old_zookeeper(request: pytest.FixtureRequest) -> Iterator[ZooKeeperServer]:
    """A server of an old release, for the whole session. A test that uses it runs once for each release."""
    with _started(request.param) as started:
        yield started


def _started(release: str) -> ZooKeeperServer:
    try:
        return ZooKeeperServer(release=release).start()
    except MissingDependencyError as error:
        missing("zookeeper", str(error))


@pytest.fixture
def old_hosts(old_zookeeper: ZooKeeperServer) -> Iterator[str]:
    """The address of an old server with a fresh chroot for this test."""
    with fresh_chroot(old_zookeeper) as hosts:
        yield hosts
