"""The registry: its lists, its options, and connections that fail or are lost."""

from __future__ import annotations

import re
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import Broker, MalformedNode, Registry, ShortSessionWarning, Topic, TopicPartition
from zkgroups.exceptions import (
    InvalidInputError,
    InvalidNameError,
    InvalidOptionError,
    MalformedNodeError,
    NotConnectedError,
    NotFoundError,
    NotRegisteredError,
    OutcomeUnknownError,
)
from zkgroups.testing import TcpProxy, ZooKeeperServer

from .conftest import Connect
from .waiting import AT_ONCE, in_time, no_thread_stays

pytestmark = pytest.mark.zookeeper


P0 = TopicPartition("orders", 0)
TIMEOUT = 5.0
LATE = 2 * TIMEOUT - 0.1
"""In seconds. A call with TIMEOUT must end by then, and not wait twice."""


# Groups


def test_a_registry_lists_its_groups_sorted(registry: Registry) -> None:
    assert (list(registry), registry.groups()) == ([], [])
    for name in ("b", "a", "Z", "10", "9", "ä"):
        registry.group(name).create()
    assert [group.name for group in registry] == registry.groups() == ["10", "9", "Z", "a", "b", "ä"]


def test_a_registry_is_true_without_a_request_and_has_no_length() -> None:
    registry = Registry(KazooClient("127.0.0.1:1"))
    assert registry
    assert not hasattr(registry, "__len__")


def test_a_group_has_registrations_owners_or_offsets(registry: Registry, raw: Any) -> None:
    raw.create("/consumers/members/ids/x", b"{}", ephemeral=True, makepath=True)
    raw.create("/consumers/owned/owners/orders/0", b"x", ephemeral=True, makepath=True)
    raw.create("/consumers/offsets only/offsets/orders/0", b"5", makepath=True)
    raw.create("/consumers/stray")
    assert registry.groups() == ["members", "offsets only", "owned", "stray"]
    assert all(name in registry for name in registry.groups())
    assert "other" not in registry
    stray = registry.group("stray")
    assert (stray.exists(), stray.instances(), list(stray.owners()), list(stray.offsets)) == (True, [], [], [])
    stray.delete()
    assert "stray" not in registry


@pytest.mark.parametrize("name", ["a/b", "", ".", "..", "a\x00b", "a\nb", "\ud800", 5, None])
def test_an_invalid_group_name_is_refused_before_any_request(registry: Registry, raw: Any, name: Any) -> None:
    with pytest.raises(InvalidNameError) as caught:
        registry.group(name)
    assert (caught.value.kind, caught.value.name) == ("group", name)
    with pytest.raises(InvalidNameError):
        _ = name in registry
    assert raw.get_children("/") == []


# Kafka


def test_topics_are_those_registered_by_kafka_with_their_partition_numbers(registry: Registry, raw: Any) -> None:
    assert registry.topics() == []
    raw.create("/brokers/topics/orders", b'{"version":1,"partitions":{"10":[1],"0":[1,2],"2":[3]}}', makepath=True)
    raw.create("/brokers/topics/audit", b'{"version":1,"partitions":{}}')
    assert registry.topics() == ["audit", "orders"]
    assert registry.topic("orders") == Topic("orders", (0, 2, 10))
    assert registry.topic("audit") == Topic("audit", ())
    assert registry.topic("unknown") is None
    with pytest.raises(InvalidNameError):
        registry.topic("a/b")


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"{}", b'{"partitions":[0]}', b'{"partitions":{"x":[1]}}', None])
def test_a_malformed_topic_is_reported_with_its_path(registry: Registry, raw: Any, data: bytes) -> None:
    raw.create("/brokers/topics/orders", data, makepath=True)
    with pytest.raises(MalformedNodeError) as caught:
        registry.topic("orders")
    assert caught.value.path == "/brokers/topics/orders"
    assert registry.topics() == ["orders"]


def test_brokers_are_sorted_by_id_and_a_malformed_one_is_listed_too(registry: Registry, raw: Any) -> None:
    assert registry.brokers() == []
    raw.create(
        "/brokers/ids/10", b'{"host":"kafka10","port":9092,"endpoints":["PLAINTEXT://kafka10:9092"]}', makepath=True
    )
    raw.create("/brokers/ids/9", b'{"host":null,"port":-1,"endpoints":["SSL://kafka9:9093"]}')
    raw.create("/brokers/ids/2", b"what")
    [malformed, *brokers] = registry.brokers()
    assert isinstance(malformed, MalformedNode)
    assert malformed.path == "/brokers/ids/2"
    assert brokers == [
        Broker(9, None, None, ("SSL://kafka9:9093",)),
        Broker(10, "kafka10", 9092, ("PLAINTEXT://kafka10:9092",)),
    ]


