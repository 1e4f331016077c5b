"""Read the answers of a server without trusting them.

kazoo trusts every length, count, type and number that a server sends. If four bytes announce 2 GB, it allocates 2 GB.
It waits forever for an answer that arrives byte by byte. And its thread dies of the first answer that it cannot decode.
A web server, a TLS port or a broken proxy is enough for that.

Here every frame has a maximum size and a deadline, and is decoded before kazoo sees it. On a damaged answer the
connection is closed, and kazoo reconnects. The request in question fails with `DamagedAnswer`, all other requests as if
the connection had been lost.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from struct import Struct
from typing import Any, Final

from kazoo.exceptions import EXCEPTIONS, ConnectionDropped, KazooException, SessionMovedError, UnimplementedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import AUTH_XID
from kazoo.protocol.serialization import Connect, GetChildren, ReplyHeader, Transaction, Watch

from ...deadline import Deadline
from .requests import HEADER_BYTES, ReadBatch, next_xid, send_batches

# Decode the answer to a transaction, and leave a server that the session has left.
#
# A session belongs to the server to which its client has connected last. If a slow server passes on an earlier
# attempt to connect later, the leader takes that server for the current one, and refuses all writes over the
# connection in use (ZOOKEEPER-710). For a single write, the server then closes the connection. For a transaction,
# ZooKeeper 3.4 does not (ZOOKEEPER-2886): each one fails, while reads and pings succeed, and the session never ends.


def transaction_results(answer: bytes, offset: int) -> list[Any]:
    """Return the results. Raise `ConnectionDropped` if the session belongs to another server; kazoo then reconnects."""
    results: list[Any] = Transaction.deserialize(answer, offset)
    if any(isinstance(result, SessionMovedError) for result in results):
        raise ConnectionDropped("the server has refused a transaction because the session belongs to another server")
    return results


# Events of watches that kazoo does not know, such as a persistent watch on a whole tree.
#
# kazoo keeps a watcher for each path, and ignores events of other paths.


def report_events(client: Any, on_event: Callable[[str], object]) -> None:
    """Call `on_event(path)` for every event, on kazoo's thread, which it must not block. kazoo gets the event, too."""
    connection = client._connection
    read = connection._read_watch_event

    def read_watch_event(event: bytes, offset: int) -> None:
        read(event, offset)  # decodes it strictly
        watch, _end = Watch.deserialize(event, offset)
        on_event(client.unchroot(watch.path))

    connection._read_watch_event = read_watch_event


MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""A node has a few megabytes at most (`jute.maxbuffer`). A list of names has no limit; this allows two million."""

CHUNK_BYTES: Final = 256 * 1024
"""The largest buffer to allocate at once. So only bytes that have arrived take memory, not announced ones."""

AHEAD_BYTES: Final = 64 * 1024
"""How much to read ahead of the answers to a batch of reads."""

_NOT_YET: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_PASSWORD_BYTES: Final = 16
_INT: Final = Struct(">i")


class DamagedAnswer(ConnectionDropped):  # type: ignore[misc]
    """An answer that no ZooKeeper server sends. kazoo closes the connection, as after every `ConnectionDropped`."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not a ZooKeeper server, or a damaged answer ({reason})")
        self.reason = reason


def read_safely(client: Any) -> None:
    """Replace the reading methods of this client's connection. Call it once for each client."""
    connection = client._connection
    reader = _SafeReader(client)
    connection._read, connection._read_header = reader.read, reader.read_header
    connection._read_socket, connection._read_response = reader.read_socket, reader.read_response
    connection._read_watch_event, connection._invoke = reader.read_watch_event, reader.invoke
    connection._authenticate_with_sasl = reader.authenticate_with_sasl
    send_batches(connection)


