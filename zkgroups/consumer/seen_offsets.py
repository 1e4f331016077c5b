"""Detect that a committed offset went back: somebody moved it, or ZooKeeper was restored from a backup."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, CurrentOffset, UnreadableNode
from .group_notes import few

Partitions = frozenset[TopicPartition]


class SeenOffsets:
    """The last committed offset that a member has read or written, for each partition that it had.

    `topic_zxid` returns the zxid that created a topic: a recreated topic has no earlier offsets.
    """

    def __init__(self, topic_zxid: Callable[[str], int | None]) -> None:
        self._topic_zxid = topic_zxid
        self._seen: dict[TopicPartition, tuple[int | None, int]] = {}

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record offsets that this member has committed. May be called on any thread."""
        for at, offset in offsets.items():
            self._seen[at] = self._topic_zxid(at.topic), offset

    def read(self, found: Mapping[TopicPartition, CurrentOffset]) -> tuple[Partitions, str]:
        """Record offsets that were read. Return the partitions whose offset went back, and how far, as text."""
        back: dict[TopicPartition, str] = {}
        for at, value in found.items():
            if isinstance(value, UnreadableNode):
                continue
            zxid, seen = self._seen.pop(at, (None, None))
            now = value.offset if isinstance(value, CommittedOffset) else None
            if seen is not None and zxid == self._topic_zxid(at.topic) and (now is None or now < seen):
                back[at] = f"{at} from {seen} to {'nothing' if now is None else now}"
            if now is not None:
                self.committed({at: now})
        return frozenset(back), few(back.values())