# A client that was passed


def test_a_running_client_can_be_passed_and_is_not_closed(raw: Any) -> None:
    with Registry(raw) as registry:
        assert registry.session_id == raw.client_id[0]
        assert registry.session_timeout is None  # it was granted before anybody listened
        registry.group("billing").create()
    assert raw.connected
    assert raw.get_children("/consumers/billing") != []
    assert registry.groups() == ["billing"]


@pytest.mark.parametrize("client", ["zk1:2181", None])
def test_an_object_that_is_not_a_client_is_refused_with_a_hint(client: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"Registry\.connect"):
        Registry(client)


def test_two_registries_over_one_client_are_one_session_and_two_instances(raw: Any) -> None:
    one, two = Registry(raw), Registry(raw)
    assert one._context.session is two._context.session  # it listens to the client, which is to be done once
    assert one.session_id == two.session_id
    with one.group("billing").instance("a") as a, two.group("billing").instance("b") as b:
        a.register(["orders"])
        b.register(["orders"])
        held = a.claim(P0)
        assert two.group(b.group).owner(P0) == one.group(a.group).owner(P0)
        b.release()
        assert held.verify()
        b.deregister()
        assert a.registered
        with pytest.raises(NotRegisteredError):
            b.registration()


def test_a_client_that_connects_later_reports_its_session_timeout(zookeeper_hosts: str, raw: Any) -> None:
    registry = Registry(raw)
    raw.stop()
    raw.start()
    assert registry.session_timeout == 20.0
    assert registry.session_id == raw.client_id[0]


# Session timeouts


@pytest.fixture(scope="module")
def narrow() -> Iterator[ZooKeeperServer]:
    """A server that grants sessions of 1 to 8 seconds."""
    with ZooKeeperServer(config={"minSessionTimeout": "1000", "maxSessionTimeout": "8000"}) as server:
        yield server


@pytest.mark.parametrize(("asked", "granted"), [(300.0, 8.0), (7.0, 7.0), (0.5, 1.0), (0.0001, 1.0)])
def test_the_session_timeout_is_the_granted_one(narrow: ZooKeeperServer, asked: float, granted: float) -> None:
    with Registry.connect(narrow.address, session_timeout=asked) as registry:
        assert registry.session_timeout == granted


@pytest.mark.parametrize(
    "seconds",
    [0, 0.0, -1, -0.001, 300.001, 301, pytest.param(10**5000, id="huge"), float("inf"), float("nan"), "30", None, True],
)
def test_a_session_timeout_outside_its_bounds_is_refused_at_once(seconds: Any) -> None:
    with pytest.raises(InvalidOptionError) as caught, in_time(AT_ONCE):
        Registry.connect("127.0.0.1:1", session_timeout=seconds)
    assert caught.value.option == "session_timeout"
    assert caught.value.value is seconds


@pytest.mark.parametrize(("seconds", "warned"), [(9.999, True), (0.5, True), (10, False), (300, False)])
def test_a_session_timeout_below_ten_seconds_warns_at_the_callers_line(
    narrow: ZooKeeperServer, seconds: float, warned: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ShortSessionWarning)
        Registry.connect(narrow.address, session_timeout=seconds).close()
    found = [w for w in caught if w.category is ShortSessionWarning]
    assert [Path(w.filename).name for w in found] == ["test_registry.py"] * warned


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", None, True])
def test_an_invalid_timeout_is_refused_at_once(seconds: Any, raw: Any) -> None:
    for make in (lambda: Registry.connect("127.0.0.1:1", timeout=seconds), lambda: Registry(raw, timeout=seconds)):
        with pytest.raises(InvalidOptionError, match="timeout") as caught, in_time(AT_ONCE):
            make()
        assert caught.value.option == "timeout"


# Hosts


