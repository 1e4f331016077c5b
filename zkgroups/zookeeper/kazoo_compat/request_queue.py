"""Corrections of kazoo's queue of requests.

kazoo wakes its connection thread by one byte for each request, through a pair of sockets. That has three defects:

- If one byte is missing, the last request waits until the next one is made.
- A bare `except` around the write takes a Ctrl-C for a closed connection.
- The pair holds 278 bytes. While disconnected, the next request or close blocks, regardless of its timeout.

Here one byte means that the queue is not empty. It is written after each change of the queue, and again by kazoo's
thread after each byte that it has read, if the queue is still not empty.
"""

from __future__ import annotations

import fcntl
import termios
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from kazoo.exceptions import AuthFailedError, ConnectionClosedError, ConnectionLoss, SessionExpiredError
from kazoo.protocol.serialization import CloseInstance
from kazoo.protocol.states import KeeperState

LONGEST_QUEUE: Final = 256
"""The number of requests to keep while disconnected. Their callers may give up before the next connection."""

_CLOSED: Final = partial(ConnectionClosedError, "Connection has been closed")

_REFUSALS: Final = {
    KeeperState.AUTH_FAILED: AuthFailedError,
    KeeperState.CLOSED: _CLOSED,
    KeeperState.EXPIRED_SESSION: SessionExpiredError,
}


def correct_request_queue(client: Any) -> None:
    """Replace kazoo's way of adding requests to its queue."""
    connection = client._connection
    send = connection._send_request

    def send_request(read_timeout: float, connect_timeout: float) -> None:
        send(read_timeout, connect_timeout)
        if client._queue:
            _wake(connection)

    connection._send_request = send_request
    client._call = lambda request, answer: enqueue(client, [(request, answer)])


def enqueue(client: Any, requests: Sequence[tuple[Any, Any]]) -> bool:
    """Add requests, each with the object that receives its answer, to the queue. Return False if the client is closed.

    On failure, the last request receives the error: the client is closed, or the queue is full and the connection lost.
    """
    *_, (_, last) = requests
    if (refusal := _REFUSALS.get(client._state)) is not None:
        last.set_exception(refusal())
        return False
    if len(client._queue) >= LONGEST_QUEUE and not client.connected:
        last.set_exception(ConnectionLoss())
        return True
    try:
        client._queue.extend(requests)
    finally:
        if not _wake(client._connection):  # another thread has just closed it
            last.set_exception(_CLOSED())
    return True


def enqueue_close(client: Any) -> None:
    """Ask for the end of the session, after all requests in the queue."""
    client._queue.append((CloseInstance, None))
    _wake(client._connection)


def _wake(connection: Any) -> bool:
    """Let kazoo's thread look at the queue. Return False if the client is closed."""
    try:
        if not _is_woken(connection):
            connection._write_sock.send(b"\0")
    except (OSError, AttributeError, TypeError, ValueError):
        return False
    return True


def _is_woken(connection: Any) -> bool:
    """Return True if a byte is waiting. FIONREAD works for the sockets of every handler of kazoo."""
    return any(fcntl.ioctl(connection._read_sock, termios.FIONREAD, bytes(4)))
