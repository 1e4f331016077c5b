"""TLS: client certificates, and files or servers that cannot be used."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
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

from zkgroups import (
    Registry,
    Tls,
    TopicPartition,
)
from zkgroups.exceptions import (
    InvalidOptionError,
    NotConnectedError,
)
from zkgroups.testing import ZooKeeperServer
from zkgroups.testing import zookeeper_configuration as server_side
from zkgroups.zookeeper.session.session import Session

from ..releases import needs_tls
from .access import SECRET
from .test_logins import TIMEOUT
from .waiting import AT_ONCE, in_time, no_thread_stays

pytestmark = [pytest.mark.zookeeper, needs_tls]


P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))


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
        pytest.param({"plain server": True}, "SSL", id="a plain server"),
    ],
)
def test_tls_errors_are_reported_in_time(secure: Secure, changes: dict[str, Any], reason: str) -> None:
    where = secure.by_name if changes.pop("by_name", False) else secure.address
    where = secure.plain if changes.pop("plain server", False) else where
    tls = None if changes.pop("plain client", False) else secure.tls(**changes)
    with no_thread_stays(), in_time(TIMEOUT + 6), pytest.raises(NotConnectedError, match=reason) as caught:
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
    with in_time(AT_ONCE), pytest.raises(InvalidOptionError) as caught:
        Registry.connect(secure.address, tls=secure.tls(**changes), timeout=TIMEOUT)
    assert caught.value.option == option
    assert str(secure.files) in str(caught.value)
    assert "wrong one" not in str(caught.value)
