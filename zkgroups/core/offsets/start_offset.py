"""Where to start reading a partition, given the committed offset and the range of its log.

A committed offset is past the end of the log after the topic was deleted and recreated. It is before the start after
messages were deleted unread. In both cases brokers refuse to read from it. A client that resets by itself hides this:
it reads the whole log again at every start, because a lower offset is never committed.

A log end may be stale: read before the last commit, cached by a client, or reported by a broker that has just become
the leader (before Kafka 2.2 it may report a lower end for a moment, see KIP-207). So one reading does not show that an
offset is past the end. `PastEnd` asks for a second one.
"""

from __future__ import annotations

from typing import Final

from ..kafka_values import OffsetRange
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import StartAt

OUT_OF_RANGE: Final = ("error", *(start.value for start in StartAt))
"""The values of the option `out_of_range`."""

CONFIRM_AFTER: Final = 1.0
"""In seconds: how much later the log has to be read again. A new leader learns the log end within one fetch."""

FORGET_AFTER: Final = 60.0
"""In seconds: a first reading that is older than this does not count any more."""


class PastEnd:
    """Remembers the positions that were past the log end at a first reading. It has no clock: the caller passes `now`.

    >>> at, past_end = TopicPartition("orders", 0), PastEnd()
    >>> [past_end.is_confirmed(at, 50, now) for now in (0.0, 0.5, 1.0, 100.0)]
    [False, False, True, False]
    """

    def __init__(self) -> None:
        self._first: dict[TopicPartition, tuple[int, float]] = {}

    def is_confirmed(self, at: TopicPartition, position: int, now: float) -> bool:
        """Return True if the same position was also past the end at least `CONFIRM_AFTER` seconds ago."""
        known, since = self._first.get(at, (None, now))
        if known != position or now - since > FORGET_AFTER:
            since = now
        self._first[at] = position, since
        return known == position and now - since >= CONFIRM_AFTER

    def forget(self, at: TopicPartition) -> None:
        """Discard the first reading, because a later one found the position in the log."""
        self._first.pop(at, None)


def start_offset(start: int | StartAt, log: OffsetRange) -> int | None:
    """Return the offset to start at, or None if the committed offset is outside of the log.

    >>> log = OffsetRange(10, 20)
    >>> [start_offset(start, log) for start in (StartAt.EARLIEST, StartAt.LATEST, 10, 20, 21)]
    [10, 20, 10, 20, None]
    """
    if isinstance(start, StartAt):
        return log.start if start is StartAt.EARLIEST else log.end
    return start if start in log else None
