"""The part of a consumer that hands out messages: a loop (`loop_delivery.py`) or workers (`runs.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias

from ..core.znodes.topic_partition import TopicPartition

Partitions: TypeAlias = frozenset[TopicPartition]


class Deliverer(Protocol):
    """Knows which messages are finished. The lock of `Reading` is held during each call."""

    def assign(self, at: TopicPartition, position: int) -> None:
        """Begin a partition, or begin it again elsewhere. Its earlier messages no longer count. By the reader."""

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin no more messages of these partitions. Those under way may still finish."""

    def is_busy(self, partitions: Partitions) -> bool:
        """True while messages of these partitions are under way. Notify `changed` when it becomes False."""

    def give_up(self, partitions: Partitions) -> None:
        """Wait no longer for messages under way. Cancel what can be cancelled."""

    def positions(self, partitions: Partitions) -> Mapping[TopicPartition, int]:
        """Return the offsets to commit: everything before them is finished."""

    def received(self, at: TopicPartition) -> int | None:
        """Return the offset after the last message that was taken, or the position. None for an unknown partition."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions. Their messages no longer count."""
