"""Proofs of sessions: when they are sent, which answers count, and that their thread ends."""

from __future__ import annotations

import gc
import os
import socket
import struct
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from kazoo.exceptions import NoAuthError, SessionExpiredError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from tests.lasting import lasting_client
from tests.testing.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.deadline import Deadline, uptime
from zkgroups.exceptions import NotRegisteredError, SessionLostError
from zkgroups.testing import Op, TcpProxy, ZooKeeperServer
from zkgroups.zookeeper.session.proof_request import is_proof
from zkgroups.zookeeper.session.proof_sender import _LookLimit

from .conftest import LONG_SESSION, Connect

pytestmark = pytest.mark.zookeeper

P0 = TopicPartition("orders", 0)


def thread() -> bool:
    return any(thread.name == "zkgroups-proofs" for thread in threading.enumerate())


def proxied(proxy: TcpProxy, hosts: str) -> str:
    return f"{proxy.address}/{hosts.partition('/')[2]}"


def test_many_instances_share_the_proofs_of_their_session_and_none_is_sent_before_or_after(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect
) -> None:
    registry = connect(proxied(proxy, zookeeper_hosts), session_timeout=12.0)
    group = registry.group("billing")
    group.create()
    instances = [group.instance(f"i{number}") for number in range(20)]
    for instance in instances:
        instance.register(["orders"])
    before, began = proxy.requests_by_type[Op.MULTI], time.monotonic()
    assert eventually(lambda: proxy.requests_by_type[Op.MULTI] >= before + 5)
    sent, passed = proxy.requests_by_type[Op.MULTI] - before, time.monotonic() - began
    assert sent <= passed / 1.2 + 5, "at first some more, until the leader must have heard of the session"
    assert eventually(lambda: all(instance.registered for instance in instances))
    for instance in instances:
        instance.deregister()
    assert eventually(lambda: not thread())


def test_an_unused_session_is_not_proved(zookeeper_hosts: str, proxy: TcpProxy, connect: Connect) -> None:
    assert eventually(lambda: not thread())  # that of an earlier test may not have ended yet
    registry = connect(proxied(proxy, zookeeper_hosts), session_timeout=10.0)
    assert registry.groups() == []
    assert not thread()
    with registry.group("billing").instance("me") as me:
        me.register(["orders"])
        assert thread()
    assert eventually(lambda: not thread())


def test_commits_prove_the_session_without_further_requests(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect
) -> None:
    registry = connect(proxied(proxy, zookeeper_hosts), session_timeout=LONG_SESSION)
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    claim = me.claim(P0)
    claim.commit(0)
    session = registry._context.session
    before, until = proxy.requests_by_type[Op.MULTI], session.certain_until(claim.session_id)
    for offset in range(1, 6):
        claim.commit(offset)
    assert proxy.requests_by_type[Op.MULTI] == before + 5
    assert session.certain_until(claim.session_id) >= until


@pytest.mark.parametrize("leave", [True, False])
def test_closing_the_registry_ends_the_thread_despite_a_registration(connect: Connect, leave: bool) -> None:
    registry = connect()
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    claim = me.claim(P0)
    assert thread()
    registry.close(leave=leave)
    assert not claim.held
    assert eventually(lambda: not thread())


def test_a_garbage_collected_instance_needs_no_more_proofs(connect: Connect) -> None:
    registry = connect(session_timeout=10.0)
    registry.group("billing").instance("me").register(["orders"])
    gc.collect()
    assert eventually(lambda: not thread())
    assert registry.group("billing").instances()


def test_a_fork_holds_no_claims_and_its_parent_keeps_all(connect: Connect) -> None:
    registry = connect(session_timeout=10.0)
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    claim = me.claim(P0)
    child = os.fork()
    if not child:
        os._exit(int(claim.held or me.registered or thread()))
    assert os.waitpid(child, 0)[1] == 0
    assert claim.held
    began = claim._ownership.session.certain_until(claim.session_id)
    assert eventually(lambda: claim._ownership.session.certain_until(claim.session_id) > began)


def test_a_server_that_does_not_answer_proofs_is_left_for_another(
    zookeeper: Any, zookeeper_hosts: str, connect: Connect
) -> None:
    """The other address leads through a second proxy to the same server."""
    chroot = zookeeper_hosts.partition("/")[2]
    with TcpProxy(zookeeper.address) as first, TcpProxy(zookeeper.address) as second:
        registry = connect(f"{first.address},{second.address}/{chroot}", session_timeout=8.0)
        me = registry.group("billing").instance("me")
        me.register(["orders"])
        claim = me.claim(P0)
        session = registry.session_id
        peer = registry._context.session.server_address
        assert peer is not None
        silent, other = (first, second) if first.address.endswith(f":{peer[1]}") else (second, first)
        before = other.connections
        silent.drop(direction="replies")
        assert eventually(lambda: other.connections > before)
        assert eventually(lambda: registry._context.session.connected)
        assert eventually(lambda: claim.held)
        assert (registry.session_id, claim.verify()) == (session, True)


@pytest.mark.parametrize("addresses", [1, 2])
def test_servers_that_answer_later_than_a_proof_should_still_answer(
    zookeeper: Any, zookeeper_hosts: str, connect: Connect, addresses: int
) -> None:
    """If the connection were closed each time, no commit would ever be answered.

    A machine that stands still again and again ends a session of six seconds, but not each of them.
    """
    for _ in range(5):
        with suppress(SessionLostError, NotRegisteredError):
            if late_answers_are_awaited(zookeeper, zookeeper_hosts, connect, addresses):
                return
    pytest.fail("no session has survived")


