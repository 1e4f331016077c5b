"""Timeouts of single attempts within a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from ..deadline import Deadline

# In seconds. A broker that has just started may not answer the first request, so the first retry comes soon. A slow
# broker gets more time with every attempt.
_FIRST: Final = 1.0
_PAUSE: Final = 0.1
_SHORTEST: Final = 0.01


def attempts(deadline: Deadline) -> Iterator[float]:
    """Yield the timeout of each attempt in seconds until the deadline has passed; at least once."""
    timeout = _FIRST
    while True:
        yield max(_SHORTEST, min(timeout, deadline.remaining))
        if deadline.passed:
            return
        time.sleep(min(_PAUSE, deadline.remaining))
        timeout *= 2
