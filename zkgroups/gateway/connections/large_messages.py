"""Large messages are decoded and encoded on another thread, so that they do not delay other clients.

Metadata of 10,000 partitions take a tenth of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

LARGE: Final = 1 << 18

T = TypeVar("T")


async def on_thread_if_large(size: int, work: Callable[[], T]) -> T:
    """Carry out work on a message of this size, on another thread if it is large. Return the result."""
    return await asyncio.to_thread(work) if size > LARGE else work()
