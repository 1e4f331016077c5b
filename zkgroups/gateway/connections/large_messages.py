"""Large messages are read and written on another thread, because that would delay all other clients.

Metadata of 10,000 partitions take a tenth of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

LARGE: Final = 1 << 18

T = TypeVar("T")


async def beside_others(size: int, work: Callable[[], T]) -> T:
    """Return the result of work on a message of so many bytes."""
    return await asyncio.to_thread(work) if size > LARGE else work()
