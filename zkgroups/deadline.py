"""How long one may still wait, and the clocks that tell."""

from __future__ import annotations

import math
import threading
import time
from typing import Self

from .exceptions import InvalidOptionError


def uptime() -> float:
    """Seconds that only go forward, and go on while the machine sleeps, as a server's clock does meanwhile."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Deadline:
    """A moment up to which to wait; every step of a call that has several shares one."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @classmethod
    def after(cls, option: str, seconds: float) -> Self:
        """Make one of a caller's option, which must be a number of seconds that is not negative."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise InvalidOptionError(option, seconds, "it must be a number of seconds, 0 or more")
        return cls(float(seconds))

    @property
    def remaining(self) -> float:
        """Seconds left, never negative, and never more than a thread can wait."""
        return min(max(0.0, self._end - time.monotonic()), threading.TIMEOUT_MAX)

    @property
    def passed(self) -> bool:
        """Whether nothing is left."""
        return self.remaining == 0.0
