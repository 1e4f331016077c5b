"""Bulk reads from servers without MultiRead, and the probe that detects them."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trustme
from kazoo.exceptions import UnimplementedError
from kazoo.security import make_digest_acl

from tests.lasting import lasting_client
from tests.testing.waiting import eventually
from zkgroups import CommittedOffset, Digest, Registry, Sasl, Tls, TopicPartition
from zkgroups.testing import Op, TcpProxy, ZooKeeperServer, fresh_chroot
from zkgroups.testing import zookeeper_configuration as server_side
from zkgroups.zookeeper.requests import bulk_read_requests, multiread_support
from zkgroups.zookeeper.requests.bulk_read_pace import REQUESTS
from zkgroups.zookeeper.requests.multiread_format import Kind, operations

from ..releases import needs_multiread
from ..testing.test_zookeeper_server_security import certificate
from .bulk_reads import ODD, plant, plant_offsets, run_together, shown
from .conftest import Connect
from .waiting import in_time

pytestmark = pytest.mark.zookeeper


@pytest.mark.parametrize("visible", [True, False])
@needs_multiread
def test_a_withheld_request_is_repeated_one_by_one_even_if_the_root_is_forbidden(visible: bool) -> None:
    """Since ZooKeeper 3.9, `exists` requires read permission."""
    with ZooKeeperServer() as server, Registry.connect(server.address) as registry:
        with lasting_client(server.address) as client:
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
def old(old_proxy: TcpProxy, old_hosts: str, connect: Connect) -> Registry:
    return connect(f"{old_proxy.address}/{old_hosts.partition('/')[2]}")


def test_an_old_server_is_read_like_a_new_one_and_never_receives_multiread_on_the_main_connection(
    registry: Registry, raw: Any, old: Registry, old_proxy: TcpProxy, old_hosts: str
) -> None:
    grow(raw)
    with lasting_client(old_hosts) as client:
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
    with lasting_client(old_hosts) as client:
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


@pytest.mark.parametrize("same_address", [False, True], ids=["another of its hosts", "the same address"])
@needs_multiread
def test_a_client_that_reconnects_to_an_old_server_during_a_walk_continues(
    old_zookeeper: ZooKeeperServer, same_address: bool
) -> None:
    """After a rollback of an upgrade, or if one address leads to several servers."""
    with ZooKeeperServer() as new, fresh_chroot(old_zookeeper) as old_hosts:
        chroot = old_hosts.partition("/")[2]
        with lasting_client(f"{new.address}") as client:
            expected = plant_offsets_below(client, f"/{chroot}")
            last = client.last_zxid
        with lasting_client(old_zookeeper.address) as client:
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
                assert eventually(lambda: to_new.requests_by_type[Op.MULTI_READ] > 3)
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


@pytest.mark.parametrize("listed", [False, True], ids=["by number", "by name"])
@needs_multiread
def test_the_server_is_probed_over_tls(tmp_path: Path, listed: bool) -> None:
    host = "localhost" if listed else "127.0.0.1"
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server_pem = certificate(authority, host, tmp_path / "server.pem")
    ours = certificate(authority, "me@example.org", tmp_path / "ours.pem")
    tls = Tls(ca=tmp_path / "ca.pem", certificate=ours)
    with ZooKeeperServer(tls=server_side.Tls(Path(server_pem), tmp_path / "ca.pem")) as server:
        with lasting_client(server.address) as client:
            expected = plant_offsets(client, 3, 2, 10)
        address = server.secure_address.replace("127.0.0.1", host)
        with Registry.connect(address, tls=tls) as registry:
            assert shown(registry.offsets()) == expected
            assert list(registry._context.session.reads_many.values()) == [True]


@needs_multiread
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
def test_without_a_second_connection_everything_is_read_after_a_single_wait(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may allow one connection per client, and a firewall may drop the second one silently."""
    monkeypatch.setattr(multiread_support, "PROBE_TIMEOUT", 3.0)
    monkeypatch.setattr(multiread_support, "VERSION_TIMEOUT", 1.5)
    with ZooKeeperServer(config={} if silent else {"maxClientCnxns": "1"}) as server, socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        with lasting_client(server.address) as client:
            expected = plant_offsets(client, 12, 2, 20)
        with TcpProxy(server.address) as proxy, Registry.connect(proxy.address, timeout=30.0) as registry:
            if silent:
                proxy._target = hole.getsockname()
            with in_time(10.0):
                assert shown(registry.offsets()) == expected
            assert proxy.requests_by_type[Op.MULTI_READ] == 0
            connections = proxy.connections
            assert shown(registry.offsets()) == expected
            assert proxy.connections == connections
