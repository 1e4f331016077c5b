"""What is to be done at a later time, by one thread that looks at the clock when it can."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from ..deadline import uptime

Act = Callable[[], None]


class Timers:
    """Acts in the order of their times."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Act]] = []
        self._order = itertools.count()

    def later(self, seconds: float, act: Act) -> None:
        """Do this, once, so many seconds from now."""
        heapq.heappush(self._heap, (uptime() + seconds, next(self._order), act))

    def every(self, seconds: float, act: Act) -> None:
        """Do this again and again, with so many seconds in between."""

        def again() -> None:
            act()
            self.later(seconds, again)

        self.later(seconds, again)

    def due(self, longest: float) -> float:
        """When the next one is to be done; in `longest` seconds, where there is none."""
        return self._heap[0][0] if self._heap else uptime() + longest

    def run(self) -> None:
        """Do whatever is due now, and each thing once."""
        now = uptime()
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)[2]()
