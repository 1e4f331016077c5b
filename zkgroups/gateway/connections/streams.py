"""Streams of clients: frames come in and go out, with limits for both."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from ...kafka.wire import codec
from ...kafka.wire.codec import ReceivedRequest
from ..protocol.frames import FrameError, FrameSplitter
from ..protocol.group_messages import is_long
from ..settings import Turns

# Work that takes time, beside the callbacks that forward bytes.


class Worker:
    """Carries out one piece of work at a time.

    - `on_end`: called after each piece, with its error, or None.
    """

    def __init__(self, on_end: Callable[[BaseException | None], None]) -> None:
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """True while work is under way."""
        return self._task is not None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work, unless the worker is busy."""
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._end)

    async def stop(self) -> None:
        """Stop the work that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._on_end(asyncio.CancelledError() if task.cancelled() else task.exception())


# One side of a connection through the gateway: it receives frames and sends bytes, with limits for both.


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

    def check(self, timeout: float, *, is_awaited: bool) -> None:
        """Raise an error if the peer has not read, or has stalled inside a frame, for `timeout`.

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


# Large messages are decoded and encoded so that they do not delay other clients.
#
# Metadata of 10,000 partitions takes a tenth of a second.


LARGE: Final = 1 << 18
_SHORT: Final = 1 << 14
_LARGE_AT_A_TIME: Final = 16
_RECEIVE_TIMEOUT: Final = 10.0
"""In seconds: how long a large request may take to arrive."""

T = TypeVar("T")


async def on_thread_if_large(size: int, work: Callable[[], T]) -> T:
    """Carry out work on a message of this size, on another thread if it is large. Return the result."""
    return await asyncio.to_thread(work) if size > LARGE else work()


class GroupCodec:
    """Decodes requests about groups, and encodes their answers, for all clients.

    It receives only a few large requests at a time.

    A request must be in memory as a whole, and many clients could begin large ones.
    """

    def __init__(self) -> None:
        self._receiving = asyncio.Semaphore(_LARGE_AT_A_TIME)
        self._turns = Turns()

    async def receive(self, stream: FrameStream) -> tuple[bytes, ReceivedRequest]:
        """Receive the next request as a whole. Return its frame without the length, and the decoded request."""
        size = stream.frames.size or 0
        if size <= LARGE:
            frame = await stream.receive_frame()
            decode = partial(codec.decode_request, frame)
            return frame, decode() if size <= _SHORT else await self._turns.run(decode)
        async with self._receiving:
            try:
                async with asyncio.timeout(_RECEIVE_TIMEOUT):
                    frame = await stream.receive_frame()
            except TimeoutError as error:
                raise FrameError(f"a request of {size} bytes did not arrive within {_RECEIVE_TIMEOUT:g} s") from error
            return frame, await self._turns.run_on_thread(partial(codec.decode_request, frame))

    async def encode(self, answer: Any, received: ReceivedRequest) -> bytes:
        """Return the frame of the answer to a request."""
        kind = received.kind
        encode = partial(codec.encode_answer, answer, kind.version, kind.correlation_id)
        return await self._turns.run(encode) if is_long(received) else encode()


# Listeners, and the streams of the clients that connect to them.


_BACKLOG: Final = 1024
_HANDSHAKE_TIMEOUT: Final = 15.0


class ClientStream(FrameStream):
    """A connection that a client has opened."""

    def __init__(self, accept: Accept, *, longest: int) -> None:
        super().__init__(longest=longest)
        self._accept = accept

    @property
    def peer(self) -> str:
        """The host of the client."""
        found = self._transport.get_extra_info("peername")
        return str(found[0]) if found else "unknown"

    @property
    def local(self) -> str:
        """The address of this machine to which the client has connected."""
        found = self._transport.get_extra_info("sockname")
        return str(found[0]) if found else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._has_tls = transport.get_extra_info("sslcontext") is not None
        self._accept(self)

    def eof_received(self) -> bool:
        super().eof_received()
        return not self._has_tls  # without TLS, requests that were received can still be answered


Accept = Callable[[ClientStream], None]


async def listen(
    host: str, port: int, tls: ssl.SSLContext | None, accept: Accept, *, longest_request: int
) -> asyncio.Server:
    """Listen for clients. Raise OSError if the port is in use."""
    return await asyncio.get_running_loop().create_server(
        lambda: ClientStream(accept, longest=longest_request),
        host,
        port,
        ssl=tls,
        backlog=_BACKLOG,
        ssl_handshake_timeout=None if tls is None else _HANDSHAKE_TIMEOUT,
    )
