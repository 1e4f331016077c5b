"""The range strategy, exactly as Kafka's Scala consumer computes it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ..znodes.topic_partition import TopicPartition
from .members import Assignment, Members, Readers, Stream, sorted_streams


def range_assignor(members: Members) -> Assignment:
    """Assign consecutive partitions to each stream, topic by topic. The first streams get one more if there is a rest.

    With P partitions and T streams, n = P div T and x = P mod T: the stream at position i starts at n·i + min(i, x).
    It gets n partitions, and one more if i < x.

    >>> two_streams_and_one = Members({"a": {"t": 2}, "b": {"t": 1}}, {"t": range(7)})
    >>> for at, stream in range_assignor(two_streams_and_one).items():
    ...     print(at, stream)
    t/0 a-0
    t/1 a-0
    t/2 a-0
    t/3 a-1
    t/4 a-1
    t/5 b-0
    t/6 b-0
    """
    return {TopicPartition.checked(topic, number): stream for topic, number, stream in assign_ranges(members)}


def assign_ranges(members: Members) -> Iterator[tuple[str, int, Stream]]:
    """Yield each partition (topic and number) with its stream."""
    cached: dict[tuple[Readers, int], list[Stream]] = {}
    for topic in members.topics:
        partitions, readers = members.numbers(topic), members.readers(topic)
        if (readers, len(partitions)) not in cached:  # with more streams than partitions, the last streams get none
            cached[readers, len(partitions)] = list(islice(sorted_streams(readers), len(partitions)))
        share, more = divmod(len(partitions), sum(count for _instance, count in readers))
        for position, stream in enumerate(cached[readers, len(partitions)]):
            start = share * position + min(position, more)
            for number in partitions[start : start + share + (position < more)]:
                yield topic, number, stream
