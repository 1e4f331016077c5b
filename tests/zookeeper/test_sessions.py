"""Failures 1, 5 and 19 on real servers: expiry under load, processes that were killed, and restored servers."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import threading
import time
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError, SessionExpiredError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from tests.lasting import lasting_client
from tests.waiting import eventually
from zkgroups import Registry
from zkgroups.deadline import Deadline
from zkgroups.testing import TcpProxy, ZooKeeperServer
from zkgroups.zookeeper.session.lifetime import _LookLimit, is_proof

from .conftest import Connect
from .helpers import P0

pytestmark = pytest.mark.zookeeper


def test_a_client_connects_again_after_names_could_not_be_resolved_for_lack_of_descriptors(
    zookeeper: Any, proxy: TcpProxy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = connect(proxy.address.replace("127.0.0.1", "localhost"))
    session_id, refused = registry.session_id, threading.Event()

    def exhausted(*_: object) -> Any:
        refused.set()
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", exhausted)
        proxy.refuse()
        proxy.cut()
        assert refused.wait(30)
    proxy.accept()
    assert eventually(lambda: registry._context.session.connected)
    assert registry.session_id == session_id


def thread() -> bool:
    return any(thread.name == "zkgroups-proofs" for thread in threading.enumerate())


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
