"""The order in which messages are handled."""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum

from ..znodes.topic_partition import TopicPartition


class Order(StrEnum):
    """Which messages wait for each other. All messages that do form a lane, and are handled one after the other."""

    PARTITION = "partition"
    """The messages of a partition."""
    KEY = "key"
    """The messages of a partition that have the same key. Messages without a key do not wait for each other."""
    NONE = "none"
    """No messages: all may be handled at the same time."""

    def lane(self, at: TopicPartition, offset: int, key: bytes | None) -> Hashable:
        """Return the lane of a message.

        >>> orders = TopicPartition("orders", 0)
        >>> Order.KEY.lane(orders, 5, b"anna") == Order.KEY.lane(orders, 9, b"anna")
        True
        >>> Order.KEY.lane(orders, 5, None) == Order.KEY.lane(orders, 9, None)
        False
        """
        if self is Order.PARTITION:
            return at
        if self is Order.KEY and key is not None:
            return at, key
        return at, offset
