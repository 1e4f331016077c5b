"""Timers for one thread. The thread itself calls what is due, between its other work."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from ..deadline import uptime

Act = Callable[[], None]


class Timers:
    """Functions to call later, in the order of their times."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Act]] = []
        self._order = itertools.count()

    def later(self, seconds: float, act: Act) -> None:
        """Call `act` once, this many seconds from now."""
        heapq.heappush(self._heap, (uptime() + seconds, next(self._order), act))

    def every(self, seconds: float, act: Act) -> None:
        """Call `act` repeatedly, with this many seconds in between."""

        def again() -> None:
            act()
            self.later(seconds, again)

        self.later(seconds, again)

    def due(self, longest: float) -> float:
        """Return when the next timer is due, or `longest` seconds from now if there is none."""
        return self._heap[0][0] if self._heap else uptime() + longest

    def run(self) -> None:
        """Call everything that is due now, each once."""
        now = uptime()
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)[2]()
