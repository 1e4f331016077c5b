"""Digest and SASL logins."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups import (
    AclPolicy,
    CommittedOffset,
    Digest,
    Registry,
    Sasl,
    Tls,
    TopicPartition,
)
from zkgroups.exceptions import (
    AuthenticationError,
    InvalidOptionError,
    NoPermissionError,
    UnavailableError,
    ZkgroupsException,
)
from zkgroups.testing import TcpProxy, ZooKeeperServer
from zkgroups.testing import zookeeper_configuration as server_side

from ..conftest import OLDEST
from ..releases import needs_required_logins
from .access import ALICE, SECRET, only_alice
from .conftest import Connect
from .waiting import in_time, no_thread_stays

pytestmark = pytest.mark.zookeeper


P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
GROUP = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{GROUP}/ids", f"{GROUP}/owners", f"{GROUP}/offsets"
TIMEOUT = 6.0


# Digest


@pytest.mark.parametrize("user", ["", "a:b"])
def test_a_digest_user_with_an_ambiguous_name_is_refused(user: str) -> None:
    with pytest.raises(InvalidOptionError, match="user"):
        Digest(user, SECRET)


def test_a_wrong_digest_password_connects_and_then_has_no_permission(connect: Connect, alice: Any) -> None:
    """ZooKeeper never reports a wrong digest. It counts as another identity."""
    alice.create(f"{OFFSETS}/orders/0", b"5", makepath=True, acl=only_alice())
    with pytest.raises(NoPermissionError):
        connect(auth=[Digest("alice", "wrong")]).group("billing").offsets.fetch(P0)
    found = connect(auth=[Digest("bob", "b"), Digest("alice", SECRET)]).group("billing").offsets.fetch(P0)
    assert found is not None
    assert found.offset == 5


def test_failure_16_after_a_reconnect_nothing_is_sent_before_the_digest(
    proxy: TcpProxy, zookeeper_hosts: str, connect: Connect, alice: Any
) -> None:
    """Two threads write while the connection is cut. The first request on each connection is authenticated."""
    alice.ensure_path("/consumers")
    alice.set_acls("/consumers", only_alice())
    policy = AclPolicy(*[[ALICE]] * 3)
    hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
    registry = connect(hosts, acl=policy, auth=[Digest("alice", SECRET)])
    group = registry.group("billing")
    me = group.instance("me")
    me.register(["orders"])
    claim = me.claim(P0)
    stop, trouble, counts = threading.Event(), [], [0, 0]

    def work(number: int, write: Callable[[int], object]) -> None:
        while not stop.is_set():
            try:
                write(counts[number])
                counts[number] += 1
            except UnavailableError:
                pass
            except ZkgroupsException as error:
                trouble.append(error)
                return

    threads = [
        threading.Thread(target=work, args=(0, claim.commit)),
        threading.Thread(target=work, args=(1, lambda n: (group.offsets.set(P1, n), group.offsets.fetch(P1)))),
    ]
    for thread in threads:
        thread.start()
    for _ in range(20):
        before = proxy.connections
        proxy.cut()
        assert eventually(lambda before=before: proxy.connections > before or trouble)
        seen = list(counts)
        assert eventually(lambda seen=seen: all(now > then for now, then in zip(counts, seen, strict=True)) or trouble)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert trouble == []
    assert claim.held


# SASL


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="lax"), pytest.param(True, id="enforcing", marks=needs_required_logins)],
)
def sasl(request: pytest.FixtureRequest) -> Iterator[ZooKeeperServer]:
    users = {"alice": SECRET}
    with ZooKeeperServer(sasl=server_side.Sasl(users, enforce=request.param)) as server:
        yield server


def test_with_the_right_sasl_password_commits_continue_after_a_restart_of_the_server(sasl: ZooKeeperServer) -> None:
    with Registry.connect(sasl.address, auth=[Sasl("alice", SECRET)]) as registry:
        group = registry.group("restarts")
        me = group.instance("me")
        me.register(["orders"])
        claim = me.claim(P0)
        claim.commit(1)
        session = registry.session_id
        sasl.restart()
        claim.commit(2)
        group.offsets.set(P1, 3)
        assert registry.session_id == session
        assert [found.offset for found in group.offsets if isinstance(found, CommittedOffset)] == [2, 3]
        me.deregister()


def test_a_connection_lost_during_the_sasl_login_is_restored(sasl: ZooKeeperServer) -> None:
    with TcpProxy(sasl.address) as proxy, Registry.connect(proxy.address, auth=[Sasl("alice", SECRET)]) as registry:
        for reply in (1, 2):
            before = proxy.connections
            fault = proxy.cut_before_reply(reply)
            proxy.cut()
            registry.group("lost").create()
            assert fault.fired
            assert proxy.connections == before + 2


def test_a_password_that_a_server_refuses_by_hanging_up_is_reported() -> None:
    """As ZooKeeper 3.4 does."""
    with (
        ZooKeeperServer(release=OLDEST, sasl=server_side.Sasl({"alice": SECRET})) as server,
        pytest.raises(AuthenticationError, match=f"{server.address} rejected the credentials"),
    ):
        Registry.connect(server.address, auth=[Sasl("alice", "wrong")], timeout=TIMEOUT)


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_sasl_password_is_reported_in_time(sasl: ZooKeeperServer, user: str) -> None:
    with no_thread_stays(), in_time(TIMEOUT + 6), pytest.raises(AuthenticationError, match=sasl.address) as caught:
        Registry.connect(sasl.address, auth=[Sasl(user, "wrong of alice")], timeout=TIMEOUT)
    assert "rejected the credentials" in str(caught.value)
    assert "wrong of alice" not in str(caught.value)


@pytest.mark.parametrize("sasl", [True], indirect=True, ids=["enforcing"])
@pytest.mark.parametrize("auth", [[], [Digest("alice", SECRET)]], ids=["nothing", "digest"])
@needs_required_logins
def test_a_client_without_sasl_reports_in_time_that_the_server_requires_it(
    sasl: ZooKeeperServer, auth: list[Digest]
) -> None:
    with no_thread_stays(), in_time(TIMEOUT + 6), pytest.raises(AuthenticationError, match="requires some") as caught:
        Registry.connect(sasl.address, auth=auth, timeout=TIMEOUT)
    assert sasl.address in str(caught.value)


def test_a_server_without_sasl_is_reported_in_time(zookeeper: Any) -> None:
    with no_thread_stays(), in_time(TIMEOUT + 6), pytest.raises(AuthenticationError):
        Registry.connect(zookeeper.address, auth=[Sasl("alice", SECRET)], timeout=TIMEOUT)


def test_a_connection_has_one_sasl_identity() -> None:
    with pytest.raises(InvalidOptionError, match="one SASL identity") as caught:
        Registry.connect("127.0.0.1:1", auth=[Sasl("a", SECRET), Sasl("b", SECRET)])
    assert SECRET not in str(caught.value)


# Passwords


def test_no_password_is_shown_by_options_registries_or_the_log(
    sasl: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    auth = [Digest("alice", SECRET), Sasl("alice", SECRET)]
    with caplog.at_level(1), Registry.connect(sasl.address, auth=auth, acl=AclPolicy([ALICE])) as registry:
        registry.group("billing").create()
        shown = [repr(auth), repr(Tls(key_password=SECRET)), repr(registry), repr(registry.credentials())]
        password = registry.credentials().password
    assert any(record.name == "kazoo.client" and record.levelno == logging.DEBUG for record in caplog.records)
    log = "\n".join(record.getMessage() for record in caplog.records)
    assert SECRET not in "\n".join([*shown, log])
    assert repr(password) not in shown[-1]
    assert password.hex() not in shown[-1]
