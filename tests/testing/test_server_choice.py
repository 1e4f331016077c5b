"""The server that a test gets, and its own chroot on it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zkgroups.testing import ExternalZooKeeper, ZooKeeperServer, fresh_chroot, zookeeper
from zkgroups.testing.zookeeper_container import engine_with_image

from .conftest import Clients


def test_the_server_named_by_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKGROUPS_TEST_ZOOKEEPER", "zk1:2181,zk2:2181/tests")

    with zookeeper() as server:
        assert server == ExternalZooKeeper("zk1:2181,zk2:2181/tests")


@pytest.mark.parametrize("host", ["unix:///no/such/socket", "tcp://192.0.2.1:2375", "ssh://elsewhere"])
def test_without_a_local_engine_the_jars_are_chosen_at_once(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.delenv("ZKGROUPS_TEST_ZOOKEEPER", raising=False)
    monkeypatch.setenv("DOCKER_HOST", host)

    began = time.monotonic()
    server = zookeeper()

    assert time.monotonic() - began < 5
    assert isinstance(server, ZooKeeperServer)


def test_an_engine_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        silent.listen()

        began = time.monotonic()
        assert not engine_with_image()

    assert time.monotonic() - began < 5


def test_a_socket_without_an_engine_behind_it_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as closed:
        closed.bind(str(path))

    assert not engine_with_image()


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


def test_importing_the_package_imports_no_library() -> None:
    code = "import sys, zkgroups; before = set(sys.modules); import zkgroups.testing; print(*set(sys.modules) - before)"
    heavy = {"kazoo", "docker", "pyspark", "pytest", "asyncio", "subprocess", "zkgroups.testing.zookeeper_server"}

    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert not heavy & set(imported)


def test_every_public_name_can_be_imported() -> None:
    import zkgroups.testing

    for name in zkgroups.testing.__all__:
        assert getattr(zkgroups.testing, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = zkgroups.testing.nonsense  # type: ignore[attr-defined]
