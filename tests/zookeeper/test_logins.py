"""Digest and SASL logins, and TLS."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Sync

from tests.waiting import eventually
from zkgroups import (
    AclPolicy,
    CommittedOffset,
    Digest,
    Registry,
    Sasl,
    Tls,
)
from zkgroups.exceptions import (
    AuthenticationError,
    InvalidOptionError,
    NotConnectedError,
    UnavailableError,
    ZkgroupsException,
)
from zkgroups.testing import TcpProxy, ZooKeeperServer
from zkgroups.testing import zookeeper_server as server_side
from zkgroups.zookeeper.session.session import Session

from ..conftest import OLDEST
from ..releases import TLS, has, needs_required_logins
from .conftest import Connect
from .helpers import ALICE, P0, P1, SECRET, no_thread_stays, only_alice

pytestmark = pytest.mark.zookeeper


TIMEOUT = 4.0


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


def test_a_password_that_a_server_refuses_by_hanging_up_is_reported() -> None:
    """As ZooKeeper 3.4 does."""
    with (
        ZooKeeperServer(release=OLDEST, sasl=server_side.Sasl({"alice": SECRET})) as server,
        pytest.raises(AuthenticationError, match=f"{server.address} rejected the credentials"),
    ):
        Registry.connect(server.address, auth=[Sasl("alice", "wrong")], timeout=TIMEOUT)


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_sasl_password_is_reported_in_time(sasl: ZooKeeperServer, user: str) -> None:
    with no_thread_stays(), pytest.raises(AuthenticationError, match=sasl.address) as caught:
        Registry.connect(sasl.address, auth=[Sasl(user, "wrong of alice")], timeout=TIMEOUT)
    assert "rejected the credentials" in str(caught.value)
    assert "wrong of alice" not in str(caught.value)


@pytest.mark.parametrize("sasl", [True], indirect=True, ids=["enforcing"])
@pytest.mark.parametrize("auth", [[], [Digest("alice", SECRET)]], ids=["nothing", "digest"])
@needs_required_logins
def test_a_client_without_sasl_reports_in_time_that_the_server_requires_it(
    sasl: ZooKeeperServer, auth: list[Digest]
) -> None:
    with no_thread_stays(), pytest.raises(AuthenticationError, match="requires some") as caught:
        Registry.connect(sasl.address, auth=auth, timeout=TIMEOUT)
    assert sasl.address in str(caught.value)


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


@dataclass(frozen=True)
class Secure:
    """A TLS server that requires a client certificate, with valid and invalid files."""

    address: str
    plain: str
    files: Path

    @property
    def by_name(self) -> str:
        """The address of the server by a name that is not in its certificate."""
        return self.address.replace("127.0.0.1", "localhost")

    def tls(self, **changes: Any) -> Tls:
        files: dict[str, Any] = {"ca": "ca.pem", "certificate": "client.pem"} | changes
        paths = {
            k: self.files / v if k in ("ca", "certificate", "key") and v is not None else v for k, v in files.items()
        }
        return Tls(**paths)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    if not has(TLS):
        pytest.skip("this release has no TLS")
    files = tmp_path_factory.mktemp("tls")
    ours, theirs = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(files / "ca.pem"))
    theirs.cert_pem.write_to_path(str(files / "other-ca.pem"))
    _write(files / "server.pem", ours.issue_cert("127.0.0.1"))
    _write(files / "client.pem", ours.issue_cert("me@example.org"))
    _write(files / "stranger.pem", theirs.issue_cert("me@example.org"))
    split = ours.issue_cert("me@example.org")
    split.cert_chain_pems[0].write_to_path(str(files / "split.pem"))
    (files / "split.key").write_bytes(_key(split, BestAvailableEncryption(SECRET.encode())))
    (files / "junk").write_text("junk")
    with ZooKeeperServer(tls=server_side.Tls(files / "server.pem", files / "ca.pem")) as server:
        yield Secure(server.secure_address, server.address, files)


def _key(cert: trustme.LeafCert, encryption: KeySerializationEncryption) -> bytes:
    key = load_pem_private_key(cert.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def _write(path: Path, cert: trustme.LeafCert) -> None:
    """Key and certificate in one file, in a format that Java reads."""
    path.write_bytes(_key(cert, NoEncryption()) + b"".join(pem.bytes() for pem in cert.cert_chain_pems))


def test_tls_with_a_client_certificate_in_one_file_or_two(secure: Secure) -> None:
    one = secure.tls()
    two = secure.tls(certificate="split.pem", key="split.key", key_password=SECRET)
    for tls in (one, two):
        with Registry.connect(secure.address, tls=tls) as registry:
            registry.group("billing").offsets.set(P0, 5)
            assert registry.groups() == ["billing"]
    with Registry.connect(secure.by_name, tls=secure.tls(verify_hostname=False)) as registry:
        assert registry.groups() == ["billing"]


def test_an_answer_that_comes_with_another_in_one_record_is_read_at_once(secure: Secure) -> None:
    """A proxy may put several answers into one record. Then the socket has nothing more to read."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(secure.files / "server.pem")
    client = ssl.create_default_context(cafile=str(secure.files / "ca.pem"))
    here, there = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(server.wrap_socket, there, server_side=True)
        with client.wrap_socket(here, server_hostname="127.0.0.1") as received, accepted.result(30) as sent:
            received.setblocking(False)
            zookeeper = KazooClient("127.0.0.1:1")
            Session.of(zookeeper)
            zookeeper._connection._socket = received
            results = [zookeeper.handler.async_result() for _ in range(2)]
            zookeeper._pending.extend((Sync("/"), result, xid) for xid, result in enumerate(results, 1))
            body = struct.pack(">i", 1) + b"/"
            frames = [struct.pack(">iiqi", 16 + len(body), xid, 9, 0) + body for xid in (1, 2)]
            sent.sendall(b"".join(frames))
            assert zookeeper.handler.select([received], [], [], 30)[0]
            zookeeper._connection._read_socket(30)
            assert [result.ready() for result in results] == [True, True]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"certificate": None}, "certificate", id="no certificate"),
        pytest.param({"certificate": "stranger.pem"}, "certificate", id="a certificate of a stranger"),
        pytest.param({"ca": "other-ca.pem"}, "certificate verify failed", id="another authority"),
        pytest.param({"by_name": True}, "Hostname mismatch", id="another name"),
        pytest.param({"plain client": True}, "hung up; it may want TLS", id="a plain client"),
        pytest.param({"plain server": True}, "is this its TLS port", id="a plain server"),
    ],
)
def test_tls_errors_are_reported_in_time(secure: Secure, changes: dict[str, Any], reason: str) -> None:
    where = secure.by_name if changes.pop("by_name", False) else secure.address
    where = secure.plain if changes.pop("plain server", False) else where
    tls = None if changes.pop("plain client", False) else secure.tls(**changes)
    with no_thread_stays(), pytest.raises(NotConnectedError, match=reason) as caught:
        Registry.connect(where, tls=tls, timeout=TIMEOUT)
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"ca": "missing.pem"}, "tls ca"),
        ({"ca": "junk"}, "tls ca"),
        ({"ca": "."}, "tls ca"),
        ({"certificate": "missing.pem"}, "tls certificate"),
        ({"certificate": "junk"}, "tls certificate"),
        ({"certificate": "split.pem"}, "tls certificate"),
        ({"key": "missing.pem"}, "tls key"),
        ({"key": "junk"}, "tls certificate"),
        ({"key": "stranger.pem"}, "tls certificate"),
        ({"certificate": None, "key": "client.pem"}, "tls key"),
        ({"certificate": "split.pem", "key": "split.key"}, "tls certificate"),
        ({"certificate": "split.pem", "key": "split.key", "key_password": "wrong one"}, "tls certificate"),
    ],
)
def test_a_file_that_cannot_be_used_for_tls_is_refused_at_once_and_named(
    secure: Secure, changes: dict[str, Any], option: str
) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        Registry.connect(secure.address, tls=secure.tls(**changes), timeout=TIMEOUT)
    assert caught.value.option == option
    assert str(secure.files) in str(caught.value)
    assert "wrong one" not in str(caught.value)
