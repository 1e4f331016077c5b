"""Attempts within a deadline, for asynchronous requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from ...deadline import Deadline
from ..wire.errors import WireError

# In seconds. A broker that writes to other brokers first may take 5 s for its answer. A slow broker gets more time with
# every attempt.
_FIRST: Final = 6.0
_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_SHORTEST: Final = 0.01
LOOK: Final = 1.0
"""The shortest timeout in seconds for a read that clears up an unknown outcome, even after the deadline."""


def _nothing() -> int:
    return 0


def timed_out(error: WireError) -> bool:
    """Return whether an attempt had too little time, as the last one before a deadline. Its error tells little."""
    return isinstance(error.__cause__, TimeoutError)


async def tries(deadline: Deadline, answers: Callable[[], int] = _nothing) -> AsyncIterator[float]:
    """Yield the timeout of each attempt, in seconds, until the deadline has passed. There is at least one attempt.

    The timeout starts again after each attempt with new answers, so large work completes as long as brokers answer.
    """
    timeout, pause, before = _FIRST, _PAUSE, answers()
    while True:
        yield max(_SHORTEST, min(timeout, deadline.remaining))
        if (now := answers()) > before:
            deadline, timeout, pause, before = Deadline(deadline.seconds), _FIRST, _PAUSE, now
        if deadline.passed:
            return
        await asyncio.sleep(min(pause, deadline.remaining))
        timeout *= 2
        pause = min(pause * 2, _LONGEST_PAUSE)
