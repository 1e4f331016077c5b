"""A server with TLS, and a server with logins."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from zkgroups.testing import Sasl, TcpProxy, Tls, ZooKeeperServer, expire_session

from .conftest import Clients

pytestmark = pytest.mark.zookeeper


def test_a_client_with_a_certificate_is_served_and_expired_over_tls(tmp_path: Path, connect: Clients) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server_pem = certificate(authority, "127.0.0.1", tmp_path / "server.pem")
    client_pem = certificate(authority, "client@example.org", tmp_path / "client.pem")
    options = {"use_ssl": True, "ca": str(tmp_path / "ca.pem"), "certfile": client_pem, "keyfile": client_pem}

    with ZooKeeperServer(tls=Tls(Path(server_pem), tmp_path / "ca.pem")) as server:
        client, other = (connect(server.secure_address, check_hostname=True, **options) for _ in range(2))
        path = client.create("/over-tls", ephemeral=True)
        expire_session(client)
        assert other.exists(path) is None

        assert connect(server.address).exists("/"), "the plain port is open, too"
        with TcpProxy(server.secure_address) as proxy:
            through = connect(proxy.address, **options)
            proxy.cut()
            assert through.retry(through.exists, "/")
            through.stop()


def test_a_login_works_with_any_password(connect: Clients) -> None:
    password = 'with "quotes" and \\backslash'
    login = {"mechanism": "DIGEST-MD5", "username": "alice", "password": password}
    with ZooKeeperServer(sasl=Sasl({"alice": password})) as server:
        assert connect(server.address, sasl_options=login).exists("/")


def certificate(authority: trustme.CA, identity: str, path: Path) -> str:
    """A PEM file with the certificate and the key, in a form that Java reads."""
    issued = authority.issue_cert(identity)
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for certificate in issued.cert_chain_pems:
        certificate.write_to_path(str(path), append=True)
    return str(path)
