"""The registry: its lists and options, and servers that cannot be reached."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from zkgroups import Registry, ShortSessionWarning, Topic
from zkgroups.exceptions import (
    InvalidNameError,
    InvalidOptionError,
    NotConnectedError,
    NotFoundError,
    NotRegisteredError,
)
from zkgroups.testing import TcpProxy, ZooKeeperServer

from .conftest import Connect
from .helpers import P0, no_thread_stays

pytestmark = pytest.mark.zookeeper


# Groups


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


# A client that was passed


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
    with pytest.raises(InvalidOptionError) as caught:
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
    with pytest.raises(InvalidOptionError) as caught, no_thread_stays():
        Registry.connect(hosts)
    assert caught.value.option == "zookeeper"
    assert caught.value.value is hosts
    assert "host:port" in str(caught.value) or "leave out" in str(caught.value)


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


def test_a_missing_chroot_is_named_in_the_error(zookeeper: Any) -> None:
    with (
        pytest.raises(NotFoundError, match=f"/kafka/one does not exist in the ZooKeeper at {zookeeper.address}"),
        no_thread_stays(),
    ):
        Registry.connect(f"{zookeeper.address}/kafka/one")


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
    with no_thread_stays(), pytest.raises(NotConnectedError, match=reason) as caught:
        Registry.connect(hosts, timeout=2.0, session_timeout=session_timeout)
    assert hosts in str(caught.value)
    assert not str(caught.value).endswith("None")


@pytest.mark.parametrize("unreachable", UNREACHABLE, indirect=True)
def test_an_unreachable_server_does_not_prevent_connecting_to_another(
    unreachable: tuple[str, str], zookeeper: Any
) -> None:
    """kazoo shuffles the hosts, so the reachable server is seldom the first."""
    hosts = f"{unreachable[0]},{unreachable[0]},{zookeeper.address}"
    with no_thread_stays(), Registry.connect(hosts, timeout=30.0, session_timeout=300.0) as registry:
        assert registry.session_id


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
    for call in calls:
        with pytest.raises(NotConnectedError):
            call()
    assert registry.session_id is None
