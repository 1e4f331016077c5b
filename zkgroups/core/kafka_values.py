"""Values that brokers report: Kafka-native groups with their offsets, and the range of offsets in a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from typing import NamedTuple

from .znodes.topic_partition import TopicPartition


class NativeOffset(NamedTuple):
    """The next message to read of one partition, as committed to a Kafka-native group."""

    group: str
    at: TopicPartition
    offset: int
    metadata: str | None = None
    """The free text that the consumer committed with the offset."""
    leader_epoch: int | None = None


class PlainOffsets(NamedTuple):
    """Offsets of one Kafka-native group as columns, without metadata and leader epochs."""

    group: str
    places: Sequence[TopicPartition]
    offsets: Sequence[int]

    def rows(self) -> list[NativeOffset]:
        """Return the offsets one by one."""
        return [*native_offsets(self.group, self.places, self.offsets, repeat(None), repeat(None))]


def native_offsets(
    group: str,
    places: Iterable[TopicPartition],
    offsets: Iterable[int],
    metadata: Iterable[str | None],
    leader_epochs: Iterable[int | None],
) -> Iterator[NativeOffset]:
    """Create the offsets of a group from columns. Faster than one by one, for millions of them."""
    rows = zip(repeat(group), places, offsets, metadata, leader_epochs, strict=False)
    return map(tuple.__new__, repeat(NativeOffset), rows)


class NativeState(StrEnum):
    """The state of a Kafka-native group, in Kafka's words."""

    DEAD = "Dead"
    """The group does not exist."""
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    UNKNOWN = "Unknown"
    """A state that was added in a later release of Kafka."""


@dataclass(frozen=True, slots=True)
class NativeMember:
    """A member of a Kafka-native group, as reported by the group coordinator."""

    id: str
    client_id: str
    host: str
    instance_id: str | None = None

    def __str__(self) -> str:
        return f"{self.id} at {self.host.removeprefix('/')}"


@dataclass(frozen=True, slots=True)
class NativeGroup:
    """A Kafka-native group. A group that does not exist has the state Dead."""

    name: str
    state: NativeState
    members: tuple[NativeMember, ...] = ()

    @property
    def in_use(self) -> bool:
        """True if the group has members, or may have some."""
        return bool(self.members) or self.state not in (NativeState.DEAD, NativeState.EMPTY)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of a partition's log: from the log start up to the log end, the offset of the next message."""

    start: int
    end: int

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset <= self.end