def late_answers_are_awaited(zookeeper: Any, zookeeper_hosts: str, connect: Connect, addresses: int) -> bool:
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(zookeeper.address)) for _ in range(addresses)]
        hosts = ",".join(proxy.address for proxy in proxies)
        registry = connect(f"{hosts}/{zookeeper_hosts.partition('/')[2]}", session_timeout=6.0, timeout=60.0)
        me = registry.group(uuid4().hex).instance("me")
        me.register(["orders"])
        claim, session = me.claim(P0), registry.session_id
        claim.commit(0)
        connections = sum(proxy.connections for proxy in proxies)
        for proxy in proxies:
            proxy.delay(2.7, direction="replies")
        for offset in range(1, 4):
            claim.commit(offset)
        assert sum(proxy.connections for proxy in proxies) <= connections + 3
        for proxy in proxies:
            proxy.heal()
        return (registry.session_id, claim.verify()) == (session, True)


def test_a_proof_does_not_wait_for_the_answer_to_the_last_one(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect
) -> None:
    registry = connect(proxied(proxy, zookeeper_hosts), session_timeout=6.0)
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    proxy.delay(1.2, direction="replies")
    assert eventually(lambda: proxy.requests - proxy.replies >= 2)
    proxy.heal()


class SlowLink:
    """A link on which answers arrive slowly, and requests at once."""

    def __init__(self, target: str, bytes_per_second: int) -> None:
        host, _, port = target.rpartition(":")
        self._target, self._rate = (host, int(port)), bytes_per_second
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.connections += 1
                server = socket.create_connection(self._target)
                threading.Thread(target=self._pass_on, args=(client, server, 0), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, self._rate), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, rate: int) -> None:
        with suppress(OSError), source, sink:
            while data := source.recv(4096):
                sink.sendall(data)
                if rate:
                    time.sleep(len(data) / rate)
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report when data arrived")
def test_a_server_whose_answers_arrive_slowly_is_not_left_for_another(
    zookeeper: Any, zookeeper_hosts: str, connect: Connect, raw: Any
) -> None:
    """The answer takes longer than a proof may take, and less than kazoo waits for it."""
    raw.create("/large", bytes(720_000))
    with closing(SlowLink(zookeeper.address, 80_000)) as one, closing(SlowLink(zookeeper.address, 80_000)) as other:
        hosts = f"{one.address},{other.address}/{zookeeper_hosts.partition('/')[2]}"
        registry = connect(hosts, session_timeout=20.0)
        me = registry.group("billing").instance("me")
        me.register(["orders"])
        found = registry._context.session.get("/large", deadline=Deadline(60))
        assert found is not None
        assert (len(found.data), one.connections + other.connections) == (720_000, 1)


def test_registering_after_a_pause_may_wait_longer_than_the_timeout_and_sends_few_proofs(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect
) -> None:
    """The leader may know only of requests before the pause. After a quarter of 24 s, it must know of later ones."""
    registry = connect(proxied(proxy, zookeeper_hosts), session_timeout=24.0)
    registry.group("billing").create()
    registry._context = registry._context._replace(timeout=4.5)
    me = registry.group("billing").instance("me")
    observed = registry._context.session._observed
    observed.resume(me._ownership.session.require_id(Deadline(30)), 24.0)
    observed.forget()
    observed._lifetime.connected(uptime() - 23.0)  # as if no request had been sent since then
    before = proxy.requests_by_type[Op.MULTI]
    me.register(["orders"])
    assert me.registered
    assert proxy.requests_by_type[Op.MULTI] - before < 50


def test_a_session_without_permission_on_the_root_is_proved_by_the_refusal() -> None:
    with ZooKeeperServer() as server, lasting_client(server.address) as client:
        client.add_auth("digest", "alice:sesame")
        client.create("/consumers", acl=OPEN_ACL_UNSAFE)
        client.set_acls("/", [make_digest_acl("alice", "sesame", all=True)])
        with Registry.connect(server.address, session_timeout=10.0) as registry:
            me = registry.group("billing").instance("me")
            me.register(["orders"])
            claim = me.claim(P0)
            until = claim._ownership.session.certain_until(claim.session_id)
            assert eventually(lambda: claim._ownership.session.certain_until(claim.session_id) > until)


def answer(*errors: int) -> bytes:
    """The answer of a server to a failed transaction."""
    results = b"".join(struct.pack("!i?i", -1, False, error) + struct.pack("!i", error) for error in errors)
    return results + struct.pack("!i?i", -1, True, -1)


def test_an_answer_without_a_session_is_not_a_proof() -> None:
    """The header of such an answer contains no error, like that of any failed transaction."""
    assert is_proof(answer(NoAuthError.code), 0)
    assert is_proof(answer(0, NoAuthError.code, -2), 0)
    assert not is_proof(answer(SessionExpiredError.code), 0)
    assert not is_proof(answer(0, SessionExpiredError.code, -2), 0)
    assert not is_proof(answer(), 0)
    assert not is_proof(b"", 0)


@pytest.mark.parametrize(("hosts", "first"), [(["a", "b"], 5), (["a", "a"], 8)])
def test_the_limit_of_looks_doubles_with_each_closed_connection_and_shrinks_with_each_quick_answer(
    hosts: list[str], first: int
) -> None:
    limit = _LookLimit(SimpleNamespace(hosts=hosts))
    assert limit.current == first
    limit.double()
    assert limit.current == 2 * first
    limit.shrink(looks=5)  # that was not quick
    assert limit.current == 2 * first
    limit.shrink(looks=4)
    assert limit.current == 2 * first - 1
    for _ in range(10):
        limit.shrink(looks=0)
    assert limit.current == first
    for _ in range(4):
        limit.double()
    assert limit.current == 20
