"""One side of a connection: bytes are received and sent without copies, and with back-pressure both ways.

asyncio's own streams copy all bytes twice, and set a timer for each read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

READ_AHEAD: Final = 1 << 18
"""So many bytes are received before they are needed. Also the limit of bytes that wait to be sent."""
_MOST_CHUNKS: Final = 64
"""More chunks of received bytes are joined, because each needs memory of its own."""


class StalledError(Exception):
    """The other side has not read for too long."""


class ByteStream(asyncio.Protocol):
    """Receives and sends bytes. `ended` is set when the other side has closed the connection."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._chunks: deque[memoryview] = deque()
        self._held = 0
        self._receives = True
        self._arrived: asyncio.Future[bool] | None = None
        self._sent: asyncio.Future[bool] | None = None
        self._stalled = False

    # Received bytes

    @property
    def held(self) -> int:
        """The number of bytes that were received and not taken."""
        return self._held

    @property
    def at_end(self) -> bool:
        """True if the other side has closed the connection, and all bytes were taken."""
        return self.ended.is_set() and not self._held

    async def more(self, timeout: float | None = None) -> bool:
        """Wait until more bytes arrive, or until the end. Return False after the timeout, in seconds."""
        if self.ended.is_set():
            return True
        self._resume_receiving()
        self._arrived = asyncio.get_running_loop().create_future()
        return await _result(self._arrived, timeout)

    def peek(self, size: int) -> bytes:
        """Return the next bytes without taking them: this number of bytes, or fewer if fewer are held."""
        if self._chunks and len(self._chunks[0]) < min(size, self._held):
            self._join()
        return bytes(self._chunks[0][:size]) if self._chunks else b""

    def take(self, most: int) -> memoryview:
        """Take some of the next bytes. Some must be held."""
        chunk = self._chunks.popleft()
        if len(chunk) > most:
            self._chunks.appendleft(chunk[most:])
            chunk = chunk[:most]
        self._held -= len(chunk)
        if not self._receives and self._held <= READ_AHEAD // 2:
            self._resume_receiving()
        return chunk

    def _join(self) -> None:
        self._chunks = deque([memoryview(b"".join(self._chunks))])

    def _resume_receiving(self) -> None:
        if not self._receives:
            self._receives = True
            self._transport.resume_reading()

    # Sending

    async def send(self, data: bytes | memoryview, stall_timeout: float) -> None:
        """Send bytes. Wait while the other side does not read, and raise StalledError after the timeout.

        Only one task at a time may send.
        """
        if self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._transport.write(data)
        if self._sent is not None and not await _result(self._sent, stall_timeout):
            self._stalled = True
            raise StalledError(f"the other side read nothing for {stall_timeout:g} s")

    def close(self) -> None:
        """Close the connection. Bytes that were sent still arrive, unless the other side has stalled."""
        if self._stalled:
            self.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=READ_AHEAD)
        self._transport = transport
        self._has_tls = transport.get_extra_info("sslcontext") is not None

    def data_received(self, data: bytes) -> None:
        self._chunks.append(memoryview(data))
        self._held += len(data)
        if len(self._chunks) > _MOST_CHUNKS:
            self._join()
        if self._held >= READ_AHEAD and self._receives:
            self._receives = False
            self._transport.pause_reading()
        _wake(self._arrived)

    def eof_received(self) -> bool:
        self._end()
        return not self._has_tls  # without TLS, the answers that are due can still be sent

    def connection_lost(self, _error: Exception | None) -> None:
        self._end()
        _wake(self._sent)
        self._sent = None

    def pause_writing(self) -> None:
        self._sent = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._sent)
        self._sent = None

    def _end(self) -> None:
        self.ended.set()
        _wake(self._arrived)


def _wake(waiting: asyncio.Future[bool] | None, result: bool = True) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(result)


async def _result(waiting: asyncio.Future[bool], timeout: float | None) -> bool:
    """Return the result of a future; False after the timeout. This is cheaper than `asyncio.timeout`."""
    if timeout is None:
        return await waiting
    timer = asyncio.get_running_loop().call_later(timeout, _wake, waiting, False)
    try:
        return await waiting
    finally:
        timer.cancel()
