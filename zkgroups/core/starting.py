"""Where to begin reading a partition, given the committed offset and the range of its log.

A committed offset lies outside of the log after the topic was deleted and created again (past the end), or after
messages were deleted before they were read (before the start). Brokers then refuse to read from it. A client that
resets by itself hides this: it reads the whole log again at every start, because a lower offset is never committed.
"""

from __future__ import annotations

from typing import Final

from .model import OffsetRange, StartAt

OUT_OF_RANGE: Final = ("error", *(start.value for start in StartAt))
"""The values of the option `out_of_range`."""


def start_offset(start: int | StartAt, log: OffsetRange) -> int | None:
    """The offset to begin at, or None for a committed offset outside of the log.

    >>> log = OffsetRange(10, 20)
    >>> [start_offset(start, log) for start in (StartAt.EARLIEST, StartAt.LATEST, 10, 20, 21)]
    [10, 20, 10, 20, None]
    """
    if isinstance(start, StartAt):
        return log.start if start is StartAt.EARLIEST else log.end
    return start if start in log else None
