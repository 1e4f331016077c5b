"""MultiRead: many reads as one request, for servers that answer it."""

from __future__ import annotations

import os
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import groupby
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError, UnimplementedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import Exists

from ...core.znodes.codecs import MAX_OFFSET
from ...deadline import Deadline
from ...exceptions import DamagedAnswerError, ZkgroupsException
from ..kazoo_compat import connecting, internals
from ..kazoo_compat.closing import Endpoints, close_client, endpoints
from ..kazoo_compat.connecting import SilentLog, connect_only_to, second_client
from ..kazoo_compat.safe_decoding import decode_counted_names
from ..session.errors import LOSSES
from ..session.session import Session

# MultiRead: encode many reads into one request, and decode the answer.
#
# Servers support the request since ZooKeeper 3.6; kazoo does not. The format, as observed with 3.9:
#
#     request    for each read: kind, false, -1 (`>i?i`), path, one byte for a watch, which is ignored; then the end
#     answer     for each read: kind, false, 0; then data and stat (kind 4), or names (kind 8);
#                or -1, false, error; then the error once more; then the end
#     end        -1, true, -1
#
# Strings and data are preceded by their length, lists of names by their count. A read of a missing or forbidden node
# fails alone. kazoo decodes answers on its connection thread, so only the bytes are kept there. `records` and
# `listings` decode them on the caller's thread, and raise `DamagedAnswerError` for bytes that no server sends.


class Kind(IntEnum):
    """What to read: the data and stat of a node, or the names of its children."""

    NODE = 4
    CHILDREN = 8


_NODE: Final = int(Kind.NODE)
_CHILDREN: Final = int(Kind.CHILDREN)  # comparing with an integer is faster than with an enum member

GONE: Final[int] = NoNodeError.code
DENIED: Final[int] = NoAuthError.code

Record: TypeAlias = tuple[bytes, int, int, int, int, int, int]
"""Data, czxid, mzxid, ctime, mtime, version, session: the fields of `Node` without the path."""

_OPERATION: Final = Struct(">i?i")
_INT: Final = Struct(">i")
_ERROR: Final = -1
_NO_WATCH: Final = b"\0"

END: Final = _OPERATION.pack(-1, True, -1)
"""The end of every request and every answer."""

DATA_AT: Final = _OPERATION.size + _INT.size
STAT_BYTES: Final = 68
"""A record is a header, the length of its data, the data, and a stat of this length."""

GOOD_HEAD: Final = _OPERATION.pack(Kind.NODE, False, 0) + b"\0\0\0"
"""The first bytes of a node that exists and has less than 256 bytes of data. The next byte is the length."""

_MULTI_READ: Final = 22
_HARMLESS: Final[bytes] = bytes(Exists("/", None).serialize())

_HEAD: Final = Struct(">i5xi")
"""The kind of a result and the number after its header. The nine bytes of the end are never read."""


class NewRequest:
    """A request that servers before ZooKeeper 3.6 do not know, sent only to a server that is known to support it.

    An older server answers this request before earlier ones, which kazoo's thread does not survive. Which server
    receives a request is certain only at the moment of sending, on that thread, when kazoo reads the `type`. If
    `is_supported` returns False there, a request that every server supports is sent instead.
    """

    def __init__(self, request_type: int, body: bytes, is_supported: Callable[[], bool]) -> None:
        self._type = request_type
        self._body = body
        self._is_supported = is_supported
        self._sent: bool | None = None

    @property
    def type(self) -> int:
        """Read by kazoo, for the first time when it sends."""
        if self._sent is None:
            self._sent = self._is_supported()
        return self._type if self._sent else int(Exists.type)

    def serialize(self) -> bytes:
        """Called by kazoo as it sends, after it has read the type."""
        return self._body if self._sent else _HARMLESS

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> bytes:
        """Called by kazoo on its connection thread, so it must be fast."""
        return answer[offset:]


class MultiRead(NewRequest):
    """Many reads in one request."""

    def __init__(self, operations: bytes, is_supported: Callable[[], bool]) -> None:
        super().__init__(_MULTI_READ, operations + END, is_supported)


