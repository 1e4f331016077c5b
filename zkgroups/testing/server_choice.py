"""Which ZooKeeper a test runs against, and a corner of it that no other test uses.

In this order: the server that `ZKGROUPS_TEST_ZOOKEEPER` names; a container, when a Docker engine answers and has the
image already; else the server in pyspark's jars.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from zkgroups.exceptions import ServerStartError

from .server import ZooKeeperServer

if TYPE_CHECKING:
    from kazoo.client import KazooClient

ZOOKEEPER_VARIABLE = "ZKGROUPS_TEST_ZOOKEEPER"


class Server(Protocol):
    """What every choice has; those that we start have the methods of `ZooKeeperServer`, too."""

    @property
    def address(self) -> str:
        """The hosts string for a client."""


@dataclass(frozen=True, slots=True)
class ExternalZooKeeper:
    """Somebody else's server: it is used, never started or stopped."""

    address: str

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def zookeeper() -> AbstractContextManager[Server]:
    """A ZooKeeper server, by the order at the top of this file."""
    if address := os.environ.get(ZOOKEEPER_VARIABLE):
        return ExternalZooKeeper(address)
    from .containers import ZooKeeperContainer, engine_with_image

    if engine_with_image():
        return ZooKeeperContainer()
    return ZooKeeperServer()


@contextmanager
def fresh_chroot(server: Server) -> Iterator[str]:
    """The server's hosts string with a chroot that is new; taken away afterwards where the server stays."""
    chroot = f"zkgroups-test-{uuid.uuid4().hex}"
    with _client(server) as client:
        client.ensure_path(f"/{chroot}")
    yield f"{server.address}/{chroot}"
    if isinstance(server, ExternalZooKeeper):
        with _client(server) as client:
            client.delete(f"/{chroot}", recursive=True)


@contextmanager
def _client(server: Server) -> Iterator[KazooClient]:
    """A connection for a moment only: during the test the server may well be down."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(server.address)
    try:
        client.start(timeout=10)
    except KazooTimeoutError as error:
        source = f"{ZOOKEEPER_VARIABLE} names it, but " if isinstance(server, ExternalZooKeeper) else ""
        raise ServerStartError(f"{server.address}: {source}no server answers there") from error
    try:
        yield client
    finally:
        client.stop()
        client.close()
