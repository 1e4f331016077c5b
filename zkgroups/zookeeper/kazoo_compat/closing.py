"""Close a kazoo client: within a limited time, with or without its session, and in a fork of the process."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from kazoo.protocol.serialization import CloseInstance
from kazoo.protocol.states import KazooState, KeeperState

from ...deadline import Deadline
from .connecting import ConnectionLog
from .requests import enqueue_close

# The TCP connection of a client: both its addresses, how long it has been silent, and how to close it.
#
# Closing only the connection keeps the session. kazoo then connects to the next server.


class Endpoints(NamedTuple):
    """Both ends of a connection. `hostname` is the name that TLS has verified."""

    local: tuple[Any, ...]
    peer: tuple[Any, ...]
    hostname: str | None


def endpoints(client: Any) -> Endpoints | None:
    """Return both ends of the connection. On kazoo's thread, the connection on which it sends the next request."""
    try:
        found = client._connection._socket
        return Endpoints(found.getsockname(), found.getpeername(), getattr(found, "server_hostname", None))
    except (AttributeError, OSError):
        return None


def seconds_without_data(client: Any) -> float:
    """Return for how many seconds no data have arrived on the connection. Infinite if the system does not report it.

    kazoo returns an answer only when it is complete, and a large one can take long. Linux reports the last byte.
    """
    if sys.platform != "linux":
        return math.inf
    try:
        found = client._connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED.stop)
        return int.from_bytes(found[_LAST_RECEIVED], sys.byteorder) / 1000
    except (OSError, AttributeError):
        return math.inf


_LAST_RECEIVED: Final = slice(52, 56)
"""The field `tcpi_last_data_recv` of `struct tcp_info`, in milliseconds."""


def hang_up(client: Any) -> None:
    """Close the connection for both sides. kazoo's thread reads an end of file, even in the middle of TLS."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        socket.socket.shutdown(client._connection._socket, socket.SHUT_RDWR)


def leave_server(client: Any) -> str:
    """Close the connection, and let kazoo try this server last. Return the address of the server."""
    connection, found = client._connection, endpoints(client)
    if found is None:
        return "(none)"
    left = tuple(found.peer[:2])
    expand = connection._expand_client_hosts

    def expand_once() -> list[tuple[str, str, int]]:
        connection._expand_client_hosts = expand
        return sorted(expand(), key=lambda host: (host[1], host[2]) == left)

    connection._expand_client_hosts = expand_once
    hang_up(client)
    return f"{left[0]}:{left[1]}"


# Close a kazoo client within a limited time, with or without its session.
#
# kazoo's own `stop` waits for the server as long as a session lasts, and always ends the session.


CLOSE_TIMEOUT: Final = 5.0
HANG_UP_TIMEOUT: Final = 0.5
HANG_UP_INTERVAL: Final = 0.05


def close_client(client: Any) -> bool:
    """End the session and free all resources. Return True if a server has confirmed the end of the session.

    A server that does not answer is given up after CLOSE_TIMEOUT.
    """
    if client._stopped.is_set():
        return False
    connected, states = client.connected, list[str]()
    if not connected and isinstance(client.logger, ConnectionLog):
        client.logger.disabled = True  # it would warn that it has given up
    client.add_listener(states.append)
    connection = client._connection
    with _hang_up_on_interrupt(client):
        client._stopped.set()
        enqueue_close(client)
        answered = connection.connection_stopped.wait(CLOSE_TIMEOUT if connected else 0.0)
        if not answered:
            hang_up(client)
            if not connection.connection_stopped.wait(HANG_UP_TIMEOUT):
                _close_when_stopped(client)
        _free(client)
    return connected and answered and KazooState.SUSPENDED not in states


def disconnect_client(client: Any) -> None:
    """Free all resources without ending the session. The client does not reconnect to it.

    A connection attempt in progress cannot be cancelled. So hang up repeatedly until kazoo's thread has stopped.
    """
    if client._stopped.is_set():
        return
    if isinstance(client.logger, ConnectionLog):
        client.logger.disabled = True  # it would warn of a lost connection
    connection, deadline = client._connection, Deadline(HANG_UP_TIMEOUT)
    with _hang_up_on_interrupt(client):
        client._stopped.set()
        while not connection.connection_stopped.is_set() and not deadline.passed:
            client._reset_session()
            hang_up(client)
            connection.connection_stopped.wait(HANG_UP_INTERVAL)
        if not connection.connection_stopped.is_set():
            client._reset_session()
            client._queue.append((CloseInstance, None))  # if it connects after all, end that new session
            _close_when_stopped(client)
        _free(client)


@contextlib.contextmanager
def _hang_up_on_interrupt(client: Any) -> Iterator[None]:
    """On Ctrl-C, close the connection at once: its heartbeats would keep the session until the process ends."""
    try:
        yield
    except BaseException:
        hang_up(client)
        _close_when_stopped(client)
        client.handler.stop()
        raise


def _free(client: Any) -> None:
    client.handler.stop()
    if client._connection.connection_stopped.is_set():
        client._connection.stop()
        client.close()


def _close_when_stopped(client: Any) -> None:
    """Close the client after kazoo's thread has stopped. The last step of that thread is to report the state CLOSED.

    The thread may be resolving a name or waiting for a host, which cannot be interrupted.
    """
    report = client._session_callback

    def report_and_close(state: str) -> None:
        report(state)
        if client._connection.connection_stopped.is_set():
            client.close()

    client._session_callback = report_and_close
    if client._connection.connection_stopped.is_set():  # it has reported the state just before
        client.close()


# Close kazoo clients in a fork of the process. kazoo does not detect forks.


_OPEN_CLIENTS: Final[WeakSet[Any]] = WeakSet()


def close_in_forks(client: Any) -> None:
    """Mark the client as closed in every fork of this process.

    A fork has a copy of the socket, but not the threads. Its requests would never be answered, and the server would
    take them for requests of the parent process.
    """
    _OPEN_CLIENTS.add(client)


def _close_all() -> None:
    for client in list(_OPEN_CLIENTS):
        # A thread that does not exist here may hold the locks of the old events.
        client._stopped, client._live = threading.Event(), threading.Event()
        client._stopped.set()
        client._state = KeeperState.CLOSED
        client._reset_session()


os.register_at_fork(after_in_child=_close_all)