class SentRequest:
    """Receives the answer to a `NewRequest`, and notes what it shows about the server."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._connection: Endpoints | None = None  # the connection on which it was sent
        self.answer = session.client.handler.async_result()

    def is_supported(self) -> bool:
        """Called by kazoo as it sends."""
        connection = endpoints(self._session.client)
        supported = is_supported(self._session, connection)
        self._connection = connection if supported else None
        return supported

    def on_answer(self, connection: Endpoints) -> None:
        """Called with the connection on which the request was answered."""
        if connection not in self._session.reads_many:
            self._session.reads_many = {connection: True}
            _SERVERS.answered(connection)

    def set(self, answer: bytes) -> None:
        """Called by kazoo with the answer."""
        if self._connection is not None:
            self.on_answer(self._connection)
        self.answer.set(answer)

    def set_exception(self, error: BaseException) -> None:
        """Called by kazoo with the error. Note it at once, before another such request is sent."""
        connection = self._connection
        if connection is not None and isinstance(error, UnimplementedError):
            _SERVERS.set_supports(connection, False)
        elif connection is not None and isinstance(error, LOSSES) and connection not in self._session.reads_many:
            _SERVERS.lost(connection)
        self.answer.set_exception(error)


def single_read(path: bytes) -> bytes:
    """Encode one read, without its header."""
    return _INT.pack(len(path)) + path + _NO_WATCH


def operations(kind: Kind, directory: bytes, names: Sequence[str]) -> bytes:
    """Encode the reads of these nodes below a directory.

    The reads of names of one length have the same prefix. So they are joined, which takes a tenth of the time.
    """
    path = directory + b"/"
    parts: list[bytes] = []
    for length, equally_long in _by_length(tuple(names)):
        prefix = _HEADS[kind] + _INT.pack(len(path) + length) + path
        parts += (prefix, (_NO_WATCH + prefix).join(equally_long), _NO_WATCH)
    return b"".join(parts)


_HEADS: Final = {kind: _OPERATION.pack(kind, False, -1) for kind in Kind}


@lru_cache(maxsize=256)  # most topics have the same partitions as another topic
def _by_length(names: tuple[str, ...]) -> tuple[tuple[int, tuple[bytes, ...]], ...]:
    encoded = (name.encode() for name in names)
    return tuple((length, tuple(equally_long)) for length, equally_long in groupby(encoded, len))


def encode_result(kind: Kind, body: bytes) -> bytes:
    """Encode the answer to a single read as part of an answer to many."""
    return _OPERATION.pack(kind, False, 0) + body


def encode_error(error: int) -> bytes:
    """Encode the failure of a single read as part of an answer to many."""
    return _OPERATION.pack(_ERROR, False, error) + _INT.pack(error)


def records(answer: bytes, count: int) -> Iterator[Record | int]:
    """Decode the nodes in an answer. A failed read gives the error code."""
    position, end = 0, len(answer) - len(END)
    head = _HEAD.unpack_from
    try:
        for _ in range(count):
            kind, number = head(answer, position)
            position += _HEAD.size
            if kind == _ERROR:
                yield number
                continue
            length = number if number > 0 else 0  # null data has the length -1
            start = position
            position += length + STAT_BYTES
            if kind != _NODE or number < -1 or position > end:
                raise ValueError(f"a record of kind {kind} and {number} bytes")
            yield _record(length).unpack_from(answer, start)
    except (struct.error, ValueError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> DamagedAnswerError:
    return DamagedAnswerError(f"a server sent a damaged answer to many reads ({error})")


class PlainOffsets(NamedTuple):
    """The offsets in some nodes as columns, with the mzxid and the mtime of each node."""

    offsets: Sequence[int]
    zxids: Sequence[int]
    modified_ms: Sequence[int]


def plain_offsets(answer: bytes, count: int) -> PlainOffsets | None:
    """Return the offsets of nodes as columns. None unless all nodes exist and contain plain numbers."""
    found: list[tuple[Any, ...]] = []
    position = 0
    try:
        for _ in range(count):
            length = answer[position + DATA_AT - 1]
            found.append(_PLAIN[length](answer, position))
            position += DATA_AT + length + STAT_BYTES
    except (IndexError, struct.error):
        return None
    heads, numbers, zxids, modified_ms = zip(*found, strict=True) if found else ((), (), (), ())
    if position + len(END) != len(answer) or {*heads} - {GOOD_HEAD} or not all(map(bytes.isdigit, numbers)):
        return None
    return PlainOffsets([*map(int, numbers)], zxids, modified_ms)


_PLAIN: Final = [Struct(f">{len(GOOD_HEAD)}sx{length}s8xq8xq36x").unpack_from for length in range(len(str(MAX_OFFSET)))]
"""By the length of the data: read the head, the data, the mzxid and the mtime of a node. Longer data is not plain."""


@lru_cache(maxsize=1024)
def _record(length: int) -> Struct:
    return Struct(f">{length}sqqqqi8xq16x")


def listings(answer: bytes, count: int) -> Iterator[list[str] | int]:
    """Decode the lists of names in an answer. A failed read gives the error code.

    Most topics have the same partitions as another topic, and a server lists them in the same order. So a list is first
    compared with the last one of the same length.
    """
    position = 0
    known: dict[int, tuple[bytes, list[str]]] = {}
    try:
        for _ in range(count):
            kind, number = _HEAD.unpack_from(answer, position)
            position += _HEAD.size
            if kind == _ERROR:
                yield number
                continue
            if kind != _CHILDREN:
                raise ValueError(f"a list of kind {kind}")
            same, found = known.get(number, (b"", []))
            if not same or not answer.startswith(same, position):
                found, end = decode_counted_names(answer, position, number)
                same, found = known[number] = answer[position:end], found
            position += len(same)
            yield found.copy()
    except (struct.error, ValueError) as error:
        raise _damaged(error) from error


# Find out whether a server answers many reads in one request, without harm.
#
# Servers before ZooKeeper 3.6 do not. They log an error for such a request, and close the connection. So each process
# probes each server once, in the cheapest way that the server supports:
#
# 1. ask for its version, with the four-letter word `srvr`, on a connection without a session; 2. if it does not
# answer, send the request itself, on a second connection with the same credentials.
#
# The result is remembered for the address. But the address may lead to another server later: during a rollback, or
# behind a load balancer. Then an old server closes the main connection on the first such request. Nothing is lost:
# all pending requests are repeated or resolved, and the process does not use the request with this address again. If
# the connection is lost without an answer to the request, and no such request was answered on it before, the reason
# may be the same. Then the server is probed once more. After the second loss in a row it counts as an old server.


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
        """Return whether the server at the other end supports the request, or None if unknown."""
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
    """Return the server's version, or None if it does not report one, because four-letter words may be disabled."""
    (address, port, *_), name = connection.peer, connection.hostname
    return connecting.version(client, name or address, address, port, deadline)


def _answers_multiread(client: Any, connection: Endpoints, deadline: Deadline) -> bool | None:
    """Return whether the server answers such a request on a second connection, or None if it does not answer at all."""
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
