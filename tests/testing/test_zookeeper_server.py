"""A single server: it starts, fails in each way, restarts with its data, and leaves nothing behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.protocol.serialization import Connect

from tests.waiting import eventually, is_alive
from zkgroups.exceptions import ServerStartError
from zkgroups.testing import ZooKeeperServer, local_server, zookeeper_server

from ..lasting import through_restarts
from .conftest import Clients

End = Callable[[ZooKeeperServer], None]

pytestmark = pytest.mark.zookeeper


@pytest.fixture(scope="module")
def breakable() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


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


@pytest.mark.parametrize("end", [ZooKeeperServer.stop, ZooKeeperServer.kill])
def test_a_server_started_again_has_its_port_data_and_sessions(
    breakable: ZooKeeperServer, connect: Clients, end: End
) -> None:
    client = connect(through_restarts(breakable.address))
    path = client.create("/ephemeral-", ephemeral=True, sequence=True)
    session, address, pid = client.client_id, breakable.address, breakable.pid

    end(breakable)
    assert not breakable.running
    assert not is_alive(pid)
    assert breakable.mode() is None
    breakable.start()

    assert breakable.address == address
    assert client.retry(client.exists, path)
    assert client.client_id == session


def test_a_suspended_server_answers_nothing_until_it_is_resumed(breakable: ZooKeeperServer, connect: Clients) -> None:
    client = connect(breakable.address)

    breakable.suspend()
    answer = client.exists_async("/")
    assert breakable.running
    assert breakable.mode() is None
    assert not answer.ready()
    breakable.resume()

    assert answer.get(timeout=30) is not None


def test_sessions_may_last_from_two_ticks_to_five_minutes(breakable: ZooKeeperServer) -> None:
    assert [granted_timeout(breakable, asked) for asked in (0.1, 3.0, 1000.0)] == [0.4, 3.0, 300.0]


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


def granted_timeout(server: ZooKeeperServer, asked: float) -> float:
    """The answer of the server to a connect request. kazoo only keeps the requested timeout."""
    request = Connect(0, 0, round(asked * 1000), 0, bytes(16), False).serialize()
    with socket.create_connection((local_server.HOST, server.port)) as connection:
        connection.sendall(len(request).to_bytes(4) + request)
        answer, _ = Connect.deserialize(connection.recv(4096), 4)
    return float(answer.time_out / 1000)
