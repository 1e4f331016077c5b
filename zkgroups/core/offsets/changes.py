"""Changes of committed offsets: between two sides of which one is the copy, and between two snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..znodes.topic_partition import TopicPartition
from ..znodes.values import Side

# Committed offsets on two sides: one is the truth, the other is its copy.
#
# The copy never goes back by itself: while it is ahead, nothing is written to it. A higher offset there may be the
# right one, and the truth a mistake.


@dataclass(frozen=True, slots=True)
class TwoOffsets:
    """The offset that was read on the side of the truth, and on the other side. None where there is none.

    >>> [TwoOffsets(90, copy).is_different for copy in (None, 80, 90, 100)]
    [False, True, False, True]
    >>> [TwoOffsets(90, copy).is_behind for copy in (None, 80, 90, 100)]
    [True, True, False, False]
    >>> TwoOffsets(None, 80).is_different, TwoOffsets(None, 80).is_behind
    (True, False)
    """

    truth: int | None
    copy: int | None

    @property
    def is_different(self) -> bool:
        """True if readers of the two sides would begin elsewhere. A missing copy is only the first one."""
        return self.copy is not None and self.copy != self.truth

    @property
    def is_behind(self) -> bool:
        """True if the copy may be replaced by the truth."""
        return self.truth is not None and (self.copy is None or self.copy < self.truth)

    def shown(self, truth: Side) -> str:
        """Return both numbers as text.

        >>> TwoOffsets(90, 100).shown(Side.ZOOKEEPER), TwoOffsets(None, 7).shown(Side.KAFKA)
        ('90 in ZooKeeper, 100 on the brokers', '7 in ZooKeeper, none on the brokers')
        """
        in_zookeeper, on_brokers = (self.truth, self.copy) if truth is Side.ZOOKEEPER else (self.copy, self.truth)
        texts = ("none" if offset is None else str(offset) for offset in (in_zookeeper, on_brokers))
        return "{} in ZooKeeper, {} on the brokers".format(*texts)


def compared(
    truth: Mapping[TopicPartition, int | None], copy: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, TwoOffsets]:
    """Return the offsets of both sides for each partition of the truth."""
    return {at: TwoOffsets(offset, copy.get(at)) for at, offset in truth.items()}


# The kinds of change that an offset can undergo between two snapshots, and the levels at which changes are counted.


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
