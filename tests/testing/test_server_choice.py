"""The server that a test gets, and its own chroot on it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import ExternalZooKeeper, ZooKeeperServer, fresh_chroot, zookeeper

from .conftest import Clients


def test_the_server_named_by_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKGROUPS_TEST_ZOOKEEPER", "zk1:2181,zk2:2181/tests")

    with zookeeper() as server:
        assert server == ExternalZooKeeper("zk1:2181,zk2:2181/tests")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a Docker engine that never answers."""
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        silent.listen()
        silent.setblocking(False)
        yield silent


def test_without_a_choice_the_jars_are_used_even_beside_a_docker_engine(
    monkeypatch: pytest.MonkeyPatch, engine: socket.socket
) -> None:
    monkeypatch.delenv("ZKGROUPS_TEST_ZOOKEEPER", raising=False)

    assert isinstance(zookeeper(), ZooKeeperServer)

    with pytest.raises(BlockingIOError):
        engine.accept()


def test_a_container_is_chosen_by_name_and_its_engine_must_answer_at_once(
    monkeypatch: pytest.MonkeyPatch, engine: socket.socket
) -> None:
    monkeypatch.setenv("ZKGROUPS_TEST_ZOOKEEPER", "docker")

    with pytest.raises(MissingDependencyError, match="no local Docker engine answers"), zookeeper():
        pass

    with engine.accept()[0] as asked:
        assert asked.recv(100).startswith(b"GET /_ping")


@pytest.mark.zookeeper
def test_each_chroot_is_new_and_exists(server: ZooKeeperServer, connect: Clients) -> None:
    with fresh_chroot(server) as one, fresh_chroot(server) as other:
        assert one != other
        connect(one).create("/node")
        assert connect(other).get_children("/") == []

    assert connect(one).exists("/node"), "our own server is thrown away as a whole"


@pytest.mark.zookeeper
def test_on_an_external_server_the_chroot_is_removed_afterwards(server: ZooKeeperServer, connect: Clients) -> None:
    direct = connect(server.address)
    direct.ensure_path("/external")
    with fresh_chroot(ExternalZooKeeper(f"{server.address}/external")) as hosts:
        client = connect(hosts)
        client.ensure_path("/a/b")
        assert len(direct.get_children("/external")) == 1

    assert direct.get_children("/external") == []
