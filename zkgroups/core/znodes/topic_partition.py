"""`TopicPartition`, the value that names a partition everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ...input_errors import InvalidNameError
from .names import check_partition, check_topic


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic: its name, and the number of the partition.

    Raises `InvalidNameError` if one of them is invalid.

    >>> sorted([TopicPartition("b", 2), TopicPartition("a", 10), TopicPartition("a", 9)])[-1]
    TopicPartition(topic='b', partition=2)
    >>> print(TopicPartition("orders", 0))
    orders/0
    """

    topic: str
    partition: int

    def __post_init__(self) -> None:
        check_topic(self.topic)
        check_partition(self.partition)

    @classmethod
    def checked(cls, topic: str, partition: int) -> Self:
        """Create a partition from a name and a number that were checked before. Faster, for millions of them."""
        made = object.__new__(cls)
        object.__setattr__(made, "topic", topic)
        object.__setattr__(made, "partition", partition)
        return made

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def check_at(at: object) -> TopicPartition:
    """Return `at`, or raise `InvalidNameError` if it is not a `TopicPartition`."""
    if not isinstance(at, TopicPartition):
        raise InvalidNameError("partition", at, "is not a TopicPartition")
    return at
