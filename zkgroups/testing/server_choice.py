"""The ZooKeeper server that tests use, and an empty chroot for each test."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, Self

from ..exceptions import ServerStartError
from .zookeeper_server import ZooKeeperServer

if TYPE_CHECKING:
    from kazoo.client import KazooClient


# Missing requirements of a test: skip it, or fail it if `ZKGROUPS_REQUIRE` names the requirement.
#
# CI sets `ZKGROUPS_REQUIRE=zookeeper,spark`, so that a missing server never makes a green run.


REQUIRE_VARIABLE = "ZKGROUPS_REQUIRE"


def is_required(name: str) -> bool:
    """Return True if `ZKGROUPS_REQUIRE` names this requirement."""
    return name in (part.strip() for part in os.environ.get(REQUIRE_VARIABLE, "").split(","))


def missing(name: str, reason: str) -> NoReturn:
    """Skip the current test because `name` (zookeeper, spark, kafka, docker, go, node) is missing, or fail it."""
    import pytest

    if is_required(name):
        pytest.fail(f"{name} is required by {REQUIRE_VARIABLE} and missing: {reason}", pytrace=False)
    pytest.skip(f"{name}: {reason}")


ZOOKEEPER_VARIABLE = "ZKGROUPS_TEST_ZOOKEEPER"
CONTAINER = "docker"
_DELETION: Final = 30.0
"""How many seconds the deletion of a chroot may take."""
_LONGEST_CONNECT: Final = 30.0
"""How many seconds a connection may take. A server forgets one that came in the first milliseconds after its start."""


class Server(Protocol):
    """A server that tests use. Servers that zkgroups starts also have the methods of `ZooKeeperServer`."""

    @property
    def address(self) -> str:
        """The hosts string."""


@dataclass(frozen=True, slots=True)
class ExternalZooKeeper:
    """A server that was running before. Tests use it, but never start or stop it."""

    address: str

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def zookeeper() -> AbstractContextManager[Server]:
    """Return a temporary ZooKeeper server for tests: the one in pyspark's jars.

    The variable `ZKGROUPS_TEST_ZOOKEEPER` chooses another: the address of a running server, or `docker` for a
    container.
    """
    chosen = os.environ.get(ZOOKEEPER_VARIABLE)
    if chosen == CONTAINER:
        from .zookeeper_container import ZooKeeperContainer

        return ZooKeeperContainer()
    return ExternalZooKeeper(chosen) if chosen else ZooKeeperServer()


@contextmanager
def fresh_chroot(server: Server) -> Iterator[str]:
    """Create an empty chroot, and yield the hosts string with it: `with fresh_chroot(server) as hosts: ...`.

    On a server that stays, delete it afterwards.
    """
    chroot = f"zkgroups-test-{uuid.uuid4().hex}"
    with _client(server) as client:
        client.ensure_path(f"/{chroot}")
    yield f"{server.address}/{chroot}"
    if isinstance(server, ExternalZooKeeper):
        with _client(server) as client:
            _delete(client, f"/{chroot}")


def _delete(client: KazooClient, path: str) -> None:
    """Delete a node with all nodes below it. A client of the test that is still leaving may create nodes meanwhile."""
    from kazoo.exceptions import NotEmptyError

    deadline = time.monotonic() + _DELETION
    while True:
        try:
            client.delete(path, recursive=True)
        except NotEmptyError:
            if time.monotonic() > deadline:
                raise
        else:
            return


@contextmanager
def _client(server: Server) -> Iterator[KazooClient]:
    """Open a connection only briefly, because a test may stop the server."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(server.address)
    try:
        client.start(timeout=_LONGEST_CONNECT)
    except KazooTimeoutError as error:
        source = f"{ZOOKEEPER_VARIABLE} names it, but " if isinstance(server, ExternalZooKeeper) else ""
        raise ServerStartError(f"{server.address}: {source}no server answers there") from error
    try:
        yield client
    finally:
        client.stop()
        client.close()
