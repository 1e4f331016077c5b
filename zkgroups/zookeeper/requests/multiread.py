"""Many reads in one request: the bytes of a question, and the bytes of its answer.

Servers know the request since ZooKeeper 3.6; kazoo does not. On the wire, tried on 3.9:

    question   for each read: kind, false, -1 (`>i?i`), path, one byte for a watch, which is ignored; then the end
    answer     for each read: kind, false, 0; then data and stat (kind 4), or names (kind 8);
               or -1, false, error; then the error once more; then the end
    end        -1, true, -1

Texts and data are preceded by their length, lists of names by their number. A read fails alone if its node is gone or
may not be read. kazoo decodes answers on its connection thread, so there only the bytes are kept. `records` and
`listings` decode them on the caller's thread, and raise `DamagedAnswerError` for bytes that no server sends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import groupby
from struct import Struct
from typing import Final, TypeAlias

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.serialization import Exists

from ...core.znodes.offset_codec import is_plain_offset
from ...exceptions import DamagedAnswerError
from .safe_decoding import list_of_names


class Kind(IntEnum):
    """What is read of a node."""

    NODE = 4
    CHILDREN = 8


_NODE: Final = int(Kind.NODE)
_CHILDREN: Final = int(Kind.CHILDREN)  # comparing with an integer is faster than with an enum member

GONE: Final[int] = NoNodeError.code
DENIED: Final[int] = NoAuthError.code

Record: TypeAlias = tuple[bytes, int, int, int, int, int, int]
"""Data, czxid, mzxid, ctime, mtime, version, session: a node without what nobody here looks at."""

_OPERATION: Final = Struct(">i?i")
_INT: Final = Struct(">i")
_ERROR: Final = -1
_NO_WATCH: Final = b"\0"

END: Final = _OPERATION.pack(-1, True, -1)
"""What stands at the end of every answer."""

DATA_AT: Final = _OPERATION.size + _INT.size
STAT_BYTES: Final = 68
"""A record is a header, the length of its data, the data, and a stat of this length."""

GOOD_HEAD: Final = _OPERATION.pack(Kind.NODE, False, 0) + b"\0\0\0"
"""How a record begins that is there, with data shorter than 256 bytes: the next byte is its length."""

_MULTI_READ: Final = 22
_NOTHING: Final[bytes] = bytes(Exists("/", None).serialize())

_HEAD: Final = Struct(">i5xi")
"""The kind of an answer and the number that follows its header; the nine bytes of an end are never looked at."""


class _Request:
    """A request for kazoo's connection; its answer is the bytes as they came."""

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> bytes:
        """Called by kazoo with what was answered, on its own thread: nothing is done here that takes time."""
        return answer[offset:]


class MultiRead(_Request):
    """Many reads in one request, sent only to a server that is known to understand it.

    An older one answers before it has answered what was asked earlier, and kazoo's thread does not survive that. Which
    server we are with is certain only at the moment of sending, on that thread: there kazoo asks for the `type`. Where
    it must not be sent, a request that every server understands is sent in its place.
    """

    def __init__(self, operations: bytes, understood: Callable[[], bool]) -> None:
        self._operations = operations
        self._understood = understood
        self._sent: bool | None = None

    @property
    def type(self) -> int:
        """Looked at by kazoo, first when it sends."""
        if self._sent is None:
            self._sent = self._understood()
        return _MULTI_READ if self._sent else Exists.type

    @property
    def withheld(self) -> bool:
        """Whether something else was sent, to a server that may not understand this."""
        return self._sent is False

    def serialize(self) -> bytes:
        """Called by kazoo as it sends, after it has looked at the type."""
        return self._operations + END if self._sent else _NOTHING


class Read(_Request):
    """One read, which every server knows."""

    def __init__(self, kind: Kind, path: bytes) -> None:
        self.type = int(kind)
        self._path = path

    def serialize(self) -> bytes:
        """Called by kazoo as it sends."""
        return _INT.pack(len(self._path)) + self._path + _NO_WATCH


def operations(kind: Kind, directory: bytes, names: Sequence[str]) -> bytes:
    """The operations that read these nodes below a directory.

    Names of one length differ by nothing but themselves, so they are joined, which takes a tenth of the time.
    """
    path = directory + b"/"
    parts: list[bytes] = []
    for length, equally_long in _by_length(tuple(names)):
        before = _HEADS[kind] + _INT.pack(len(path) + length) + path
        parts += (before, (_NO_WATCH + before).join(equally_long), _NO_WATCH)
    return b"".join(parts)


_HEADS: Final = {kind: _OPERATION.pack(kind, False, -1) for kind in Kind}


@lru_cache(maxsize=256)  # most topics have the partitions that another had, too
def _by_length(names: tuple[str, ...]) -> tuple[tuple[int, tuple[bytes, ...]], ...]:
    encoded = (name.encode() for name in names)
    return tuple((length, tuple(equally_long)) for length, equally_long in groupby(encoded, len))


def answered(kind: Kind, body: bytes) -> bytes:
    """The answer to a single read, as it would stand in the answer to many."""
    return _OPERATION.pack(kind, False, 0) + body


def failed(error: int) -> bytes:
    """The failure of a single read, as it would stand in the answer to many."""
    return _OPERATION.pack(_ERROR, False, error) + _INT.pack(error)


def records(answer: bytes, count: int) -> Iterator[Record | int]:
    """The nodes in an answer, of each the number of its error where it has one."""
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
    return DamagedAnswerError(f"the answer of a server to many reads is damaged ({error})")


def plain_offsets(answer: bytes, count: int) -> tuple[list[int], list[int]] | None:
    """The mzxids and the offsets of nodes that are all there and hold plain numbers; None where one does not."""
    zxids: list[int] = []
    offsets: list[int] = []
    position = 0
    for _ in range(count):
        start = position + DATA_AT
        if not answer.startswith(GOOD_HEAD, position) or start > len(answer):
            return None
        end = start + answer[start - 1]
        data = answer[start:end]
        position = end + STAT_BYTES
        if not is_plain_offset(data) or position > len(answer):
            return None
        offsets.append(int(data))
        zxids += _MZXID.unpack_from(answer, end)
    return zxids, offsets


_MZXID: Final = Struct(">8xq")


@lru_cache(maxsize=1024)
def _record(length: int) -> Struct:
    return Struct(f">{length}sqqqqi8xq16x")


def listings(answer: bytes, count: int) -> Iterator[list[str] | int]:
    """The lists of names in an answer, of each the number of its error where it has one.

    Most topics have as many partitions as another, and a server lists them in the same order: that is compared at once.
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
                found, end = list_of_names(answer, position, number)
                same, found = known[number] = answer[position:end], found
            position += len(same)
            yield found.copy()
    except (struct.error, ValueError) as error:
        raise _damaged(error) from error
