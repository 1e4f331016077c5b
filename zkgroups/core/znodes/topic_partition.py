"""`TopicPartition`, the value that names a partition everywhere."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Self

from ...input_errors import InvalidNameError
from .names import check_partition, check_topic


class _Fields(NamedTuple):
    topic: str
    partition: int


class TopicPartition(_Fields):
    """One partition of one topic: its name, and the number of the partition. A tuple, so that millions are fast.

    Raises `InvalidNameError` if one of them is invalid.

    >>> sorted([TopicPartition("b", 2), TopicPartition("a", 10), TopicPartition("a", 9)])[-1]
    TopicPartition(topic='b', partition=2)
    >>> print(TopicPartition("orders", 0))
    orders/0
    """

    __slots__ = ()

    def __new__(cls, topic: str, partition: int) -> Self:
        return cls.checked(check_topic(topic), check_partition(partition))

    @classmethod
    def checked(cls, topic: str, partition: int) -> Self:
        """Create a partition from a name and a number that were checked before. Faster, for millions of them."""
        return tuple.__new__(cls, (topic, partition))

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def known_partition(topic: str | None, partition: int | None) -> TopicPartition | None:
    """Return a partition whose name and number were checked before; None if one of them is not known."""
    return None if topic is None or partition is None else _known(topic, partition)


_known = lru_cache(maxsize=2**16)(TopicPartition.checked)  # most groups have the same partitions


def check_at(at: object) -> TopicPartition:
    """Return `at`, or raise `InvalidNameError` if it is not a `TopicPartition`."""
    if not isinstance(at, TopicPartition):
        raise InvalidNameError("partition", at, "is not a TopicPartition")
    return at
