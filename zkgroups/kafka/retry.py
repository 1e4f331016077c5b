"""How long to wait for one answer, when there is a time for all attempts together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from ..deadline import Deadline

# In seconds. A broker that has just started may leave the first request without an answer: it is asked again soon. One
# that is only slow gets longer with every attempt.
_FIRST: Final = 1.0
_PAUSE: Final = 0.1
_SHORTEST: Final = 0.01


def attempts(deadline: Deadline) -> Iterator[float]:
    """The seconds that the next attempt may take, until the deadline has passed; there is always one."""
    patience = _FIRST
    while True:
        yield max(_SHORTEST, min(patience, deadline.remaining))
        if deadline.passed:
            return
        time.sleep(min(_PAUSE, deadline.remaining))
        patience *= 2
