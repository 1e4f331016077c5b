"""The log end of one partition over time: when a message was written, and how many are written per second.

Between two observations the log end is assumed to grow evenly, so a time is exact within the interval of observations.
The number of points is limited: older ones are thinned out.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

MOST_POINTS: Final = 64
RECENT_POINTS: Final = 32


class LogHistory:
    """The log ends that were seen, each with its time in milliseconds.

    >>> history = LogHistory()
    >>> history.add(1_000, 100); history.add(11_000, 200)
    >>> history.written_ms(149), history.written_ms(199), history.written_ms(200), history.written_ms(99)
    (6000, 11000, None, None)
    >>> history.produced_per_second(11_000, window_ms=60_000)
    10.0
    """

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times = array("q")
        self._ends = array("q")

    @property
    def first_end(self) -> int | None:
        """The oldest log end. The time of messages before it is unknown."""
        return self._ends[0] if self._ends else None

    def add(self, now_ms: int, end: int) -> None:
        """Add the current log end. If it has gone back, the topic was recreated, and older points mean nothing."""
        times, ends = self._times, self._ends
        if ends and end < ends[-1]:
            del times[:], ends[:]
        if len(ends) > 1 and ends[-2] == ends[-1] == end:
            times[-1] = now_ms  # the first and the last time of a pause are enough
            return
        times.append(now_ms)
        ends.append(end)
        if len(ends) > MOST_POINTS:
            older = len(ends) - RECENT_POINTS
            self._times = times[:older:2] + times[older:]
            self._ends = ends[:older:2] + ends[older:]

    def add_message(self, ms: int, offset: int) -> None:
        """Add the time of a message that is older than all points, as a broker reported it."""
        if self._ends and offset < self._ends[0] and ms <= self._times[0]:
            self._times = array("q", [ms, ms]) + self._times
            self._ends = array("q", [offset, offset + 1]) + self._ends

    def written_ms(self, offset: int) -> int | None:
        """Return when the message at this offset was written. None if it does not exist yet, or is older than this."""
        after = bisect_right(self._ends, offset)
        if not 0 < after < len(self._ends):
            return None
        start, end = self._times[after - 1], self._times[after]
        first, last = self._ends[after - 1], self._ends[after]
        return start + (offset + 1 - first) * (end - start) // (last - first)

    def produced_per_second(self, now_ms: int, *, window_ms: int) -> float | None:
        """Return how many messages were written per second in the last window. None if that was not observed."""
        if not self._times:
            return None
        oldest = max(0, bisect_right(self._times, now_ms - window_ms) - 1)
        ms, end = self._times[oldest], self._ends[oldest]
        if now_ms - ms < 1000:
            return None
        since = max(ms, now_ms - window_ms)
        if since > ms and oldest + 1 < len(self._times):  # two points may have the same time
            after, grown = self._times[oldest + 1], self._ends[oldest + 1] - end
            end += grown * (since - ms) // (after - ms)
        return (self._ends[-1] - end) * 1000 / (now_ms - since)


def catch_up_seconds(lag: int, consumed: float | None, produced: float | None) -> float | None:
    """Return the time until the lag is zero, if both rates stay. None if it is unknown, or if it will never be.

    >>> catch_up_seconds(300, 15.0, 5.0), catch_up_seconds(0, None, None), catch_up_seconds(300, 5.0, 5.0)
    (30.0, 0.0, None)
    """
    if lag == 0:
        return 0.0
    if consumed is None or produced is None or consumed <= produced:
        return None
    return lag / (consumed - produced)
