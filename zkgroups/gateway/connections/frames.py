"""Frames: a length of four bytes, and then as many bytes as it says. Long frames are passed on in parts."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from typing import Final

from .byte_stream import ByteStream

_SIZE: Final = struct.Struct(">i")
_SMALLEST: Final = 4


class FrameError(Exception):
    """A frame of a length that is not accepted, or a connection that stalls or ends within a frame."""


class Frame:
    """A frame that is being received. It can be taken from the stream only once, by `parts` or by `whole`."""

    def __init__(self, stream: ByteStream, size: int, stall_timeout: float) -> None:
        self.size = size
        self._stream = stream
        self._stall_timeout = stall_timeout
        self._taken: bytes | None = None

    async def start(self, size: int) -> bytes:
        """Return the first bytes: at least `size`, unless the frame is shorter. They must not be taken yet."""
        wanted = _SIZE.size + min(size, self.size)
        while self._stream.held < wanted:
            await self._more()
        return self._stream.peek(wanted)[_SIZE.size :]

    async def whole(self) -> bytes:
        """Return the frame without its length."""
        self._taken = b"".join([part async for part in self.parts()])
        return self._taken[_SIZE.size :]

    async def parts(self) -> AsyncIterator[bytes | memoryview]:
        """Yield the frame with its length, in parts."""
        if self._taken is not None:
            yield self._taken
            return
        left = _SIZE.size + self.size
        while left:
            if not self._stream.held:
                await self._more()
                continue
            part = self._stream.take(left)
            left -= len(part)
            yield part

    async def _more(self) -> None:
        """Wait for bytes. A sender may be slow, but some bytes must come in time."""
        await _more(self._stream, self._stall_timeout)


class FrameReader:
    """Reads frames from a stream, one after the other."""

    def __init__(self, stream: ByteStream, *, longest: int, stall_timeout: float) -> None:
        self._stream = stream
        self._longest = longest
        self._stall_timeout = stall_timeout

    async def next(self, *, idle_timeout: float | None = None, busy: Callable[[], bool] = bool) -> Frame | None:
        """Return the next frame; None at the end of the stream. The bytes of the frame may come later.

        After the idle timeout the stream counts as ended, unless `busy` returns True. The previous frame must have been
        taken.
        """
        stream = self._stream
        while not stream.held:
            if stream.at_end or not (await stream.more(idle_timeout) or busy()):
                return None
        while stream.held < _SIZE.size:
            await _more(stream, self._stall_timeout)
        (size,) = _SIZE.unpack(stream.peek(_SIZE.size))
        if not _SMALLEST <= size <= self._longest:
            raise FrameError(f"a frame of {size} bytes; at most {self._longest} are accepted")
        return Frame(stream, size, self._stall_timeout)


async def _more(stream: ByteStream, stall_timeout: float) -> None:
    """Wait for more bytes within a frame."""
    before = stream.held
    if not await stream.more(stall_timeout):
        raise FrameError(f"no bytes for {stall_timeout:g} s within a frame")
    if stream.held == before:
        raise FrameError("the connection ended within a frame")
