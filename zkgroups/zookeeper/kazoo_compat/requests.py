"""Requests of kazoo: corrections of its queue, many reads as one request, and an observer of what is sent."""

from __future__ import annotations

import fcntl
import termios
from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Any, Final, Protocol

from kazoo.exceptions import EXCEPTIONS, AuthFailedError, ConnectionClosedError, ConnectionLoss, SessionExpiredError
from kazoo.protocol.serialization import CloseInstance, Connect
from kazoo.protocol.states import KeeperState

# Observe the requests and answers of a client. kazoo reports neither.


class TrafficListener(Protocol):
    """Receives the traffic of one client, on kazoo's connection thread."""

    def on_request(self, xid: int | None, request_type: Any) -> None:
        """Called before a request is sent. `xid` is None for the request that makes a connection."""

    def on_answer(self, header: Any, body: bytes, offset: int) -> None:
        """Called with each answer and each watch event. The result begins at `offset` of `body`."""

    def on_session(self, session_id: int, timeout: float) -> None:
        """Called when a server grants or resumes a session, with the timeout in seconds."""


def observe_traffic(client: Any, listener: TrafficListener) -> None:
    """Report all traffic of the client to `listener`."""
    connection = client._connection
    submit, read_header, invoke = connection._submit, connection._read_header, connection._invoke

    def observed_submit(request: Any, timeout: float, xid: int | None = None) -> Any:
        listener.on_request(xid, request.type)
        return submit(request, timeout, xid)

    def observed_read_header(timeout: float) -> Any:
        header, body, offset = read_header(timeout)
        listener.on_answer(header, body, offset)
        return header, body, offset

    def observed_invoke(timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = invoke(timeout, request, xid)
        if isinstance(request, Connect):
            granted = answer[0]
            if granted.time_out > 0:  # an expired session has none
                listener.on_session(granted.session_id, granted.time_out / 1000)
        return answer

    connection._submit, connection._read_header, connection._invoke = (
        observed_submit,
        observed_read_header,
        observed_invoke,
    )


# Corrections of kazoo's queue of requests.
#
# kazoo wakes its connection thread by one byte for each request, through a pair of sockets. That has three defects:
#
# - If one byte is missing, the last request waits until the next one is made.
# - A bare `except` around the write takes a Ctrl-C for a closed connection.
# - The pair holds 278 bytes. While disconnected, the next request or close blocks, regardless of its timeout.
#
# Here one byte means that the queue is not empty. It is written after each change of the queue, and again by kazoo's
# thread after each byte that it has read, if the queue is still not empty.


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


# Many single reads as one request of kazoo.
#
# kazoo sends one request and reads one answer in each turn of its loop. That takes longer than a server needs to
# answer. So a batch is written to the socket at once. kazoo counts it as one request, but the server sees single
# reads, which every release answers.


_INT: Final = Struct(">i")
_HEAD: Final = Struct(">iii")
_ANSWER: Final = Struct(">ii8xi")
_ERROR_AT: Final = 12
_LAST_XID: Final = 2**31 - 1

HEADER_BYTES: Final = 16
"""The length of the header of an answer."""


class ReadBatch:
    """Reads of one type. The result is the undecoded answers, each with its header."""

    def __init__(self, request_type: int, bodies: Sequence[bytes]) -> None:
        self.type = request_type
        self._bodies = bodies
        self._answers: list[bytes] = []

    def frames(self, first_xid: int) -> bytes:
        """Encode the reads as they are sent."""
        self._answers = []
        parts: list[bytes] = []
        xid = first_xid
        for body in self._bodies:
            parts += (_HEAD.pack(len(body) + 2 * _INT.size, xid, self.type), body)
            xid = next_xid(xid)
        return b"".join(parts)

    def last_xid(self, first_xid: int) -> int:
        """Return the xid of the last read."""
        return (first_xid + len(self._bodies) - 2) % _LAST_XID + 1

    def add(self, answer: bytes) -> list[bytes] | None:
        """Add the next answer. Return all of them if it is the last."""
        self._answers.append(answer)
        return self._answers if len(self._answers) == len(self._bodies) else None

    def take(self, received: bytes, xid: int) -> tuple[int, int]:
        """Add the next answers without errors but the last one. Return the length of them, and the next xid.

        The first and the last one are left to kazoo's own way, which notes when a server answers.
        """
        position, missing = 0, len(self._bodies) - len(self._answers) - 1
        if not self._answers:
            return position, xid
        while missing > 0 and len(received) - position >= _ANSWER.size:
            length, found, error = _ANSWER.unpack_from(received, position)
            end = position + _INT.size + length
            if found != xid or error or length < HEADER_BYTES or end > len(received):
                break
            self._answers.append(received[position + _INT.size : end])
            position, xid, missing = end, next_xid(xid), missing - 1
        return position, xid


def next_xid(xid: int) -> int:
    """Return the number of the request after this one, as kazoo counts."""
    return xid % _LAST_XID + 1


def error_of(answer: bytes) -> int:
    """Return the error number in the header of an answer, or 0."""
    error: int = _INT.unpack_from(answer, _ERROR_AT)[0]
    return error


def exception_of(error: int) -> Exception:
    """Return the exception for an error number."""
    found: Exception = EXCEPTIONS[error]()
    return found


def send_batches(connection: Any) -> None:
    """Let kazoo's connection write a batch as the single reads in it."""
    submit = connection._submit

    def submit_all(request: Any, timeout: float, xid: int | None = None) -> Any:
        if not isinstance(request, ReadBatch) or xid is None:
            return submit(request, timeout, xid)
        connection._xid = request.last_xid(xid)
        return connection._write(request.frames(xid), timeout)

    connection._submit = submit_all
