"""Bulk reads: order, number of requests, lost connections, and old servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.exceptions import UnimplementedError
from kazoo.security import make_digest_acl

from zkgroups import CommittedOffset, Digest, ForbiddenNode, Registry, Sasl, Tls, TopicPartition
from zkgroups.exceptions import NotConnectedError
from zkgroups.testing import Op, TcpProxy, ZooKeeperServer, fresh_chroot
from zkgroups.testing import server_configuration as server_side
from zkgroups.zookeeper.requests import bulk_read, bulk_read_requests
from zkgroups.zookeeper.requests.bulk_read import Siblings
from zkgroups.zookeeper.requests.bulk_read_pace import MAX_READ_REQUEST_BYTES, REQUESTS
from zkgroups.zookeeper.requests.multiread_format import Kind, MultiRead, operations
from zkgroups.zookeeper.requests.node import Node

from ..core.strategies import NAMES
from ..testing.test_secure_server import certificate
from .conftest import Connect
from .events import expire
from .test_large import seed
from .test_registry import AT_ONCE, in_time

pytestmark = pytest.mark.zookeeper

ODD = ["a b", " ", "a:b", "über", "日本語", "100%", "%2F", "'\"\\", "...", "-1", "+", "\u0301", "x" * 3_000]
"""Names that a server accepts, although other software might not."""


@pytest.fixture
def states(proxied: Registry) -> list[str]:
    """The states of the connection of the proxied registry."""
    seen: list[str] = []
    proxied.client.add_listener(lambda state: seen.append(str(state)))
    return seen


@contextmanager
def client_of(hosts: str) -> Iterator[Any]:
    client = KazooClient(hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def plant(client: Any, paths: Iterable[str], data: bytes = b"7") -> list[str]:
    """Create nodes and their parents."""
    paths = list(paths)
    for above in sorted({path.rpartition("/")[0] for path in paths} - {""}):
        client.ensure_path(above)
    each(client.create_async(path, data) for path in paths)
    return paths


def each(answers: Iterable[Any]) -> list[Any]:
    """Return the answers to requests that are in flight together."""
    return [answer.get(timeout=20) for answer in list(answers)]


def plant_offsets(client: Any, groups: int, topics: int, partitions: int) -> list[str]:
    """Return offsets as `group/topic/partition`, in the order of reading."""
    names = [f"g{g:04}/t{t:02}/{p}" for g in range(groups) for t in range(topics) for p in range(partitions)]
    directories = [f"/consumers/g{g:04}" for g in range(groups)]
    client.ensure_path("/consumers")
    seed(client, directories)
    seed(client, [f"{directory}/offsets" for directory in directories])
    seed(client, [f"{directory}/offsets/t{t:02}" for directory in directories for t in range(topics)])
    seed(client, ["/consumers/{}/offsets/{}".format(*name.split("/", 1)) for name in names])
    return names


def shown(found: Iterable[object]) -> list[str]:
    """Offsets in the format of `plant_offsets`."""
    return [f"{o.group}/{o.at}" if isinstance(o, CommittedOffset) else repr(o) for o in found]


def data(found: Iterable[Node | ForbiddenNode | None]) -> list[bytes | None]:
    return [node.data if isinstance(node, Node) else None for node in found]


# Requests and answers


def test_two_thousand_nodes_are_read_in_few_requests(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    paths = plant(raw, [f"/t/{n}" for n in range(2_000)])
    before = proxy.requests_by_type
    assert data(bulk_read.nodes(proxied._context, paths)) == [b"7"] * 2_000
    spent = proxy.requests_by_type - before
    assert spent.keys() == {Op.MULTI_READ}
    assert spent[Op.MULTI_READ] <= 15


def test_a_few_nodes_are_read_without_probing_the_server(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    paths = plant(raw, [f"/t/{n}" for n in range(8)])
    connections, before = proxy.connections, proxy.requests_by_type
    assert data(bulk_read.nodes(proxied._context, paths)) == [b"7"] * 8
    assert proxy.requests_by_type - before == {Op.GET_DATA: 8}
    assert proxy.connections == connections


@pytest.mark.parametrize("count", [8, 200], ids=["one by one", "together"])
def test_nodes_come_in_order_with_none_for_missing_ones_and_forbidden_ones_marked(
    registry: Registry, raw: Any, count: int
) -> None:
    """Nodes are read and listed, with duplicates, in any order, and with forbidden ones among them."""
    paths = plant(raw, [f"/t{n % 3}/{n}" for n in range(count)])
    plant(raw, [f"{path}/{name}" for path in paths for name in "ab"])
    each(raw.set_async(path, path.encode()) for path in paths)
    denied, gone = paths[1], paths[4]
    raw.set_acls(denied, [make_digest_acl("alice", "secret", all=True)])
    raw.delete(gone, recursive=True)
    asked = [*reversed(paths), paths[3], "/t9/never", "/t0"]
    found = list(bulk_read.nodes(registry._context, asked))
    below = list(bulk_read.children(registry._context, asked))
    assert len(found) == len(below) == len(asked)
    for path, node, names in zip(asked, found, below, strict=True):
        if path == denied:
            assert node == names == ForbiddenNode(denied)
        elif path in (gone, "/t9/never"):
            assert (node, names) == (None, None)
        elif path != "/t0":
            assert isinstance(node, Node)
            assert (node.path, node.data) == (path, path.encode())
            assert isinstance(names, list)
            assert sorted(names) == ["a", "b"]


def test_a_node_has_the_data_and_stat_that_kazoo_returns(registry: Registry, raw: Any) -> None:
    paths = plant(raw, [f"/t/{n}" for n in range(20)], data=b"")
    raw.set("/t/7", b"x" * 300)
    raw.create("/t/ephemeral", b"e", ephemeral=True)
    asked = [*paths, "/t/ephemeral", "/t"]
    expected = [Node.of(path, *raw.get(path)) for path in asked]
    assert list(bulk_read.nodes(registry._context, asked)) == expected
    assert [node for path in asked for node in bulk_read.nodes(registry._context, [path])] == expected


def test_reading_no_nodes_returns_nothing(proxied: Registry, proxy: TcpProxy) -> None:
    before = proxy.requests
    assert list(bulk_read.nodes(proxied._context, [])) == []
    none = [Siblings(n, "/t", ()) for n in range(100)]
    [block] = bulk_read.read(proxied._context, Kind.NODE, none[:1])
    assert (block.parts, list(block.records())) == (none[:1], [])
    assert [siblings for siblings, _, _ in bulk_read.children_of(proxied._context, none)] == none
    assert proxy.requests == before


# Names


@pytest.mark.parametrize("chroot", [True, False], ids=["chroot", "no chroot"])
def test_names_of_every_kind_are_returned_unchanged(zookeeper: Any, raw: Any, connect: Connect, chroot: bool) -> None:
    top = "" if chroot else raw.chroot
    registry = connect() if chroot else connect(zookeeper.address)
    paths = plant(raw, [f"/{above}/{name}" for above in ODD for name in ODD])
    each(raw.set_async(path, path.encode()) for path in paths)
    asked = [top + path for path in paths]
    found = list(bulk_read.nodes(registry._context, asked))
    assert [node.path for node in found if isinstance(node, Node)] == asked
    assert data(found) == [path.encode() for path in paths]
    for names in bulk_read.children(registry._context, [f"{top}/{above}" for above in ODD]):
        assert isinstance(names, list)
        assert sorted(names) == sorted(ODD)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sets(NAMES, max_size=30))
def test_a_node_with_any_name_is_found_by_that_name(registry: Registry, raw: Any, names: set[str]) -> None:
    raw.delete("/n", recursive=True)
    raw.create("/n")
    paths = plant(raw, (f"/n/{name}" for name in sorted(names)))
    assert [node.path for node in bulk_read.nodes(registry._context, paths) if isinstance(node, Node)] == paths
    [below] = bulk_read.children(registry._context, ["/n"])
    assert isinstance(below, list)
    assert set(below) == names


def test_long_names_are_spread_over_requests_that_the_server_accepts(
    proxied: Registry, proxy: TcpProxy, raw: Any, states: list[str]
) -> None:
    """One request for all would have 3 MB, on which the server drops the connection."""
    names = [f"{n}".ljust(10_000, "x") for n in range(300)]
    plant(raw, [f"/long/{name}" for name in names])
    blocks = list(bulk_read.read(proxied._context, Kind.NODE, [Siblings("key", "/long", names)]))
    assert [name for block in blocks for siblings in block.parts for name in siblings.names] == names
    assert all(siblings.key == "key" for block in blocks for siblings in block.parts)
    assert all(not isinstance(record, int) for block in blocks for record in block.records())
    assert 200_000 < max(block.length for block in blocks) <= MAX_READ_REQUEST_BYTES
    assert states == []


def test_a_single_path_of_almost_a_megabyte_is_read_among_others(
    proxied: Registry, proxy: TcpProxy, raw: Any, states: list[str]
) -> None:
    longest = "/t/" + "x" * (MAX_READ_REQUEST_BYTES * 4 - 200)  # the longest path that a server creates
    paths = plant(raw, [*(f"/t/{n}" for n in range(20)), longest, *(f"/t/{n}" for n in range(20, 40))])
    assert [node.path for node in bulk_read.nodes(proxied._context, paths) if isinstance(node, Node)] == paths
    assert states == []


def test_requests_become_smaller_after_huge_values_and_larger_again_after_small_ones(
    proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    huge = plant(raw, [f"/huge/{n}" for n in range(100)])
    each(raw.set_async(path, path.encode() * 4_000) for path in huge)
    small = plant(raw, [f"/small/{n}" for n in range(3_000)])
    before = proxy.requests_by_type
    found = data(bulk_read.nodes(proxied._context, [*huge, *small]))
    assert found == [*(path.encode() * 4_000 for path in huge), *[b"7"] * 3_000]
    spent = proxy.requests_by_type - before
    assert spent[Op.MULTI_READ] < 20
    assert 0 < spent[Op.GET_DATA] < 100 + 50


# Lost connections


@pytest.fixture
def many(raw: Any) -> list[str]:
    return plant_offsets(raw, 12, 3, 10)


@pytest.mark.parametrize(
    "arm",
    [
        pytest.param(lambda proxy, n: proxy.cut_before_reply(n), id="answer lost"),
        pytest.param(lambda proxy, n: proxy.cut_before_request(n), id="request lost"),
        pytest.param(lambda proxy, n: proxy.cut_after_reply(n), id="connection lost in between"),
    ],
)
def test_a_connection_lost_at_any_point_does_not_change_the_result(
    arm: Callable[[TcpProxy, int], Any], proxied: Registry, proxy: TcpProxy, many: list[str]
) -> None:
    """After each cut a second connection probes the server, through the proxy, too."""
    assert shown(proxied.offsets()) == many
    before = proxy.requests
    assert shown(proxied.offsets()) == many
    requests = proxy.requests - before
    assert requests > 6
    for n in range(1, requests + 1):
        fault = arm(proxy, n)
        assert shown(proxied.offsets()) == many, f"cut at request {n}"
        assert fault.fired, f"request {n} of {requests} was never made"


def test_a_walk_continues_after_the_session_has_expired(
    proxied: Registry, zookeeper: Any, raw: Any, proxy: TcpProxy
) -> None:
    expected = plant_offsets(raw, 12, 5, 100)
    reading = proxied.offsets()
    found = [next(reading) for _ in range(100)]
    expire(proxied, zookeeper.address)
    assert shown([*found, *reading]) == expected


def test_a_walk_continues_after_a_restart_of_the_server() -> None:
    with ZooKeeperServer() as server, Registry.connect(server.address) as registry:
        with client_of(server.address) as client:
            expected = plant_offsets(client, 12, 5, 100)
        reading = registry.offsets()
        found = [next(reading) for _ in range(100)]
        server.kill()
        server.start()
        assert shown([*found, *reading]) == expected


def test_a_lasting_outage_is_reported_in_time(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, raw: Any
) -> None:
    plant_offsets(raw, 100, 2, 30)
    registry = connect(f"{proxy.address}{raw.chroot}", timeout=3.0)
    reading, describing = registry.offsets(), registry.describe()
    for some in (reading, describing):
        next(some)
    proxy.refuse()
    proxy.cut()
    for some in (reading, describing):
        with in_time(5.9), pytest.raises(NotConnectedError):
            list(some)


def test_no_call_blocks_longer_than_its_timeout_however_many_requests_are_in_flight(
    proxy: TcpProxy, connect: Connect, raw: Any
) -> None:
    """Without corrections, kazoo blocks a caller with many requests until the next connection, even after Ctrl-C."""
    plant_offsets(raw, 12, 5, 200)
    registry = connect(f"{proxy.address}{raw.chroot}", timeout=3.0)
    reading = registry.offsets()
    for _ in range(3_000):
        next(reading)
    proxy.delay(0.2)  # answers are in flight when the connection is lost
    for _ in range(2_000):
        next(reading)
    proxy.refuse()
    proxy.cut()
    trouble: list[object] = []
    thread = threading.Thread(target=run_together, args=([lambda: list(reading)], trouble), daemon=True)
    thread.start()
    thread.join(20.0)
    try:
        assert not thread.is_alive()
        assert [type(error) for error in trouble] == [NotConnectedError]
    finally:
        proxy.heal()


def test_closing_the_registry_ends_reads_at_once(connect: Connect, raw: Any) -> None:
    plant_offsets(raw, 12, 5, 100)
    registry = connect()
    reading = registry.offsets()
    next(reading)
    registry.close()
    with in_time(AT_ONCE), pytest.raises(NotConnectedError, match="closed"):
        list(reading)


def test_an_abandoned_walk_leaves_nothing_behind(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    expected = plant_offsets(raw, 12, 5, 100)
    for _ in range(3):
        next(proxied.offsets())
    assert shown(proxied.offsets()) == expected
    assert not proxied.client._pending


# Servers without MultiRead


def test_a_withheld_request_reaches_no_server_and_is_marked(
    proxied: Registry, proxy: TcpProxy, states: list[str]
) -> None:
    client = proxied.client
    request = MultiRead(operations(Kind.NODE, b"", ["zookeeper"]), lambda: False)
    answer = client.handler.async_result()
    before = proxy.requests_by_type
    client._call(request, answer)
    answer.get(timeout=30)
    assert request.withheld
    assert proxy.requests_by_type - before == {Op.EXISTS: 1}
    assert states == []


@pytest.mark.parametrize("visible", [True, False])
def test_a_withheld_request_is_repeated_one_by_one_even_if_the_root_is_forbidden(visible: bool) -> None:
    """Since ZooKeeper 3.9, `exists` requires read permission."""
    with ZooKeeperServer() as server, Registry.connect(server.address) as registry:
        with client_of(server.address) as client:
            plant(client, ["/t"])
            if not visible:
                client.set_acls("/", [make_digest_acl("alice", "secret", all=True)])
        asked = bulk_read_requests.SentTogether(registry._context.session, operations(Kind.NODE, b"", ["t"]))
        with pytest.raises(UnimplementedError):
            asked.get(timeout=30)


def unlike_clocks(found: Iterable[object]) -> list[object]:
    """Leave out fields that differ between two servers."""
    return [(o.group, o.at, o.offset, o.version) if isinstance(o, CommittedOffset) else o for o in found]


def grow(client: Any) -> None:
    """A tree with all special kinds of nodes."""
    plant_offsets(client, 8, 2, 40)
    plant(client, [f"/consumers/odd/offsets/{topic}/{n}" for topic in ODD for n in (10, 9, 0)], b"12")
    plant(client, ["/consumers/g0001/offsets/t00/x", "/consumers/g0001/offsets/t00/077"])
    client.set("/consumers/g0002/offsets/t01/3", b"7.5")
    client.set("/consumers/g0002/offsets/t01/4", b"x" * 900_000)
    client.set("/consumers/g0002/offsets/t01/5", b"8")
    client.ensure_path("/consumers/g0003/offsets/empty")
    client.ensure_path("/consumers/without offsets/ids")
    for path in ("g0004/offsets", "g0005/offsets/t01", "g0006/offsets/t00/5"):
        client.set_acls(f"/consumers/{path}", [make_digest_acl("alice", "secret", all=True)])


@pytest.fixture
def old_proxy(old_zookeeper: ZooKeeperServer) -> Iterator[TcpProxy]:
    with TcpProxy(old_zookeeper.address) as proxy:
        yield proxy


@pytest.fixture
def old(old_proxy: TcpProxy, old_hosts: str, connect: Connect) -> Registry:
    return connect(f"{old_proxy.address}/{old_hosts.partition('/')[2]}")


def test_an_old_server_is_read_like_a_new_one_and_never_receives_multiread_on_the_main_connection(
    registry: Registry, raw: Any, old: Registry, old_proxy: TcpProxy, old_hosts: str
) -> None:
    grow(raw)
    with client_of(old_hosts) as client:
        grow(client)
    states: list[str] = []
    old.client.add_listener(states.append)
    with old.group("mine").instance("me") as me:
        me.register(["orders"])
        claim = me.claim(TopicPartition("orders", 0))
        found = unlike_clocks(old.offsets())
        assert found == unlike_clocks(registry.offsets())
        assert len(found) > 500
        described = [d for d in old.describe() if d.group != "mine"]
        assert [(d.group, d.state, d.topics) for d in described] == [
            (d.group, d.state, d.topics) for d in registry.describe()
        ]
        assert old_proxy.requests_by_type[Op.MULTI_READ] == 0
        assert old_proxy.connections == 2  # the second connection asked for the version
        assert claim.held
        claim.commit(5)
    assert states == []


def test_an_old_server_is_read_and_claimed_from_by_several_threads_of_one_client(
    old: Registry, old_proxy: TcpProxy, old_hosts: str
) -> None:
    with client_of(old_hosts) as client:
        expected = plant_offsets(client, 8, 2, 40)
    states: list[str] = []
    old.client.add_listener(states.append)
    me = old.group("mine").instance("me")
    me.register(["orders"])
    trouble: list[object] = []

    def read() -> None:
        found = [name for name in shown(old.offsets()) if not name.startswith("mine/")]
        if found != expected:
            trouble.append(found)

    def claim(number: int) -> None:
        at = TopicPartition("orders", number)
        for offset in range(20):
            with me.claim(at) as claim:
                claim.commit(offset)

    run_together([read] * 4 + [lambda n=n: claim(n) for n in range(4)], trouble)  # type: ignore[misc]
    assert trouble == []
    assert states == []
    assert old_proxy.requests_by_type[Op.MULTI_READ] == 0


def run_together(calls: Sequence[Callable[[], object]], trouble: list[object]) -> None:
    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            trouble.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


@pytest.mark.parametrize("same_address", [False, True], ids=["another of its hosts", "the same address"])
def test_a_client_that_reconnects_to_an_old_server_during_a_walk_continues(
    old_zookeeper: ZooKeeperServer, same_address: bool
) -> None:
    """After a rollback of an upgrade, or if one address leads to several servers."""
    with ZooKeeperServer() as new, fresh_chroot(old_zookeeper) as old_hosts:
        chroot = old_hosts.partition("/")[2]
        with client_of(f"{new.address}") as client:
            expected = plant_offsets_below(client, f"/{chroot}")
            last = client.last_zxid
        with client_of(old_zookeeper.address) as client:
            assert plant_offsets_below(client, f"/{chroot}") == expected
            while client.last_zxid <= last + 100:  # a server refuses a client that has seen later transactions
                client.set(f"/{chroot}", b"")
        with TcpProxy(new.address) as to_new, TcpProxy(old_zookeeper.address) as to_old:
            to_old.refuse()
            hosts = to_new.address if same_address else f"{to_new.address},{to_old.address}"
            with Registry.connect(f"{hosts}/{chroot}") as registry:
                states: list[str] = []
                registry.client.add_listener(states.append)
                reading = registry.offsets()
                found = [next(reading) for _ in range(100)]
                assert to_new.requests_by_type[Op.MULTI_READ] > 3
                if same_address:
                    to_new._target = to_old._target
                else:
                    to_old.accept()
                    to_new.refuse()
                registry.client.exists("/")  # answered after all reads ahead, so those are counted by now
                before = to_new.requests_by_type + to_old.requests_by_type
                to_new.cut()
                assert shown([*found, *reading]) == expected
                assert shown(registry.offsets()) == expected
                spent = to_new.requests_by_type + to_old.requests_by_type - before
                changes, refused = ["SUSPENDED", "LOST", "CONNECTED"], ["SUSPENDED", "CONNECTED"]
                # at a known address, an old server drops the connection on the request once, and never again
                assert spent[Op.MULTI_READ] <= (REQUESTS if same_address else 0)
                assert states == changes + (refused if same_address else [])


def plant_offsets_below(client: Any, chroot: str) -> list[str]:
    client.ensure_path(chroot)
    client.chroot = chroot
    names = plant_offsets(client, 12, 3, 80)
    client.chroot = ""
    return names


# The second connection


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.parametrize("listed", [False, True], ids=["by number", "by name"])
def test_the_server_is_probed_over_tls(tmp_path: Path, listed: bool) -> None:
    host = "localhost" if listed else "127.0.0.1"
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server_pem = certificate(authority, host, tmp_path / "server.pem")
    ours = certificate(authority, "me@example.org", tmp_path / "ours.pem")
    tls = Tls(ca=tmp_path / "ca.pem", certificate=ours)
    with ZooKeeperServer(tls=server_side.Tls(Path(server_pem), tmp_path / "ca.pem")) as server:
        with client_of(server.address) as client:
            expected = plant_offsets(client, 3, 2, 10)
        address = server.secure_address.replace("127.0.0.1", host)
        with Registry.connect(address, tls=tls) as registry:
            assert shown(registry.offsets()) == expected
            assert list(registry._context.session.reads_many.values()) == [True]


def test_a_server_that_requires_a_login_is_probed() -> None:
    login = Sasl("alice", "secret")
    with (
        ZooKeeperServer(sasl=server_side.Sasl({"alice": "secret"}, enforce=True)) as server,
        Registry.connect(server.address, auth=[login, Digest("bob", "b")]) as registry,
    ):
        offsets = {TopicPartition("orders", n): n for n in range(40)}
        registry.group("billing").offsets.set_many(offsets)
        assert [o.offset for o in registry.offsets() if isinstance(o, CommittedOffset)] == list(range(40))
        assert list(registry._context.session.reads_many.values()) == [True]


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "not answered"])
def test_without_a_second_connection_everything_is_read_after_a_single_wait(silent: bool) -> None:
    """A server may allow one connection per client, and a firewall may drop the second one silently."""
    with ZooKeeperServer(config={} if silent else {"maxClientCnxns": "1"}) as server, socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        with client_of(server.address) as client:
            expected = plant_offsets(client, 12, 2, 20)
        with TcpProxy(server.address) as proxy, Registry.connect(proxy.address, timeout=3.0) as registry:
            if silent:
                proxy._target = hole.getsockname()
            with in_time(10.0):
                assert shown(registry.offsets()) == expected
            assert proxy.requests_by_type[Op.MULTI_READ] == 0
            connections = proxy.connections
            assert shown(registry.offsets()) == expected
            assert proxy.connections == connections
