"""Deadlines, and the clock of session timeouts."""

from __future__ import annotations

import sys
import threading
import time
from typing import Self

from .exceptions import InvalidOptionError


def uptime() -> float:
    """Return monotonic seconds that also count while the machine is suspended, as a server's clock does."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Deadline:
    """A moment up to which to wait. All steps of one call share it."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @classmethod
    def after(cls, option: str, seconds: float) -> Self:
        """Return a deadline from a user's option. Raise `InvalidOptionError` unless it is a number, 0 or more."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= sys.float_info.max:
            raise InvalidOptionError(option, seconds, "it must be a number of seconds, 0 or more")
        return cls(float(seconds))

    @property
    def remaining(self) -> float:
        """The seconds left: never negative, and never more than a thread can wait."""
        return min(max(0.0, self._end - time.monotonic()), threading.TIMEOUT_MAX)

    @property
    def elapsed(self) -> float:
        """The seconds since it was made."""
        return time.monotonic() - self._end + self.seconds

    @property
    def passed(self) -> bool:
        """True if no time is left."""
        return self.remaining == 0.0

    def expire(self) -> None:
        """Let it pass now."""
        self._end = time.monotonic()
