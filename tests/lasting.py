"""Plain clients whose sessions outlive a restart of their server, and a machine that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient

_TIMES = 8
"""kazoo also waits so much shorter for a server that does not read: not shorter than a machine stands still."""


def through_restarts(hosts: str) -> str:
    """The address several times, so that a client retries soon.

    ZooKeeper 3.9 forgets connections made in the first milliseconds of its start: it neither answers nor closes
    them. kazoo waits on one for the session timeout divided by the number of hosts.
    """
    address, slash, chroot = hosts.partition("/")
    return ",".join([address] * _TIMES) + slash + chroot


@contextmanager
def lasting_client(hosts: str, **options: Any) -> Iterator[Any]:
    """A temporary client. Its session ends with the block, if the server is still running."""
    client = KazooClient(through_restarts(hosts), **{"timeout": 60.0} | options)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()
