"""A single server: it starts, fails, keeps its data, leaves nothing behind, has TLS and logins, and other releases."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tests.waiting import eventually, is_alive
from zkgroups.exceptions import InvalidOptionError, ServerStartError
from zkgroups.testing import Sasl, TcpProxy, Tls, ZooKeeperServer, expire_session, local_server, zookeeper_server

from .conftest import Clients

pytestmark = pytest.mark.zookeeper


def test_the_server_dies_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from zkgroups.testing import ZooKeeperServer;"
        "server = ZooKeeperServer(data_dir=Path(sys.argv[1])).start();"
        "print(server.pid, server.port, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, port = map(int, parent.stdout.readline().split())
        assert eventually(lambda: zookeeper_server.mode(local_server.HOST, port) == "standalone")

        parent.kill()

        assert eventually(lambda: not is_alive(pid))
        assert eventually(lambda: local_server.is_free(port))


def test_a_given_data_dir_is_kept_and_can_be_served_again(tmp_path: Path, connect: Clients) -> None:
    data_dir = tmp_path / "with a space"
    with ZooKeeperServer(data_dir=data_dir) as server:
        connect(server.address).create("/kept", b"1")
        port = server.port

    with ZooKeeperServer(data_dir=data_dir, port=port) as again:
        assert again.port == port
        assert connect(again.address).get("/kept")[0] == b"1"


def test_an_invalid_configuration_is_an_error_with_the_log() -> None:
    with pytest.raises(ServerStartError, match="ended with status 2") as caught:
        ZooKeeperServer(config={"clientPort": "abc"}).start()

    assert 'NumberFormatException: For input string: "abc"' in str(caught.value)


def test_a_given_port_in_use_is_an_error() -> None:
    with socket.create_server((local_server.HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartError, match=f"port {port} is taken"):
            ZooKeeperServer(port=port).start()


def test_another_port_is_chosen_if_the_first_is_taken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    intruders: list[socket.socket] = []
    is_free = local_server.is_free

    def take_it_after_the_last_look(number: int) -> bool:
        free = is_free(number)
        looked_at.append(number)
        if looked_at.count(number) == 2 and not intruders:  # once when reserved, once before the start
            intruders.append(socket.create_server((local_server.HOST, number)))
        return free

    monkeypatch.setattr(local_server, "is_free", take_it_after_the_last_look)
    with ZooKeeperServer() as server:
        assert eventually(lambda: server.mode() == "standalone")
        [taken] = intruders
        assert server.port != taken.getsockname()[1]

    taken.close()


# Other releases

TLS = Tls(Path("key.pem"), Path("ca.pem"))


@pytest.mark.parametrize("release", ["", "3.5", "4.0.0", "3.5.10-beta", "latest", "../3.5.10"])
def test_an_invalid_release_is_refused(release: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"it must be a release of ZooKeeper, such as 3\.5\.10"):
        ZooKeeperServer(release=release)


def test_the_environment_chooses_the_release_of_servers_without_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKGROUPS_TEST_RELEASE", "3.4.14")

    assert ZooKeeperServer().release == "3.4.14"
    assert ZooKeeperServer(release="3.5.10").release == "3.5.10"
    assert ZooKeeperServer(jars=[Path("zookeeper.jar")]).release is None
    with pytest.raises(InvalidOptionError, match=r"releases before 3\.5 have no TLS"):
        ZooKeeperServer(tls=TLS)
    monkeypatch.setenv("ZKGROUPS_TEST_RELEASE", "")
    assert ZooKeeperServer().release is None


def test_options_that_a_release_lacks_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"releases before 3\.5 have no TLS"):
        ZooKeeperServer(release="3.4.14", tls=TLS)
    with pytest.raises(InvalidOptionError, match=r"releases before 3\.6 cannot require logins"):
        ZooKeeperServer(release="3.5.10", sasl=Sasl({"alice": "secret"}, enforce=True))
    with pytest.raises(InvalidOptionError, match="the jars are given, too"):
        ZooKeeperServer(release="3.5.10", jars=[Path("zookeeper.jar")])

    ZooKeeperServer(release="3.5.10", tls=TLS)


# TLS and logins


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
