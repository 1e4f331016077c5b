"""The round-robin strategy, exactly as Kafka's Scala consumer computes it, with Java's hash of a text."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import itemgetter
from typing import TypeAlias

from ..znodes.topic_partition import TopicPartition
from .members import Assignment, Members, Readers, Stream, next_number


def round_robin_assignor(members: Members) -> Assignment:
    """Deal all partitions of all topics to all streams in turn, sorted by Java's hash of `topic-partition`.

    A stream whose instance does not subscribe to the topic is skipped until the next round.

    >>> alike = Members({"a": {"t": 1, "u": 1}, "b": {"t": 1, "u": 1}}, {"t": range(2), "u": range(3)})
    >>> [f"{at}: {stream}" for at, stream in round_robin_assignor(alike).items()]
    ['t/0: a-0', 't/1: b-0', 'u/0: a-0', 'u/1: b-0', 'u/2: a-0']
    """
    return {TopicPartition.checked(topic, number): stream for topic, number, stream in deal_in_rounds(members)}


def deal_in_rounds(members: Members) -> Iterator[tuple[str, int, Stream]]:
    """Yield each partition (topic and number) with its stream."""
    readers = {topic: members.readers(topic) for topic in members.topics}
    walks = {each: _Walk(each) for each in readers.values()}
    partitions = [
        (_extend_hash(start, str(number)), topic, number)
        for topic, start in ((topic, java_hash(f"{topic}-")) for topic in members.topics)
        for number in members.numbers(topic)
    ]
    partitions.sort(key=itemgetter(0))
    position: _Position = (0, "")
    for _hash, topic, number in partitions:
        position, stream = walks[readers[topic]].after(position)
        yield topic, number, stream


_Position: TypeAlias = tuple[int, str]
"""The number of completed rounds, and the text of the current stream."""


class _Walk:
    """A circular walk over all sorted streams that skips the streams that do not read the topic.

    It keeps only the next stream of each instance, so its cost does not depend on the number of streams.
    """

    def __init__(self, readers: Readers) -> None:
        self._counts = dict(readers)
        self._first = sorted((f"{id}-0", id) for id in self._counts)
        self._round = 0
        self._next = list(self._first)  # sorted, and so a heap

    def after(self, position: _Position) -> tuple[_Position, Stream]:
        """Return the next stream after a position, and its position. Positions must not decrease between calls."""
        number, text = position
        if number != self._round:
            self._restart(number)
        while self._next and self._next[0][0] <= text:
            self._skip(text)
        if not self._next:
            self._restart(number + 1)
        found, instance = self._next[0]
        return (self._round, found), Stream(instance, int(found[len(instance) + 1 :]))

    def _restart(self, number: int) -> None:
        self._round, self._next = number, list(self._first)

    def _skip(self, text: str) -> None:
        """Replace the first of the next streams by the stream of its instance that follows `text`."""
        instance = self._next[0][1]
        own = text.startswith(f"{instance}-")  # otherwise all streams of the instance come before it
        number = next_number(text[len(instance) + 1 :], self._counts[instance]) if own else None
        if number is None:
            heapq.heappop(self._next)
        else:
            heapq.heapreplace(self._next, (f"{instance}-{number}", instance))


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` of a text, a signed 32-bit number.

    >>> java_hash("orders-0"), java_hash("")
    (1234322248, 0)
    """
    return _extend_hash(0, text)


def _extend_hash(start: int, text: str) -> int:
    """Return the hash of a longer text: `start` is the hash of its beginning, and `text` is the rest."""
    found = start
    for unit in _utf16(text):
        found = 31 * found + unit
    found &= 0xFFFF_FFFF
    return found - 2**32 if found >= 2**31 else found


def _utf16(text: str) -> Iterator[int]:
    encoded = text.encode("utf-16-be", "surrogatepass")
    return (int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2))
