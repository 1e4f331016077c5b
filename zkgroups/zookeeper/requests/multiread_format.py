"""MultiRead: encode many reads into one request, and decode the answer.

Servers support the request since ZooKeeper 3.6; kazoo does not. The format, as observed with 3.9:

    request    for each read: kind, false, -1 (`>i?i`), path, one byte for a watch, which is ignored; then the end
    answer     for each read: kind, false, 0; then data and stat (kind 4), or names (kind 8);
               or -1, false, error; then the error once more; then the end
    end        -1, true, -1

Strings and data are preceded by their length, lists of names by their count. A read of a missing or forbidden node
fails alone. kazoo decodes answers on its connection thread, so only the bytes are kept there. `records` and `listings`
decode them on the caller's thread, and raise `DamagedAnswerError` for bytes that no server sends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import groupby
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.serialization import Exists

from ...core.znodes.offset_codec import MAX_OFFSET
from ...exceptions import DamagedAnswerError
from ..kazoo_compat.safe_decoding import decode_counted_names


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


class MultiRead:
    """Many reads in one request, sent only to a server that is known to support it.

    An older server answers this request before earlier ones, which kazoo's thread does not survive. Which server
    receives a request is certain only at the moment of sending, on that thread, when kazoo reads the `type`. If
    `is_supported` returns False there, a request that every server supports is sent instead.
    """

    def __init__(self, operations: bytes, is_supported: Callable[[], bool]) -> None:
        self._operations = operations
        self._is_supported = is_supported
        self._sent: bool | None = None

    @property
    def type(self) -> int:
        """Read by kazoo, for the first time when it sends."""
        if self._sent is None:
            self._sent = self._is_supported()
        return _MULTI_READ if self._sent else Exists.type

    @property
    def withheld(self) -> bool:
        """True if another request was sent, because the server may not support this one."""
        return self._sent is False

    def serialize(self) -> bytes:
        """Called by kazoo as it sends, after it has read the type."""
        return self._operations + END if self._sent else _HARMLESS

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> bytes:
        """Called by kazoo on its connection thread, so it must be fast."""
        return answer[offset:]


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