@pytest.mark.parametrize(
    "hosts",
    [
        None,
        5,
        b"zk1:2181",
        "",
        "  ",
        "/kafka",
        ":2181",
        "zk1:port",
        "zk1:99999",
        "zk1:0",
        "zk1:-1",
        "zk1:",
        "zk1:2181,",
        "zk1:2181,,zk2:2181",
        "zk 1:2181",
        "zk\t1:2181",
        "zk\x001:2181",
        "zk..example:2181",
        f"{'z' * 64}:2181",
        "zk1.example/chroot:2181/\x00",
        "zookeeper://zk1:2181",
        "user:secret@zk1:2181",
        "zk1:2181?x",
        "zk1:2181#x",
        "bücher:2181",
        "::1:2181",
        "[::1:2181",
        "zk1:2181//kafka",
        "zk1:2181/a//b",
        "zk1:2181/../x",
        "zk1:2181/./x",
        "zk1:2181/a\nb",
    ],
)
def test_an_invalid_hosts_string_is_refused_at_once(hosts: Any) -> None:
    with pytest.raises(InvalidOptionError) as caught, in_time(AT_ONCE), no_thread_stays():
        Registry.connect(hosts)
    assert caught.value.option == "zookeeper"
    assert caught.value.value is hosts
    assert "host:port" in str(caught.value)


def test_a_hosts_string_may_have_spaces_a_trailing_slash_and_no_port(
    zookeeper: Any, zookeeper_hosts: str, connect: Connect
) -> None:
    registry = connect(zookeeper_hosts)
    registry.group("billing").create()
    for hosts in (f"{zookeeper_hosts}/", f" {zookeeper_hosts} ", zookeeper_hosts.replace("127.0.0.1", "localhost")):
        assert connect(hosts).groups() == ["billing"]
    for hosts in (f"{zookeeper.address}/", zookeeper.address):
        assert "consumers" not in repr(connect(hosts))
    for fine in ("zk1", "zk1/kafka", "[::1]:2181", "[fe80::1%eth0]", "zk-1.example_1.com.:2181,10.0.0.1/a/b c"):
        with pytest.raises(NotConnectedError):
            Registry.connect(fine, timeout=0)


def test_a_wrong_hosts_string_is_an_input_error_and_a_value_error() -> None:
    with pytest.raises(ValueError, match="zk1:port") as caught:
        Registry.connect("zk1:port")
    assert isinstance(caught.value, InvalidInputError)


def test_a_missing_chroot_is_named_in_the_error(zookeeper: Any) -> None:
    with (
        pytest.raises(NotFoundError, match=f"/kafka/one does not exist in the ZooKeeper at {zookeeper.address}"),
        no_thread_stays(),
    ):
        Registry.connect(f"{zookeeper.address}/kafka/one")


def test_the_repr_of_a_registry_shows_hosts_and_chroot(registry: Registry, zookeeper_hosts: str) -> None:
    assert repr(registry) == f"<Registry {zookeeper_hosts}>"


# Servers that cannot be reached


@pytest.fixture
def unreachable(request: pytest.FixtureRequest, zookeeper: Any) -> Iterator[tuple[str, str]]:
    """The address of an unreachable server, and the text of the error."""
    with ExitStack() as stack:
        match request.param:
            case "closed port":
                yield f"127.0.0.1:{stack.enter_context(_port_that_is_closed())}", "refused"
            case "black hole":
                yield stack.enter_context(_black_hole()), "answer"
            case "silent":
                proxy = stack.enter_context(TcpProxy(zookeeper.address))
                proxy.drop()
                yield proxy.address, "answer"
            case "hangs up":
                proxy = stack.enter_context(TcpProxy(zookeeper.address))
                proxy.refuse()
                yield proxy.address, "reset|hung up"
            case "no such host":
                yield "no-such-host.invalid:2181", "unknown host"


