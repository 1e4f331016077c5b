"""Find out whether a server answers many reads in one request, without harm.

Servers before ZooKeeper 3.6 do not. They log an error for such a request, and close the connection. So each process
probes each server once, in the cheapest way that the server supports:

1. ask for its version, with the four-letter word `srvr`, on a connection without a session;
2. if it does not answer, send the request itself, on a second connection with the same credentials.

The result is remembered for the address. But the address may lead to another server later: during a rollback, or behind
a load balancer. Then an old server closes the main connection on the first such request. Nothing is lost: all pending
requests are repeated or resolved, and the process does not use the request with this address again. If the connection
is lost without an answer to the request, and no such request was answered on it before, the reason may be the same.
Then the server is probed once more. After the second loss in a row it counts as an old server.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from typing import Any, Final

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from ...deadline import Deadline
from ...exceptions import ZkgroupsException
from ..kazoo_compat import internals, server_status
from ..kazoo_compat.client_log import SilentLog
from ..kazoo_compat.close_client import close_client
from ..kazoo_compat.second_client import connect_only_to, second_client
from ..kazoo_compat.tcp_connection import Endpoints, endpoints
from ..session.session import Session
from .multiread_format import Kind, MultiRead, operations

PROBE_TIMEOUT: Final = 5.0
"""How long a reader waits for the probe, in seconds. Then it sends one request for each node."""

VERSION_TIMEOUT: Final = 1.5
"""How long to wait for the version, in seconds. A firewall may drop four-letter words silently."""

MULTI_READ_SINCE: Final = (3, 6)


class _Servers:
    """What this process knows about servers, by their addresses."""

    def __init__(self) -> None:
        self.forget()
        self.unlock()

    def forget(self) -> None:
        """Forget all servers."""
        self._supports: dict[_Address, bool] = {}
        self._last_lost: dict[_Address, Endpoints] = {}  # the last connection that was lost during a request

    def unlock(self) -> None:
        """Reset the locks in a fork, where the threads that held them do not exist."""
        self._probing: defaultdict[_Address, threading.Lock] = defaultdict(threading.Lock)

    def probing(self, connection: Endpoints) -> threading.Lock:
        """Return the lock to hold while the server is probed."""
        return self._probing[_address(connection)]

    def supports(self, connection: Endpoints) -> bool | None:
        """Return whether the server at the other end supports the request. None if unknown."""
        return self._supports.get(_address(connection))

    def set_supports(self, connection: Endpoints, supports: bool) -> None:
        """Remember whether the server supports the request."""
        self._supports[_address(connection)] = supports

    def answered(self, connection: Endpoints) -> None:
        """Forget a lost connection, because the server has answered such a request now."""
        self._last_lost.pop(_address(connection), None)

    def lost(self, connection: Endpoints) -> None:
        """Note that the connection was lost during such a request, before any was answered."""
        address = _address(connection)
        earlier = self._last_lost.setdefault(address, connection)
        if earlier == connection:
            self._supports.pop(address, None)
        else:
            self._supports[address] = False


_Address = tuple[tuple[Any, ...], str | None]
"""The address of a server, and the name that TLS has verified."""


_SERVERS: Final = _Servers()
os.register_at_fork(after_in_child=_SERVERS.unlock)


def knows_multiread(session: Session, timeout: float) -> bool:
    """Return whether the server of this session supports the request. Probe the server if that is unknown."""
    connection = endpoints(session.client)
    if connection is None:
        return False
    if connection not in session.reads_many and _SERVERS.supports(connection) is None:
        _probe_once(session, connection, Deadline(min(timeout, PROBE_TIMEOUT)))
    return is_supported(session, connection)


def is_supported(session: Session, connection: Endpoints | None) -> bool:
    """Return True if the server at the other end is known to support the request. Does not contact the server."""
    if connection is None:
        return False
    observed = session.reads_many.get(connection)
    return bool(_SERVERS.supports(connection)) if observed is None else observed


def note_answer(session: Session, connection: Endpoints) -> None:
    """Note that the server has answered many reads in one request."""
    if connection not in session.reads_many:
        session.reads_many = {connection: True}
        _SERVERS.answered(connection)


def note_unsupported(connection: Endpoints) -> None:
    """Note that the server does not know the request."""
    _SERVERS.set_supports(connection, False)


def note_loss(session: Session, connection: Endpoints) -> None:
    """Note that the connection was lost before such a request was answered."""
    if connection not in session.reads_many:
        _SERVERS.lost(connection)


def _address(connection: Endpoints) -> _Address:
    return connection.peer, connection.hostname


def _probe_once(session: Session, connection: Endpoints, deadline: Deadline) -> None:
    """Probe the server, unless another thread does. If it does not answer, do not probe again on this connection."""
    lock = _SERVERS.probing(connection)
    if not lock.acquire(timeout=deadline.remaining):
        return
    try:
        if connection in session.reads_many or _SERVERS.supports(connection) is not None:
            return
        supports = _probe(session.client, connection, deadline)
        if supports is None:
            session.reads_many = {connection: False}
        else:
            _SERVERS.set_supports(connection, supports)
    finally:
        lock.release()


def _probe(client: Any, connection: Endpoints, deadline: Deadline) -> bool | None:
    """Probe the server at the other end. Return None if it does not answer."""
    version = _version(client, connection, Deadline(min(VERSION_TIMEOUT, deadline.remaining)))
    return _answers_multiread(client, connection, deadline) if version is None else version >= MULTI_READ_SINCE


def _version(client: Any, connection: Endpoints, deadline: Deadline) -> tuple[int, int] | None:
    """Return the server's version. None if it does not report one, because four-letter words may be disabled."""
    (address, port, *_), name = connection.peer, connection.hostname
    return server_status.version(client, name or address, address, port, deadline)


def _answers_multiread(client: Any, connection: Endpoints, deadline: Deadline) -> bool | None:
    """Return whether the server answers such a request on a second connection. None if it does not answer at all."""
    second = _client_for(client, connection, deadline)
    answer = second.handler.async_result()
    session = Session.of(second)
    second.start_async()
    try:
        if not session.wait_connected(deadline):
            return None
        internals.send(second, MultiRead(operations(Kind.NODE, b"", ["zookeeper"]), lambda: True), answer)
        answer.get(timeout=deadline.remaining)
        return True
    except (KazooTimeoutError, ZkgroupsException):
        return None
    except KazooException:
        return False
    finally:
        close_client(second)


def _client_for(client: Any, connection: Endpoints, deadline: Deadline) -> Any:
    """Return a second client for exactly this address. The name that TLS verifies may have several addresses."""
    (address, port, *_), name = connection.peer, connection.hostname
    second = second_client(client, deadline.seconds, hosts=[(name or address, port)], logger=SilentLog())
    connect_only_to(second, name or address, address, port)
    return second