class _SafeReader:
    """kazoo's own methods of one connection, each with a check before or after it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._connection = connection = client._connection
        self._read_socket, self._read_response = connection._read_socket, connection._read_response
        self._read_watch_event, self._invoke = connection._read_watch_event, connection._invoke
        self._authenticate_with_sasl = connection._authenticate_with_sasl
        self._ahead: tuple[Any, bytes] = (None, b"")  # a socket, and bytes that were read from it too early

    def read(self, length: int, timeout: float) -> bytes:
        """Read exactly `length` bytes. All of them must arrive within `timeout`, not only the first."""
        if not 0 <= length <= MAX_ANSWER_BYTES:
            raise DamagedAnswer(f"it announces {length} bytes, but the limit is {MAX_ANSWER_BYTES}")
        if not length:
            return b""
        deadline = Deadline(timeout)
        with self._connection._socket_error_handling():
            first = self._receive(length, deadline)
            if len(first) == length:
                return first
            received = bytearray(first)
            while len(received) < length:
                received += self._receive(length - len(received), deadline)
        return bytes(received)

    def _receive(self, most: int, deadline: Deadline) -> bytes:
        """Return the next bytes as soon as any arrive. Mostly they have arrived already."""
        connection = self._connection
        socket, ahead = self._ahead
        if ahead and socket is connection._socket:
            self._ahead = socket, ahead[most:]
            return ahead[:most]
        while True:
            try:
                chunk: bytes = connection._socket.recv(min(most, CHUNK_BYTES))
            except _NOT_YET:
                if not connection.handler.select([connection._socket], [], [], deadline.remaining)[0]:
                    raise connection.handler.timeout_exception("socket timeout during read") from None
                continue
            if not chunk:
                raise ConnectionDropped("socket connection broken")
            return chunk

    def read_header(self, timeout: float) -> tuple[Any, bytes, int]:
        """Read one answer, and decode its header."""
        answer = self.read(_INT.unpack(self.read(_INT.size, timeout))[0], timeout)
        if len(answer) < HEADER_BYTES:
            raise DamagedAnswer(f"{len(answer)} bytes are too few for the header of an answer")
        header, end = ReplyHeader.deserialize(answer, 0)
        if header.err and header.err not in EXCEPTIONS:
            raise DamagedAnswer(f"no error has the number {header.err}")
        pending = self._client._pending
        if header.xid == AUTH_XID and pending and pending[0][2] != AUTH_XID:
            raise DamagedAnswer("the answer to a login, but none is in progress")
        return header, answer, end

    def read_socket(self, timeout: float) -> Any:
        """Read one answer or event, or all that have arrived for a batch of reads, and pass them on.

        Servers answer in order. So a damaged answer is counted as the answer to the oldest request.
        """
        try:
            response = self._read_socket(timeout)
            while response is None and (self._has_next() or self._is_decrypted()):
                response = self._read_socket(timeout)
            return response
        except DamagedAnswer as damage:
            self._blame(damage)
            raise
        except _NO_DAMAGE:
            raise
        except Exception as error:
            undecodable = _undecodable("an answer", error)
            self._blame(undecodable)
            raise undecodable from error

    def _has_next(self) -> bool:
        """For a batch of reads, take the answers that have arrived. Return True if another answer was read ahead."""
        socket, ahead = self._ahead
        if socket is not self._connection._socket:
            socket, ahead = self._connection._socket, b""
        pending = self._client._pending
        if pending and isinstance(pending[0][0], ReadBatch):
            with suppress(*_NOT_YET):
                ahead += socket.recv(AHEAD_BYTES)
            batch, waiting, xid = pending[0]
            length, xid = batch.take(ahead, xid)
            pending[0], ahead = (batch, waiting, xid), ahead[length:]
        self._ahead = socket, ahead
        return _is_whole(ahead)

    def _is_decrypted(self) -> bool:
        """Return True if TLS holds bytes that were received with the last ones. kazoo does not hear of these."""
        socket = self._connection._socket
        return isinstance(socket, ssl.SSLSocket) and socket.pending() > 0

    def _blame(self, damage: DamagedAnswer) -> None:
        if self._client._pending:
            _request, waiting, _xid = self._client._pending.popleft()
            if waiting is not None:
                waiting.set_exception(damage)

    def read_response(self, header: Any, answer: bytes, offset: int) -> Any:
        """Decode the answer to the oldest request. kazoo then uses the result, and cannot fail."""
        pending = self._client._pending
        if not pending:
            raise DamagedAnswer("an answer without a request")
        request, waiting, xid = pending[0]
        if header.xid != xid:
            if header.err == UnimplementedError.code:
                self._fail_unimplemented(header.xid)
            raise DamagedAnswer(f"request {header.xid} was answered before request {xid}")
        if isinstance(request, ReadBatch):
            return self._read_batch(header, answer)
        if request and waiting is not None and not header.err:
            pending[0] = _Answered(request, _decoded(request, answer, offset)), waiting, xid
        return self._read_response(header, answer, offset)

    def _read_batch(self, header: Any, answer: bytes) -> None:
        """Keep the answer to one read of a batch. The last one completes the request."""
        client = self._client
        client.last_zxid = max(client.last_zxid, header.zxid)
        batch, waiting, xid = client._pending[0]
        answers = batch.add(answer)
        if answers is None:
            client._pending[0] = batch, waiting, next_xid(xid)
        else:
            client._pending.popleft()
            waiting.set(answers)

    def _fail_unimplemented(self, xid: int) -> None:
        """Fail a request that the server does not know. Such an answer comes out of order, before a hang-up."""
        for sent in self._client._pending:
            if sent[2] == xid:
                self._client._pending.remove(sent)
                if sent[1] is not None:
                    sent[1].set_exception(UnimplementedError())
                raise ConnectionDropped("the server does not know a request")

    def read_watch_event(self, event: bytes, offset: int) -> None:
        """Decode a watch event, and let kazoo call the watchers."""
        with _undamaged("a watch event"):
            watch, end = Watch.deserialize(event, offset)
            if watch.path is None or end != len(event):
                raise DamagedAnswer("a watch event without a path, or of the wrong length")
            self._read_watch_event(event, offset)

    def invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """Send a request while the connection is being established, and read the answer."""
        with _undamaged("the answer to a connection request"):
            if not isinstance(request, Connect):
                return self._invoke(timeout, request, xid)
            answer, zxid = self._invoke(timeout, _ConnectRequest(request), xid)
            return _checked_connect(answer), zxid

    def authenticate_with_sasl(self, host: str, timeout: float) -> None:
        """Log in. A malformed answer raises `DamagedAnswer`."""
        with _undamaged("a step of the SASL login"):
            self._authenticate_with_sasl(host, timeout)


def _is_whole(ahead: bytes) -> bool:
    """Return True if the bytes begin with a whole answer."""
    return len(ahead) >= _INT.size and len(ahead) - _INT.size >= _INT.unpack_from(ahead)[0]


@contextmanager
def _undamaged(name: str) -> Iterator[None]:
    """Turn all errors but those of kazoo and the socket into `DamagedAnswer`, which kazoo's thread survives."""
    try:
        yield
    except _NO_DAMAGE:
        raise
    except Exception as error:
        raise _undecodable(name, error) from error


