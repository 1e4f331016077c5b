"""One side of a connection through the gateway: it receives frames and sends bytes, with limits for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ..protocol.frames import FrameError, FrameSplitter

READ_AHEAD: Final = 1 << 18
"""In bytes: how much to receive before it is needed, and how much may wait to be sent."""


class StalledError(Exception):
    """The other side has not read for too long."""


class FrameStream(asyncio.Protocol):
    """Receives frames and sends bytes. Bytes are sent at once, from the callback that has received them.

    `on_change` is called when bytes have arrived, when bytes can be sent again, and at the end of the connection.
    """

    def __init__(self, *, longest: int) -> None:
        self.frames = FrameSplitter(longest=longest)
        self.on_change: Callable[[], None] = _nothing
        self.ended = False
        """True if the other side has closed the connection. Frames may be left."""
        self._loop = asyncio.get_running_loop()
        self._received_at = self._loop.time()
        self._full_since: float | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._receives = True

    # Received frames

    def take(self) -> bytes | memoryview:
        """Take the bytes of all frames that are passed on, as far as they have arrived."""
        found = self.frames.take()
        self._receive_more(READ_AHEAD // 2)
        return found

    def take_frame(self) -> bytes | None:
        """Take the next frame as a whole, without its length. None until all of it has arrived."""
        found = self.frames.whole()
        self._receive_more(READ_AHEAD // 2)
        return found

    async def receive_frame(self) -> bytes:
        """Receive the next frame as a whole, without its length."""
        try:
            while (found := self.take_frame()) is None:
                if self.ended:
                    raise FrameError("the connection ended in the middle of a frame")
                self._arrived = self._loop.create_future()
                self._receive_more(self.frames.held)
                await self._arrived
        finally:
            self._arrived = None
        return found

    def _receive_more(self, most_held: int) -> None:
        if not self._receives and self.frames.held <= most_held and not self.is_closing:
            self._receives = True
            self._received_at = self._loop.time()
            self._transport.resume_reading()

    def _pause_if_enough(self) -> None:
        if self.frames.held >= READ_AHEAD and self._arrived is None and self._receives and not self.is_closing:
            self._receives = False
            self._transport.pause_reading()

    # Sending

    @property
    def is_full(self) -> bool:
        """True while too many bytes wait to be sent."""
        return self._full_since is not None

    @property
    def is_closing(self) -> bool:
        """True if the connection is closed, or will be."""
        return self._transport.is_closing()

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes. They are lost if the connection is closed."""
        if data and not self.is_closing:
            self._transport.write(data)

    def close(self, longest: float) -> None:
        """Close the connection. Bytes that were sent still arrive, unless that takes longer, in seconds."""
        if self._transport.get_write_buffer_size():
            self._loop.call_later(longest, self.abort)
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    # Timeouts

    def check(self, timeout: float, *, is_awaited: bool) -> None:
        """Raise an error if the other side has not read, or has stopped within a frame, for so many seconds.

        - `is_awaited`: the next frame would be used as soon as it arrives. Otherwise it may take any time.
        """
        now = self._loop.time()
        if self._full_since is not None and now >= self._full_since + timeout:
            self.abort()
            raise StalledError(f"the other side read nothing for {timeout:g} s")
        if self._arrived is None and not is_awaited:
            self._received_at = now
        elif self.frames.is_incomplete and now >= self._received_at + timeout:
            raise FrameError(f"no bytes arrived for {timeout:g} s in the middle of a frame")

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=READ_AHEAD)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        self.frames.add(data)
        self._changed()
        self._pause_if_enough()

    def eof_received(self) -> bool:
        self.ended = True
        self._changed()
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self.ended = True
        self._full_since = None
        self._changed()

    def pause_writing(self) -> None:
        self._full_since = self._loop.time()

    def resume_writing(self) -> None:
        self._full_since = None
        self._loop.call_soon(self.on_change)  # TLS calls this method while bytes are sent

    def _changed(self) -> None:
        if self._arrived is None:
            self.on_change()
        elif not self._arrived.done():
            self._arrived.set_result(None)


def _nothing() -> None:
    pass
