"""Find out whether a server answers many reads in one request, without harm.

Servers before ZooKeeper 3.6 do not. They log an error for such a request, and close the connection. So each process
probes each server once, in the cheapest way that the server supports:

1. ask for its version, with the four-letter word `srvr`, on a connection without a session;
2. if there is no answer, send the request itself, on a second connection and as the same user.

The answer is remembered for the address. But an address may lead to another server later: during a rollback, or behind
a load balancer. Then an old server closes the main connection on the first such request. Nothing is lost: all pending
requests are repeated or resolved, and the process does not use the request with this address again. If the connection
is lost without an answer to the request, and no such request was answered on it before, the reason may be the same.
Then the server is asked once more; after the second loss in a row it counts as an old one.
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
from ..kazoo_compat.corrections import Silence, close
from ..kazoo_compat.second_client import twin
from ..session import server_status
from ..session.session import Peer, Session
from .multiread import Kind, MultiRead, operations

PATIENCE: Final = 5.0
"""How long a walk waits for the probe, once; then it reads in the way that all servers support."""

VERSION_PATIENCE: Final = 1.5
"""Short, because a firewall may drop four-letter words silently."""

MULTI_READ_SINCE: Final = (3, 6)


class _Servers:
    """What this process knows about servers, by their addresses."""

    def __init__(self) -> None:
        self.forget()
        self.unlock()

    def forget(self) -> None:
        """Begin anew."""
        self._known: dict[Peer, bool] = {}
        self._doubted: dict[Peer, Peer] = {}  # by address, the last connection that was lost with a request

    def unlock(self) -> None:
        """Reset in a fork, where no thread holds the locks any more."""
        self._locks: defaultdict[Peer, threading.Lock] = defaultdict(threading.Lock)

    def asking(self, connection: Peer) -> threading.Lock:
        """The lock to hold while the server is asked."""
        return self._locks[_address(connection)]

    def knows(self, connection: Peer) -> bool | None:
        """Whether the server at the other end supports the request; None if unknown."""
        return self._known.get(_address(connection))

    def learn(self, connection: Peer, knows: bool) -> None:
        """Remember an answer."""
        self._known[_address(connection)] = knows

    def prove(self, connection: Peer) -> None:
        """The server has answered such a request."""
        self._doubted.pop(_address(connection), None)

    def doubt(self, connection: Peer) -> None:
        """The connection was lost during such a request, before any was answered."""
        address = _address(connection)
        before = self._doubted.setdefault(address, connection)
        if before == connection:
            self._known.pop(address, None)
        else:
            self._known[address] = False


_SERVERS: Final = _Servers()
os.register_at_fork(after_in_child=_SERVERS.unlock)


def knows_multiread(session: Session, timeout: float) -> bool:
    """Whether the server of this session supports the request. Ask it, if that is still unknown."""
    connection = connection_of(session)
    if connection is None:
        return False
    if connection not in session.reads_many and _SERVERS.knows(connection) is None:
        _ask_once(session, connection, Deadline(min(timeout, PATIENCE)))
    return understands(session, connection)


def understands(session: Session, connection: Peer | None) -> bool:
    """Whether the server at the other end is known to support the request, without asking it."""
    if connection is None:
        return False
    shown = session.reads_many.get(connection)
    return bool(_SERVERS.knows(connection)) if shown is None else shown


def connection_of(session: Session) -> Peer | None:
    """Both ends of the connection. On kazoo's thread, this is the connection on which the next request is sent."""
    try:
        socket = session.client._connection._socket
        return socket.getsockname(), socket.getpeername(), getattr(socket, "server_hostname", None)
    except (AttributeError, OSError):
        return None


def answered(session: Session, connection: Peer) -> None:
    """Note that the server has answered many reads in one request."""
    if connection not in session.reads_many:
        session.reads_many = {connection: True}
        _SERVERS.prove(connection)


def refused(connection: Peer) -> None:
    """Note that the server does not know the request."""
    _SERVERS.learn(connection, False)


def lost(session: Session, connection: Peer) -> None:
    """Note that the connection was lost before such a request was answered."""
    if connection not in session.reads_many:
        _SERVERS.doubt(connection)


def _address(connection: Peer) -> Peer:
    return connection[1:]


def _ask_once(session: Session, connection: Peer, deadline: Deadline) -> None:
    """Ask the server, unless another thread is asking. If there is no answer, do not ask again on this connection."""
    lock = _SERVERS.asking(connection)
    if not lock.acquire(timeout=deadline.remaining):
        return
    try:
        if connection in session.reads_many or _SERVERS.knows(connection) is not None:
            return
        knows = _ask(session.client, connection, deadline)
        if knows is None:
            session.reads_many = {connection: False}
        else:
            _SERVERS.learn(connection, knows)
    finally:
        lock.release()


def _ask(client: Any, connection: Peer, deadline: Deadline) -> bool | None:
    """Ask the server at the other end; None if it does not answer."""
    version = _version(client, connection, Deadline(min(VERSION_PATIENCE, deadline.remaining)))
    return _answers(client, connection, deadline) if version is None else version >= MULTI_READ_SINCE


def _version(client: Any, connection: Peer, deadline: Deadline) -> tuple[int, int] | None:
    """Its version; None if it does not report one, because four-letter words may be disabled."""
    _here, (address, port, *_), name = connection
    return server_status.version(client, name or address, address, port, deadline)


def _answers(client: Any, connection: Peer, deadline: Deadline) -> bool | None:
    """Whether it answers such a request on a second connection."""
    second = _second(client, connection, deadline)
    answer = second.handler.async_result()
    session = Session.of(second)
    second.start_async()
    try:
        if not session.wait_connected(deadline):
            return None
        second._call(MultiRead(operations(Kind.NODE, b"", ["zookeeper"]), lambda: True), answer)
        answer.get(timeout=deadline.remaining)
        return True
    except (KazooTimeoutError, ZkgroupsException):
        return None
    except KazooException:
        return False
    finally:
        close(second)


def _second(client: Any, connection: Peer, deadline: Deadline) -> Any:
    """A client for that very address: a name may stand for many. TLS checks the name, nothing else needs it."""
    _here, (address, port, *_), name = connection
    second = twin(client, deadline.seconds, hosts=[(name or address, port)], logger=Silence())
    second._connection._expand_client_hosts = lambda: [(name or address, address, port)]
    return second
