"""The format of subscriptions and assignments, inside JoinGroup and SyncGroup for groups of the type `consumer`.

Kafka calls it the embedded consumer protocol. Later versions only append fields, so the fields below can be read from
every version. kafka-go writes version 1 without the owned partitions.

    subscription   version int16, topics [string], user data, from version 1: owned [topic string, partitions [int32]]
    assignment     version int16, assigned [topic string, partitions [int32]], user data
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..core.znodes.topic_partition import TopicPartition, check_partition, check_topic
from ..exceptions import InvalidNameError

CONSUMER: Final = "consumer"
"""The protocol type of consumers."""
_NUMBER_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class Subscription:
    """The `topics` that a member wants, and the partitions `owned` by it, which only cooperative members list."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()


def decode_subscription(data: bytes) -> Subscription | None:
    """Decode a subscription; None if it is malformed. Metadata of other protocol types have other formats.

    >>> decode_subscription(bytes.fromhex("0001 00000001 000174 ffffffff 00000001 000174 00000001 00000002"))
    Subscription(topics=frozenset({'t'}), owned=frozenset({TopicPartition(topic='t', partition=2)}))
    """
    reader = _Reader(data)
    try:
        version = reader.number(">h")
        topics = frozenset(reader.text() for _ in range(reader.count()))
        reader.skip_bytes()
        has_owned = version >= 1 and not reader.at_end
        return Subscription(topics, frozenset(reader.partitions()) if has_owned else frozenset())
    except (struct.error, UnicodeDecodeError, InvalidNameError):
        return None


def decode_assignment(data: bytes) -> frozenset[TopicPartition] | None:
    """Decode the partitions of an assignment; None if it is malformed. Zero bytes mean an empty assignment.

    >>> sorted(decode_assignment(encode_assignment([TopicPartition("t", 1), TopicPartition("t", 0)])))
    [TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=1)]
    """
    if not data:
        return frozenset()
    reader = _Reader(data)
    try:
        reader.number(">h")
        return frozenset(reader.partitions())
    except (struct.error, UnicodeDecodeError, InvalidNameError):
        return None


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode an assignment in version 0, which every client can read."""
    return struct.pack(">h", 0) + _encode_partitions(partitions) + struct.pack(">i", -1)


def encode_subscription(subscription: Subscription) -> bytes:
    """Encode a subscription in version 1."""
    topics = b"".join(_encode_text(topic) for topic in sorted(subscription.topics))
    head = struct.pack(">hi", 1, len(subscription.topics)) + topics + struct.pack(">i", -1)
    return head + _encode_partitions(subscription.owned)


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for at in sorted(partitions):
        by_topic[at.topic].append(at.partition)
    parts = [struct.pack(">i", len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += [_encode_text(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join(parts)


class _Reader:
    """Reads values from bytes that a client wrote. Raises `struct.error` if they end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def count(self) -> int:
        """Read the length of an array. A missing array has the length -1, and counts as empty."""
        return max(self.number(">i"), 0)

    def text(self) -> str:
        return self._take(self.number(">h")).decode()

    def skip_bytes(self) -> None:
        length = self.number(">i")
        if length > 0:
            self._take(length)

    def partitions(self) -> list[TopicPartition]:
        found = []
        for _ in range(self.count()):
            topic = check_topic(self.text())
            numbers = self._numbers(self.count())
            if numbers:
                check_partition(min(numbers))
            found += [TopicPartition.checked(topic, number) for number in numbers]
        return found

    def _numbers(self, count: int) -> tuple[int, ...]:
        numbers = struct.unpack_from(f">{count}i", self._data, self._at)
        self._at += count * _NUMBER_SIZE
        return numbers

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data) - self._at:
            raise struct.error("a value is longer than the remaining bytes")
        self._at += length
        return self._data[self._at - length : self._at]
