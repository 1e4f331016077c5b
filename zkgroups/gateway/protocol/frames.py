"""Frames: four bytes with a length, and then that many bytes. Long frames are passed on in parts."""

from __future__ import annotations

import struct
from typing import Final

from ...kafka.wire import codec
from ...kafka.wire.codec import RequestKind
from ...kafka.wire.errors import DamagedRequestError

SIZE: Final = struct.Struct(">i")
_SMALLEST: Final = 4


class FrameError(Exception):
    """A frame of a length that is not accepted, or a connection that stalls or ends within a frame."""


class FrameSplitter:
    """Splits received bytes into frames.

    Look at the start of the next frame, and then either pass it on or take it as a whole. A frame can be passed on
    before all of it has arrived, so that it is never in memory as a whole. Adjacent frames are passed on together.

    >>> splitter = FrameSplitter(longest=100)
    >>> splitter.add(b"\\0\\0\\0\\5first" b"\\0\\0\\0\\6sec")
    >>> splitter.start(3)
    b'fir'
    >>> splitter.pass_on()
    >>> splitter.start(3)
    b'sec'
    >>> bytes(splitter.take()), splitter.whole()
    (b'\\x00\\x00\\x00\\x05first', None)
    >>> splitter.add(b"ond")
    >>> splitter.whole()
    b'second'
    """

    def __init__(self, *, longest: int) -> None:
        self._longest = longest
        self._data: bytes | bytearray = b""
        self._taken = 0
        """The bytes of the data before this index were taken."""
        self._next = 0
        """Where the next frame begins: after the data, while the rest of the previous frame has not arrived."""

    @property
    def held(self) -> int:
        """The number of bytes that were received, but not taken yet."""
        return len(self._data) - self._taken

    @property
    def is_within(self) -> bool:
        """True while the rest of a frame that is passed on has not arrived."""
        return self._next > len(self._data)

    @property
    def is_incomplete(self) -> bool:
        """True if a frame has begun to arrive. All complete frames must have been passed on or taken."""
        return self.held > 0 or self.is_within

    @property
    def size(self) -> int | None:
        """The size of the next frame, without its length. None until the length has arrived."""
        if len(self._data) - self._next < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(self._data, self._next)
        if not _SMALLEST <= size <= self._longest:
            raise FrameError(f"a frame has {size} bytes; only {_SMALLEST} to {self._longest} are accepted")
        return int(size)

    def add(self, data: bytes) -> None:
        """Add received bytes."""
        if not self._data:
            self._data = data
            return
        if not isinstance(self._data, bytearray):
            self._data = bytearray(self._rest())
            self._next -= self._taken
            self._taken = 0
        self._data += data

    def start(self, most: int) -> bytes | None:
        """Return the first bytes of the next frame, fewer if it is shorter. None until they have arrived."""
        if (size := self.size) is None:
            return None
        begin = self._next + SIZE.size
        end = begin + min(size, most)
        return bytes(self._data[begin:end]) if end <= len(self._data) else None

    def pass_on(self) -> None:
        """Pass on the next frame, whose start was seen. `take` returns its bytes."""
        size = self.size
        assert size is not None
        self._next += SIZE.size + size

    def take(self) -> bytes | memoryview:
        """Take the bytes of all frames that are passed on, as far as they have arrived."""
        if self._next == self._taken:
            return b""
        end = min(self._next, len(self._data))
        found = memoryview(self._data)[self._taken : end]
        if isinstance(self._data, bytearray):
            found = memoryview(bytes(found))  # the array changes
        self._drop(end)
        return found

    def whole(self) -> bytes | None:
        """Take the next frame, without its length. None until all of it has arrived.

        All frames that are passed on must have been taken.
        """
        size = self.size
        if size is None or self.held < SIZE.size + size:
            return None
        begin = self._taken + SIZE.size
        found = bytes(memoryview(self._data)[begin : begin + size])
        self._next = begin + size
        self._drop(self._next)
        return found

    def _rest(self) -> memoryview:
        return memoryview(self._data)[self._taken :]

    def _drop(self, end: int) -> None:
        """Forget the bytes before this index."""
        if end == len(self._data):
            self._data = b""
        elif isinstance(self._data, bytearray):
            del self._data[:end]
        else:
            self._taken = end
            return
        self._taken = 0
        self._next -= end


# The name that a client gives itself (`client.id`), and its software, without decoding the rest of its request.


NAME_START: Final = 10
"""The number of bytes before the name. The last two of them contain its length."""
SOFTWARE_END: Final = 1024
"""The software of a client is within these first bytes of an ApiVersions request, unless its name is very long."""
_LENGTH: Final = struct.Struct(">h")


def name_end(start: bytes) -> int:
    """Return where the name ends, given the first `NAME_START` bytes of a request without its length.

    >>> name_end(bytes.fromhex("0003 0001 00000001 0002")), name_end(bytes.fromhex("0003 0001 00000001 ffff"))
    (12, 10)
    """
    try:
        (length,) = _LENGTH.unpack_from(start, NAME_START - _LENGTH.size)
    except struct.error as error:
        raise DamagedRequestError("a request is too short") from error
    return NAME_START + max(int(length), 0)


def is_librdkafka(start: bytes) -> bool:
    """Return whether a client uses librdkafka, given the start of its ApiVersions request.

    All of them name librdkafka in the name or in the version of their software.

    >>> is_librdkafka(bytes.fromhex("0012 0003 00000001 0003") + b"app\\0\\x0blibrdkafka\\x072.16.1\\0")
    True
    >>> is_librdkafka(bytes.fromhex("0012 0000 00000001 0007") + b"rdkafka")
    False
    """
    return b"rdkafka" in start[name_end(start) :]


# Find out whether a Produce request expects an answer, without decoding its messages.


_KIND_SIZE: Final = 8
_INT16: Final = struct.Struct(">h")
_FIRST_WITH_TRANSACTIONS: Final = 3
_FIRST_FLEXIBLE: Final = 9

START_SIZE: Final = 2 * 32_767 + 64
"""The number of bytes that `expects_answer` needs at most: the header, and the id of a transaction."""


def expects_answer(start: bytes) -> bool:
    """Return False for `acks=0`, given the first bytes of a Produce request without its length.

    >>> expects_answer(bytes.fromhex("0000 0003 00000001 0001 63  ffff 0000")), expects_answer(
    ...     bytes.fromhex("0000 0009 00000001 ffff 00  02 74 ffff"))
    (False, True)
    """
    version = RequestKind.read(start).version
    try:
        at = _after_text(start, _KIND_SIZE)
        if version >= _FIRST_FLEXIBLE:
            at = codec.skip_tagged_fields(start, at)
            size, at = codec.unsigned_varint(start, at)
            at += max(size - 1, 0)
        elif version >= _FIRST_WITH_TRANSACTIONS:
            at = _after_text(start, at)
        (acks,) = _INT16.unpack_from(start, at)
    except (IndexError, ValueError, struct.error) as error:
        raise DamagedRequestError("a Produce request cannot be read") from error
    return bool(acks)


def _after_text(start: bytes, at: int) -> int:
    (size,) = _INT16.unpack_from(start, at)
    return at + _INT16.size + max(int(size), 0)
