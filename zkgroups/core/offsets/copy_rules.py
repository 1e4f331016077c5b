"""Committed offsets on two sides: one is the truth, the other is its copy.

The copy never goes back by itself: while it is ahead, nothing is written to it. A higher offset there may be the right
one, and the truth a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..znodes.offset_sides import Side
from ..znodes.topic_partition import TopicPartition


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
