"""What may become of an offset between two snapshots, and what of it is told together."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """What became of one offset."""

    MOVED = "moved"
    STALLED = "stalled"
    WENT_BACK = "went-back"
    NEW = "new"
    GONE = "gone"
    UNREADABLE = "unreadable"


STALLED_HELD: Final = "stalled-held"
"""What is both stalled and owned: somebody has it, and does not move. It is looked for, and counted, beside states."""


LOOKED_FOR: Final = (*State, STALLED_HELD)


def field(name: str) -> str:
    """The column in which it is counted.

    >>> field(State.WENT_BACK), field(STALLED_HELD)
    ('went_back', 'stalled_held')
    """
    return name.replace("-", "_")


class By(StrEnum):
    """What a row is about."""

    GROUP = "group"
    TOPIC = "topic"
    PARTITION = "partition"
