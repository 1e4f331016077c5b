"""The meaning of a stored number: the next message to read, or the last one that was processed.

Kafka and zkgroups store the next message. Some systems store the last processed one, which is one less. This module is
the only place that adds or subtracts the one.
"""

from __future__ import annotations

from enum import StrEnum

from ..znodes.decoding import DecodingError
from ..znodes.offset_codec import MAX_OFFSET


class Stored(StrEnum):
    """The meanings of a stored number.

    - next: the next message to read
    - last: the last processed message
    - from: the first message of the last batch of a Spark job. The job starts there again, and so reads the batch twice
    - until: the message after the last batch of a Spark job
    """

    NEXT = "next"
    LAST = "last"
    FROM = "from"
    UNTIL = "until"


def next_message(number: int, stored: Stored) -> int:
    """Return the next message to read. Raise DecodingError if it is not a valid offset.

    >>> [next_message(41, stored) for stored in Stored]
    [41, 42, 41, 41]
    """
    if number < 0:
        raise DecodingError("negative")
    offset = number + 1 if stored is Stored.LAST else number
    if offset > MAX_OFFSET:
        raise DecodingError("larger than 2^63-1")
    return offset


def stored_number(offset: int, stored: Stored) -> int | None:
    """Return the number to store for the next message to read; None if no valid number means that.

    >>> stored_number(42, Stored.LAST), stored_number(42, Stored.NEXT), stored_number(0, Stored.LAST)
    (41, 42, None)
    """
    number = offset - 1 if stored is Stored.LAST else offset
    return number if number >= 0 else None
