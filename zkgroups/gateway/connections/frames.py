"""Frames: a length of four bytes, and then as many bytes as it says. Long frames are passed on in parts."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from typing import Final

_SIZE: Final = struct.Struct(">i")
_SMALLEST: Final = 4
_PART: Final = 1 << 18


class FrameError(Exception):
    """A frame of a length that is not accepted, or a connection that stalls or ends within a frame."""


class Frame:
    """A frame that is being read. Its first bytes can be read repeatedly, the whole frame only once."""

    def __init__(self, stream: asyncio.StreamReader, size: int, stall_timeout: float) -> None:
        self.size = size
        self._stream = stream
        self._stall_timeout = stall_timeout
        self._start = b""

    async def start(self, size: int) -> bytes:
        """Return the first bytes: at least `size`, unless the frame is shorter."""
        missing = min(size, self.size) - len(self._start)
        if missing > 0:
            self._start += await self._read(missing)
        return self._start

    async def whole(self) -> bytes:
        """Return the frame without its length."""
        return await self.start(self.size)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the frame with its length, in parts."""
        yield _SIZE.pack(self.size) + self._start
        left = self.size - len(self._start)
        while left:
            part = await self._some(min(left, _PART))
            left -= len(part)
            yield part

    async def _read(self, size: int) -> bytes:
        parts = []
        while size:
            parts.append(await self._some(size))
            size -= len(parts[-1])
        return b"".join(parts)

    async def _some(self, most: int) -> bytes:
        """Return the next bytes. A sender may be slow, but some bytes must come in time."""
        try:
            async with asyncio.timeout(self._stall_timeout):
                part = await self._stream.read(most)
        except TimeoutError as error:
            raise FrameError(f"no bytes for {self._stall_timeout:g} s within a frame") from error
        if not part:
            raise FrameError("the connection ended within a frame")
        return part


class FrameReader:
    """Reads frames from a stream, one after the other."""

    def __init__(self, stream: asyncio.StreamReader, *, longest: int, stall_timeout: float) -> None:
        self._stream = stream
        self._longest = longest
        self._stall_timeout = stall_timeout

    @property
    def ended(self) -> bool:
        """True if the other side has closed the connection, and everything was read."""
        return self._stream.at_eof()

    async def next(self, *, idle_timeout: float | None = None, busy: Callable[[], bool] = bool) -> Frame | None:
        """Return the next frame; None at the end of the stream. The bytes of the frame may come later.

        After the idle timeout the stream counts as ended, unless `busy` returns True. The previous frame must have been
        read to its end.
        """
        first = await self._first_bytes(idle_timeout, busy)
        if not first:
            return None
        rest = await Frame(self._stream, _SIZE.size - len(first), self._stall_timeout).whole()
        (size,) = _SIZE.unpack(first + rest)
        if not _SMALLEST <= size <= self._longest:
            raise FrameError(f"a frame of {size} bytes; at most {self._longest} are accepted")
        return Frame(self._stream, size, self._stall_timeout)

    async def _first_bytes(self, idle_timeout: float | None, busy: Callable[[], bool]) -> bytes:
        while True:
            try:
                async with asyncio.timeout(idle_timeout):
                    return await self._stream.read(_SIZE.size)
            except TimeoutError:
                if not busy():
                    return b""


async def send(writer: asyncio.StreamWriter, data: bytes, stall_timeout: float) -> None:
    """Send bytes. Wait while the other side does not read, but not for ever."""
    writer.write(data)
    try:
        async with asyncio.timeout(stall_timeout):
            await writer.drain()
    except TimeoutError as error:
        raise FrameError(f"the other side read nothing for {stall_timeout:g} s") from error
