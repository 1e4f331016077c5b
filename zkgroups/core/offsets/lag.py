"""How far groups are behind the ends of the logs, worked out from their offsets and from what the brokers know.

Unknown is None, and never 0: where nothing was committed or can be read, where no broker tells where the log ends, and
where the offset is past that end, because the topic was recreated or the offset is of another cluster. Who reads the
offsets first and the ends after them never meets an offset past the end for any other reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ..kafka_values import OffsetRange
from ..znodes.group_description import GroupDescription, PartitionDescription
from ..znodes.offset_codec import decode_offset_path
from ..znodes.paths import GroupPaths
from ..znodes.states import InstanceState
from ..znodes.subscription import subscribed_topics
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import Pattern, Registration

Logs: TypeAlias = Mapping[TopicPartition, OffsetRange | None]
"""What the brokers say of each partition; None, or nothing at all, of one they know nothing of."""

KnownTopics: TypeAlias = Mapping[str, Iterable[int]]
"""The topics that the brokers have, each with the numbers of its partitions."""


class LagNote(StrEnum):
    """Why a lag is unknown, or is not what will be read."""

    NEVER_COMMITTED = "never committed"
    CANNOT_BE_READ = "cannot be read"
    LOG_UNKNOWN = "log unknown"
    PAST_END = "past end"
    BEFORE_START = "before start"


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of a group, and how far the group is behind there."""

    partition: PartitionDescription
    log: OffsetRange | None
    lag: int | None
    note: LagNote | None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group, and how far it is behind; a sum over what is known, None where nothing is."""

    group: str
    partitions: tuple[PartitionLag, ...]

    @property
    def total(self) -> int | None:
        """The lags of all partitions together."""
        return sum(self._known) if self._known else None

    @property
    def most(self) -> int | None:
        """The largest lag of a partition."""
        return max(self._known, default=None)

    @property
    def unknown(self) -> int:
        """How many partitions have a lag that is not known."""
        return len(self.partitions) - len(self._known)

    @property
    def _known(self) -> list[int]:
        return [partition.lag for partition in self.partitions if partition.lag is not None]


def lag(offset: int | None, log: OffsetRange | None) -> tuple[int | None, LagNote | None]:
    """How many messages are still to be read, and what is to be said about it.

    An offset before the start of the log counts from where it is: those messages are gone, and are skipped, too.

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
    """Whether all topics of the brokers matter, and not only those that are named."""
    return any(each.pattern is not Pattern.STATIC for group in groups for each in _registrations(group))


def followed(group: GroupDescription, known: KnownTopics) -> list[PartitionDescription]:
    """The partitions of a group, in order: those it has to do with in ZooKeeper, and the brokers' of its topics."""
    found = {partition.at: partition for partition in group.partitions}
    for at in _subscribed(group, known) | set(_unreadable(group)):
        found.setdefault(at, PartitionDescription(at, (), None, None))
    return [found[at] for at in sorted(found)]


def group_lag(group: GroupDescription, partitions: Iterable[PartitionDescription], logs: Logs) -> GroupLag:
    """The lag of each of these partitions of the group."""
    hidden = {node.path for node in group.malformed}
    return GroupLag(group.group, tuple(_measured(GroupPaths(group.group), each, logs, hidden) for each in partitions))


def _measured(paths: GroupPaths, partition: PartitionDescription, logs: Logs, hidden: Set[str]) -> PartitionLag:
    at, log, committed = partition.at, logs.get(partition.at), partition.offset
    behind, note = lag(None if committed is None else committed.offset, log)
    if committed is None and not hidden.isdisjoint((paths.offset(at), paths.offset_topic(at.topic), paths.offsets)):
        note = LagNote.CANNOT_BE_READ
    return PartitionLag(partition, log, behind, note)


def _subscribed(group: GroupDescription, known: KnownTopics) -> set[TopicPartition]:
    topics = {topic for registration in _registrations(group) for topic in subscribed_topics(registration, known)}
    return {TopicPartition(topic, number) for topic in topics for number in known.get(topic, ())}


def _unreadable(group: GroupDescription) -> Iterator[TopicPartition]:
    """Partitions whose offset is there and cannot be read."""
    directory = GroupPaths(group.group).offsets + "/"
    for node in group.malformed:
        topic, slash, name = node.path.removeprefix(directory).partition("/")
        if node.path.startswith(directory) and slash and (at := decode_offset_path(topic, name)) is not None:
            yield at


def _registrations(group: GroupDescription) -> Iterator[Registration]:
    living = (instance for instance in group.instances if instance.state is not InstanceState.DEAD)
    found = (instance.registration for instance in living)
    return (registration for registration in found if isinstance(registration, Registration))
