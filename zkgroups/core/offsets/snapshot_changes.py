"""The kinds of change that an offset can undergo between two snapshots, and the levels at which changes are counted."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class SnapshotChange(StrEnum):
    """The change of one offset between two snapshots."""

    MOVED = "moved"
    UNCHANGED = "unchanged"
    WENT_BACK = "went-back"
    NEW = "new"
    GONE = "gone"
    UNREADABLE = "unreadable"


UNCHANGED_HELD: Final = "unchanged-held"
"""Unchanged although owned, counted in addition to UNCHANGED. Only the log end shows whether such a group is stuck."""

STALLED: Final = "stalled"
"""Unchanged although behind the log end in both snapshots, counted in addition to UNCHANGED. Needs log ends."""


CHANGE_FILTERS: Final = (*SnapshotChange, UNCHANGED_HELD, STALLED)
"""The values by which differences can be filtered."""


def count_column(name: str) -> str:
    """Return the name of the column that counts these changes.

    >>> count_column(SnapshotChange.WENT_BACK), count_column(UNCHANGED_HELD)
    ('went_back', 'unchanged_held')
    """
    return name.replace("-", "_")


class SummaryLevel(StrEnum):
    """The level at which differences are summed up: one row per group, topic or partition."""

    GROUP = "group"
    TOPIC = "topic"
    PARTITION = "partition"
