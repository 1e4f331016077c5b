"""What may become of an offset between two snapshots, and what of it is told together."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """What became of one offset."""

    MOVED = "moved"
    UNCHANGED = "unchanged"
    WENT_BACK = "went-back"
    NEW = "new"
    GONE = "gone"
    UNREADABLE = "unreadable"


UNCHANGED_HELD: Final = "unchanged-held"
"""Unchanged and owned; counted in addition to the states. Only the log end shows whether such a group is stuck."""


LOOKED_FOR: Final = (*State, UNCHANGED_HELD)


def field(name: str) -> str:
    """The column in which it is counted.

    >>> field(State.WENT_BACK), field(UNCHANGED_HELD)
    ('went_back', 'unchanged_held')
    """
    return name.replace("-", "_")


class By(StrEnum):
    """What a row is about."""

    GROUP = "group"
    TOPIC = "topic"
    PARTITION = "partition"
