"""Large messages are decoded and encoded on another thread, so that they do not delay other clients.

Metadata of 10,000 partitions take a tenth of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from ...kafka.wire import codec
from ...kafka.wire.codec import ReceivedRequest
from .frames import Frame, FrameError

LARGE: Final = 1 << 18
_AT_A_TIME: Final = 16
_LONGEST: Final = 10.0
"""In seconds: how long a large request may take to arrive."""

T = TypeVar("T")


async def on_thread_if_large(size: int, work: Callable[[], T]) -> T:
    """Carry out work on a message of this size, on another thread if it is large. Return the result."""
    return await asyncio.to_thread(work) if size > LARGE else work()


class RequestDecoder:
    """Decodes requests about groups. All clients share it: so many of them can send large requests at a time.

    A request must be in memory as a whole, and many clients could begin large ones.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    async def decode(self, frame: Frame) -> ReceivedRequest:
        """Receive the whole request, and decode it."""
        if frame.size <= LARGE:
            return codec.decode_request(await frame.whole())
        async with self._turns:
            try:
                async with asyncio.timeout(_LONGEST):
                    data = await frame.whole()
            except TimeoutError as error:
                raise FrameError(f"a request of {frame.size} bytes took longer than {_LONGEST:g} s") from error
            return await on_thread_if_large(frame.size, partial(codec.decode_request, data))
