"""The input and the output of an assignor: the members of a group with their streams, and who reads which partition.

The unit of an assignment is a stream, as in the old clients: an instance with two streams of a topic gets two shares
of its partitions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias

from ..znodes.topic_partition import TopicPartition, check_partition, check_topic


class Stream(NamedTuple):
    """One stream of an instance: its id, and the number of the stream. Scala members write its text into owner nodes.

    >>> str(Stream("billing_h-17-ab12cd34", 0))
    'billing_h-17-ab12cd34-0'
    """

    instance: str
    number: int

    def __str__(self) -> str:
        return f"{self.instance}-{self.number}"


Readers: TypeAlias = tuple[tuple[str, int], ...]
"""Instances with their numbers of streams."""


@dataclass(frozen=True, slots=True)
class Members:
    """The input of an assignor: the instances of a group, and the partitions to assign.

    - `streams`: for each instance, the topics it subscribes to, each with its number of streams.
    - `partitions`: for each topic, the numbers of its partitions.
    - `owners`: for each owned partition, the id of the instance. For assignors that avoid moving partitions.

    An assignor returns a dict from every `TopicPartition` to the `Stream` that reads it. The result must not depend on
    the order of instances, topics or partitions:

    >>> def all_to_the_first(members: Members) -> Assignment:
    ...     return {at: members.of(topic)[0] for topic in members.topics for at in members.in_order(topic)}
    >>> for at, stream in all_to_the_first(Members({"a": {"t": 1}, "b": {"t": 1}}, {"t": range(2)})).items():
    ...     print(at, stream)
    t/0 a-0
    t/1 a-0
    """

    streams: Mapping[str, Mapping[str, int]]
    partitions: Mapping[str, Sequence[int]]
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)

    def readers(self, topic: str) -> Readers:
        """The instances that subscribe to a topic, sorted by id, each with its number of streams."""
        found = ((id, topics.get(topic, 0)) for id, topics in self.streams.items())
        return tuple(sorted((id, count) for id, count in found if count > 0))

    def of(self, topic: str) -> list[Stream]:
        """The streams of a topic, sorted as text (`-10` before `-2`).

        At most as many streams are returned as there are partitions: a registration may ask for two billion.
        """
        return list(islice(sorted_streams(self.readers(topic)), sum(map(len, self.partitions.values()))))

    @property
    def topics(self) -> list[str]:
        """The topics that have both subscribers and partitions, sorted."""
        wanted = {topic for topics in self.streams.values() for topic, streams in topics.items() if streams > 0}
        return sorted(topic for topic in wanted if self.partitions.get(topic))

    def in_order(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic, sorted by number."""
        return [TopicPartition.checked(topic, number) for number in self.numbers(topic)]

    def numbers(self, topic: str) -> list[int]:
        """The partition numbers of a topic, sorted."""
        check_topic(topic)
        return [check_partition(number) for number in sorted(set(self.partitions[topic]))]


Assignment: TypeAlias = dict[TopicPartition, Stream]
"""Every partition of every subscribed topic, with the stream that reads it."""

Assignor: TypeAlias = Callable[[Members], Assignment]
"""Assigns all partitions. The order in which members, topics and partitions are given must not matter."""


def assigned_to(instance: str, assignment: Mapping[TopicPartition, Stream]) -> dict[TopicPartition, int]:
    """Return the partitions assigned to an instance, each with the number of its stream."""
    mine = ((at, stream.number) for at, stream in assignment.items() if stream.instance == instance)
    return dict(sorted(mine))


# Streams sorted as text, without listing them all


def sorted_streams(readers: Readers) -> Iterator[Stream]:
    """Yield all streams of some instances, sorted as text."""
    merged = heapq.merge(*(_streams_of(id, count) for id, count in readers))
    return (Stream(instance, number) for _text, instance, number in merged)


def _streams_of(instance: str, count: int) -> Iterator[tuple[str, str, int]]:
    """Yield the streams of one instance, sorted as text: the text, the instance and the number."""
    number: int | None = 0
    while number is not None:
        yield f"{instance}-{number}", instance, number
        number = next_number(str(number), count)


def next_number(text: str, count: int) -> int | None:
    """Return the number below `count` whose decimal text comes next after `text`; None after the last one.

    >>> [next_number(text, 12) for text in ("0", "1", "10", "11", "1-0", "9", "b")]
    [1, 10, 11, 2, 10, None, None]
    """
    for length in range(min(len(text), len(str(count))), -1, -1):
        prefix = text[:length]
        if prefix and not _can_be_extended(prefix):
            continue
        digit = "0" if length == len(text) or text[length] < "0" else chr(ord(text[length]) + 1)
        if digit <= "9" and int(prefix + digit) < count:
            return int(prefix + digit)
    return None


def _can_be_extended(text: str) -> bool:
    """True for a decimal number that stays one when a digit is appended."""
    return text.isascii() and text.isdigit() and text[0] != "0"
