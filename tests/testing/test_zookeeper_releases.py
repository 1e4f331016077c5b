"""Servers of old releases: they start, serve, lack newer features, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionLoss, UnimplementedError

from tests import conftest
from tests.waiting import eventually
from zkgroups.exceptions import InvalidOptionError
from zkgroups.testing import Sasl, Tls, ZooKeeperServer, local_server, zookeeper_server

from .conftest import Clients

pytestmark = pytest.mark.zookeeper

TLS = Tls(Path("key.pem"), Path("ca.pem"))


class MultiRead:
    """A MultiRead request, which came with 3.6, for no paths."""

    type = 22

    def serialize(self) -> bytes:
        return b"\xff\xff\xff\xff\x01\xff\xff\xff\xff"

    def deserialize(self, answer: bytes, offset: int) -> bytes:
        return answer[offset:]


def test_an_old_server_reports_its_release(old_zookeeper: ZooKeeperServer) -> None:
    assert old_zookeeper.release in conftest.OLD_RELEASES
    assert f"Zookeeper version: {old_zookeeper.release}-" in zookeeper_server.ask(local_server.HOST, old_zookeeper.port)
    assert eventually(lambda: old_zookeeper.mode() == "standalone")


def test_an_old_server_answers_multiread_by_closing_the_connection_but_keeps_the_session(
    old_hosts: str, connect: Clients
) -> None:
    client = connect(old_hosts)
    client.create("/mine", ephemeral=True)
    session = client.client_id
    answer = client.handler.async_result()

    client._call(MultiRead(), answer)

    # The connection may be closed before the answer is read.
    with pytest.raises((UnimplementedError, ConnectionLoss)):
        answer.get(timeout=30)
    assert client.retry(client.exists, "/mine").ephemeralOwner == session[0]
    assert client.client_id == session


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
