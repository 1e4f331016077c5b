"""Where to start reading a partition, given the committed offset and the range of its log.

A committed offset is past the end of the log after the topic was deleted and recreated. It is before the start after
messages were deleted unread. In both cases brokers refuse to read from it. A client that resets by itself hides this:
it reads the whole log again at every start, because a lower offset is never committed.
"""

from __future__ import annotations

from typing import Final

from .model import OffsetRange, StartAt

OUT_OF_RANGE: Final = ("error", *(start.value for start in StartAt))
"""The values of the option `out_of_range`."""


def start_offset(start: int | StartAt, log: OffsetRange) -> int | None:
    """Return the offset to start at, or None if the committed offset is outside of the log.

    >>> log = OffsetRange(10, 20)
    >>> [start_offset(start, log) for start in (StartAt.EARLIEST, StartAt.LATEST, 10, 20, 21)]
    [10, 20, 10, 20, None]
    """
    if isinstance(start, StartAt):
        return log.start if start is StartAt.EARLIEST else log.end
    return start if start in log else None