@contextmanager
def _port_that_is_closed() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@contextmanager
def _black_hole() -> Iterator[str]:
    """An address where every new connection hangs: the backlog is full, and no process accepts connections."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


UNREACHABLE = ["closed port", "black hole", "silent", "hangs up", "no such host"]


@pytest.mark.parametrize(
    ("unreachable", "session_timeout"),
    [("silent", 10.0), *((name, 300.0) for name in UNREACHABLE)],
    indirect=["unreachable"],
)
def test_connecting_to_an_unreachable_server_fails_in_time_with_the_reason_and_ends_all_threads(
    unreachable: tuple[str, str], session_timeout: float
) -> None:
    hosts, reason = unreachable
    with no_thread_stays(), in_time(AT_ONCE), pytest.raises(NotConnectedError, match=reason) as caught:
        Registry.connect(hosts, timeout=4.0, session_timeout=session_timeout)
    assert hosts in str(caught.value)
    assert not str(caught.value).endswith("None")


@pytest.mark.parametrize("unreachable", ["black hole"], indirect=True)
def test_an_attempt_that_cannot_be_cancelled_does_not_delay_the_error_and_ends_later(
    unreachable: tuple[str, str],
) -> None:
    with no_thread_stays(), in_time(AT_ONCE), pytest.raises(NotConnectedError):
        Registry.connect(unreachable[0], timeout=0.1)


@pytest.mark.parametrize("unreachable", UNREACHABLE, indirect=True)
def test_an_unreachable_server_does_not_prevent_connecting_to_another(
    unreachable: tuple[str, str], zookeeper: Any
) -> None:
    """kazoo shuffles the hosts, so the reachable server is seldom the first."""
    hosts = f"{unreachable[0]},{unreachable[0]},{zookeeper.address}"
    with no_thread_stays(), Registry.connect(hosts, timeout=30.0, session_timeout=300.0) as registry:
        assert registry.session_id


# Closing


def test_close_may_be_called_twice_and_ends_the_session(connect: Connect, raw: Any) -> None:
    with no_thread_stays():
        registry = connect()
        registry.group("billing").instance("me").register(["orders"])
        assert raw.exists("/consumers/billing/ids/me")
        registry.close()
        registry.close()
    assert raw.exists("/consumers/billing/ids/me") is None


def test_without_a_connection_the_error_names_the_servers() -> None:
    registry = Registry(KazooClient("127.0.0.1:1,[::1]:1/kafka"), timeout=0.05)
    group = registry.group("billing")
    with pytest.raises(NotConnectedError, match=re.escape("could not connect to 127.0.0.1:1,[::1]:1 within 0.05 s")):
        group.instance("me").register(["orders"])


def test_calls_after_close_are_refused_at_once(connect: Connect) -> None:
    registry = connect()
    group = registry.group("billing")
    group.create()
    registry.close()
    calls: list[Callable[[], object]] = [
        registry.groups,
        registry.topics,
        registry.brokers,
        registry.credentials,
        group.describe,
        group.create,
        group.delete,
        lambda: group.offsets.fetch(P0),
        lambda: group.offsets.set(P0, 1),
        lambda: list(group.owners()),
        lambda: group.wait_free(P0, timeout=20),
        lambda: group.instance("me").register(["orders"]),
    ]
    with in_time(AT_ONCE):
        for call in calls:
            with pytest.raises(NotConnectedError):
                call()
    assert registry.session_id is None


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


def stand_still(server: ZooKeeperServer) -> None:
    """Suspend the process, and return once it is stopped: on a busy machine, the signal takes a while."""
    server.suspend()
    deadline = time.monotonic() + 30
    while not all(_stands(thread) for thread in Path(f"/proc/{server.pid}/task").iterdir()):
        assert time.monotonic() < deadline


def _stands(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended


def test_calls_to_a_suspended_server_end_in_time_and_work_again_after_it_resumes(
    server: ZooKeeperServer,
) -> None:
    with Registry.connect(server.address, timeout=TIMEOUT, session_timeout=300.0) as registry:
        group = registry.group("billing")
        group.create()
        stand_still(server)
        reads: list[Callable[[], object]] = [
            group.describe,
            lambda: list(group.offsets),
            lambda: group.offsets.set(P0, 1),
            lambda: group.instance("me").register(["orders"]),
        ]
        for call in reads:
            with in_time(LATE), pytest.raises((NotConnectedError, OutcomeUnknownError)) as caught:
                call()
            if call is not reads[-1]:
                assert isinstance(caught.value, NotConnectedError)
        server.resume()
        group.offsets.set(P0, 7)
        found = group.offsets.fetch(P0)
        assert found is not None
        assert found.offset == 7


def test_closing_a_connection_to_a_suspended_server_takes_seconds_at_most(server: ZooKeeperServer) -> None:
    with no_thread_stays():
        registry = Registry.connect(server.address, timeout=TIMEOUT, session_timeout=300.0)
        stand_still(server)
        with in_time(20.0):
            registry.close()
        with in_time(AT_ONCE), pytest.raises(NotConnectedError):
            registry.groups()
