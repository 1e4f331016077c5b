"""Large messages are decoded and encoded on another thread, so that they do not delay other clients.

Metadata of 10,000 partitions takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from ...kafka.wire import codec
from ...kafka.wire.codec import ReceivedRequest
from ..protocol.frames import FrameError
from .frame_stream import FrameStream

LARGE: Final = 1 << 18
_LARGE_AT_A_TIME: Final = 16
_RECEIVE_TIMEOUT: Final = 10.0
"""In seconds: how long a large request may take to arrive."""

T = TypeVar("T")


async def on_thread_if_large(size: int, work: Callable[[], T]) -> T:
    """Carry out work on a message of this size, on another thread if it is large. Return the result."""
    return await asyncio.to_thread(work) if size > LARGE else work()


class RequestDecoder:
    """Decodes requests about groups, for all clients. It receives only a few large requests at a time.

    A request must be in memory as a whole, and many clients could begin large ones.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_LARGE_AT_A_TIME)

    async def receive(self, stream: FrameStream) -> tuple[bytes, ReceivedRequest]:
        """Receive the next request as a whole. Return its frame without the length, and the decoded request."""
        size = stream.frames.size or 0
        if size <= LARGE:
            frame = await stream.receive_frame()
            return frame, codec.decode_request(frame)
        async with self._turns:
            try:
                async with asyncio.timeout(_RECEIVE_TIMEOUT):
                    frame = await stream.receive_frame()
            except TimeoutError as error:
                raise FrameError(f"a request of {size} bytes did not arrive within {_RECEIVE_TIMEOUT:g} s") from error
            return frame, await asyncio.to_thread(codec.decode_request, frame)