_NO_DAMAGE: Final = (KazooException, KazooTimeoutError, OSError)


def _undecodable(name: str, error: Exception) -> DamagedAnswer:
    return DamagedAnswer(f"{name} cannot be decoded: {str(error) or type(error).__name__}")


def _decoded(request: Any, answer: bytes, offset: int) -> Any:
    """Decode the result of a request strictly."""
    return decode_names(answer, offset) if isinstance(request, GetChildren) else request.deserialize(answer, offset)


def decode_names(answer: bytes, start: int) -> list[str]:
    """Decode the names that fill the rest of an answer. kazoo would accept a truncated name.

    >>> decode_names(bytes.fromhex("00000002 00000001 61 00000002 6263"), 0)
    ['a', 'bc']
    >>> decode_names(bytes.fromhex("ffffffff"), 0)
    []
    >>> decode_names(bytes.fromhex("00000001 00000009 61"), 0)
    Traceback (most recent call last):
    ...
    ValueError: 1 names do not fit into 5 bytes
    """
    (count,) = _INT.unpack_from(answer, start)
    names, end = decode_counted_names(answer, start + _INT.size, count)
    if end != len(answer):
        raise ValueError(f"{len(answer) - end} bytes follow after {count} names")
    return names


def decode_counted_names(answer: bytes, start: int, count: int) -> tuple[list[str], int]:
    """Decode `count` names from `start`. Return them and the position after them. A null list has the count -1."""
    if not -1 <= count <= (len(answer) - start) // _INT.size:
        raise ValueError(f"{count} names do not fit into {len(answer) - start} bytes")
    parts: list[bytes] = []
    length_at: Any = _INT.unpack_from
    position = start
    for _ in range(count):
        (length,) = length_at(answer, position)
        if length < 1:
            raise ValueError(f"a name of {length} bytes")
        position += _INT.size
        parts.append(answer[position : position + length])
        position += length
    if position > len(answer):
        raise ValueError(f"{count} names do not fit into {len(answer) - start} bytes")
    # No name has a slash, so all are decoded at once.
    names = b"/".join(parts).decode().split("/") if parts else []
    if len(names) != len(parts):
        raise ValueError("a name with a slash")
    return names, position


class _Answered:
    """Replaces a request whose answer is decoded already, so that kazoo does not decode it again."""

    def __init__(self, request: Any, result: Any) -> None:
        self._request = request
        self._result = result

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the request. kazoo chooses the kind of watch by it."""
        return type(self._request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def __repr__(self) -> str:
        return repr(self._request)

    def deserialize(self, _answer: bytes, _offset: int) -> Any:
        """Called by kazoo."""
        return self._result


class _ConnectRequest:
    """The first request of a connection. kazoo logs a traceback if it cannot decode the answer; this never fails."""

    type = None

    def __init__(self, request: Connect) -> None:
        self.serialize = request.serialize

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> tuple[Connect | None, int]:
        """Called by kazoo."""
        try:
            found, end = Connect.deserialize(answer, offset)
        except Exception:
            return None, offset
        return found, end


def _checked_connect(answer: Connect | None) -> Connect:
    """Check that a session has an id and a password. An expired one has neither."""
    if answer is None:
        raise DamagedAnswer("the answer to a connection request cannot be decoded")
    if answer.time_out > 0 and (not answer.session_id or len(answer.passwd or b"") != _PASSWORD_BYTES):
        raise DamagedAnswer("a session without an id or a password")
    return answer
