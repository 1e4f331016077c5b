"""Compute the lag of groups from their committed offsets and the log ends of the brokers.

An unknown lag is None and never 0: if no valid offset is committed, if the brokers do not know the log end, or if the
offset is past the log end. Read the offsets before the log ends. Then an offset past the end means that the topic was
recreated, or that the offset belongs to another cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from ..kafka_values import OffsetRange
from ..layouts.layout import Layout, OffsetPlace
from ..layouts.legacy import LEGACY
from ..znodes.group_description import GroupDescription, PartitionDescription
from ..znodes.registrations import subscribed_topics
from ..znodes.states import InstanceState
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import Pattern, Registration

# Search the time of the message at an offset. Brokers only tell the first message at or after a time.
#
# The messages need not be in the order of their times. The result is the newest time up to the message, which is what
# brokers search by: for times in order it is the time of the message itself.


_FIRST_STEP_MS: Final = 1_000
_GROWTH: Final = 4
_PRECISION_MS: Final = 1_000


@dataclass(slots=True)
class MessageTimeSearch:
    """The search for one offset, in milliseconds since 1970. Ask for `question`, and give the answer to `receive`.

    The first question finds out whether the log has times at all. The next ones go back from now in growing steps, as
    most groups are only a little behind. Then the remaining range is halved until it is within a second, or a hundredth
    of the age. A message whose time is in the future counts as one of now.

    >>> search = MessageTimeSearch(offset=7, now_ms=100_000)
    >>> while not search.ended:  # message n was written at n * 10 s
    ...     first = -(-search.question // 10_000)
    ...     search.receive(first, first * 10_000)
    >>> search.found
    70000
    """

    offset: int
    now_ms: int
    question: int = 0
    found: int | None = None
    """A time that the message does not precede. The result, once the search has ended; None if there are no times."""
    ended: bool = False
    _after: int | None = None
    """A time that the message precedes; None before one is known."""
    _step: int | None = _FIRST_STEP_MS
    """How far to go back from now. None when the range is being halved."""

    def receive(self, offset: int | None, time_ms: int) -> None:
        """Take the first message at or after `question`, None if there is none. Then ask the next question."""
        if offset is not None and offset <= self.offset:
            self._step = self._step if self.question == 0 else None
            self.found = max(self.question, min(time_ms, self.now_ms))
            self.ended = offset == self.offset
        elif self.found is None:
            self.ended = True  # no message up to this one has a time
        else:
            self._after = self.question
        if self.found is not None and not self.ended:
            self._ask_next(self.found, self.now_ms + 1 if self._after is None else self._after)

    def _ask_next(self, found: int, after: int) -> None:
        self.ended = after - found <= max(_PRECISION_MS, (self.now_ms - found) // 100)
        self.question = (found + after) // 2
        if self._step is not None and found < self.now_ms - self._step < after:
            self.question = self.now_ms - self._step
            self._step *= _GROWTH


LogRanges: TypeAlias = Mapping[TopicPartition, OffsetRange | None]
"""The log range of each partition; None, or no entry, for a partition that the brokers do not know."""

TopicPartitions: TypeAlias = Mapping[str, Iterable[int]]
"""The topics that the brokers know, each with its partition numbers."""


class LagNote(StrEnum):
    """The reason why a lag is unknown, or why it differs from the number of messages that will be read."""

    NEVER_COMMITTED = "never committed"
    CANNOT_BE_READ = "cannot be read"
    LOG_UNKNOWN = "log unknown"
    PAST_END = "past end"
    BEFORE_START = "before start"


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition."""

    partition: PartitionDescription
    log: OffsetRange | None
    lag: int | None
    note: LagNote | None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group. Totals count the partitions whose lag is known; they are None if it is known for none."""

    group: str
    partitions: tuple[PartitionLag, ...]

    @property
    def total(self) -> int | None:
        """The sum over the partitions."""
        return sum(self._known) if self._known else None

    @property
    def most(self) -> int | None:
        """The largest lag of one partition."""
        return max(self._known, default=None)

    @property
    def unknown(self) -> int:
        """The number of partitions whose lag is unknown."""
        return len(self.partitions) - len(self._known)

    @property
    def _known(self) -> list[int]:
        return [partition.lag for partition in self.partitions if partition.lag is not None]


def lag(offset: int | None, log: OffsetRange | None) -> tuple[int | None, LagNote | None]:
    """Return the number of messages from the offset to the log end, and a note.

    For an offset before the log start, the number includes the deleted messages in between.

    >>> lag(0, OffsetRange(0, 5)), lag(2, OffsetRange(3, 5)), lag(6, OffsetRange(3, 5))
    ((5, None), (3, <LagNote.BEFORE_START: 'before start'>), (None, <LagNote.PAST_END: 'past end'>))
    """
    if offset is None:
        return None, LagNote.NEVER_COMMITTED
    if log is None:
        return None, LagNote.LOG_UNKNOWN
    if offset > log.end:
        return None, LagNote.PAST_END
    return log.end - offset, LagNote.BEFORE_START if offset < log.start else None


def subscribes_by_pattern(groups: Iterable[GroupDescription]) -> bool:
    """True if a live instance of any group subscribes by a pattern, so that all topics of the brokers are needed."""
    return any(each.pattern is not Pattern.STATIC for group in groups for each in _registrations(group))


def partitions_of_group(
    group: GroupDescription, known: TopicPartitions, layout: Layout = LEGACY
) -> list[PartitionDescription]:
    """Return the partitions of a group, in order: those in its znodes, and all partitions of subscribed topics."""
    partitions = {partition.at: partition for partition in group.partitions}
    for at in _subscribed(group, known) | {place.at for place in _unreadable(group, layout) if place.at is not None}:
        partitions.setdefault(at, PartitionDescription(at, (), None, None))
    return [partitions[at] for at in sorted(partitions)]


def group_lag(
    group: GroupDescription, partitions: Iterable[PartitionDescription], logs: LogRanges, layout: Layout = LEGACY
) -> GroupLag:
    """Return the lag of the group in each of these partitions."""
    unreadable = {(place.topic, place.partition) for place in _unreadable(group, layout)}
    return GroupLag(group.group, tuple(_partition_lag(each, logs, unreadable) for each in partitions))


def _partition_lag(
    partition: PartitionDescription, logs: LogRanges, unreadable: Set[tuple[str | None, int | None]]
) -> PartitionLag:
    at, log, committed = partition.at, logs.get(partition.at), partition.offset
    messages, note = lag(None if committed is None else committed.offset, log)
    if committed is None and not unreadable.isdisjoint(((at.topic, at.partition), (at.topic, None), (None, None))):
        note = LagNote.CANNOT_BE_READ
    return PartitionLag(partition, log, messages, note)


def _subscribed(group: GroupDescription, known: TopicPartitions) -> set[TopicPartition]:
    topics = {topic for registration in _registrations(group) for topic in subscribed_topics(registration, known)}
    return {TopicPartition(topic, number) for topic in topics for number in known.get(topic, ())}


def _unreadable(group: GroupDescription, layout: Layout) -> Iterator[OffsetPlace]:
    """Yield the places of the offset nodes, and of their directories, that exist but cannot be read."""
    places = (layout.place(node.path) for node in group.unreadable)
    return (place for place in places if place and place.group == group.group and not place.is_misnamed)


def _registrations(group: GroupDescription) -> Iterator[Registration]:
    living = (instance for instance in group.instances if instance.state is not InstanceState.DEAD)
    registrations = (instance.registration for instance in living)
    return (registration for registration in registrations if isinstance(registration, Registration))
