"""Values that brokers report: Kafka-native groups with their offsets, and the range of offsets in a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from typing import NamedTuple

from .znodes.topic_partition import TopicPartition


class NativeOffset(NamedTuple):
    """The committed offset of one partition in a Kafka-native group.

    - `group`, `at`: the name of the group, and the partition.
    - `offset`: the next message to read.
    - `metadata`: the free text that the consumer committed with the offset.
    - `leader_epoch`: the epoch of the partition's leader, if the consumer committed it.
    """

    group: str
    at: TopicPartition
    offset: int
    metadata: str | None = None
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
    """The state of a Kafka-native group, in Kafka's words.

    Dead                 the group does not exist
    Empty                it has no members; it may have offsets
    PreparingRebalance   members are joining
    CompletingRebalance  members wait for their partitions
    Stable               every member has its partitions
    Unknown              a state that was added in a later release of Kafka
    """

    DEAD = "Dead"
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class NativeMember:
    """A member of a Kafka-native group, as reported by the group coordinator.

    - `id`: the id that the coordinator gave it.
    - `client_id`: the `client.id` of its configuration.
    - `host`: the address of its machine.
    - `instance_id`: its `group.instance.id`, if it is a static member.
    """

    id: str
    client_id: str
    host: str
    instance_id: str | None = None

    def __str__(self) -> str:
        return f"{self.id} at {self.host.removeprefix('/')}"


@dataclass(frozen=True, slots=True)
class NativeGroup:
    """A Kafka-native group: its `name`, `state` and `members`. A group that does not exist has the state Dead."""

    name: str
    state: NativeState
    members: tuple[NativeMember, ...] = ()

    @property
    def in_use(self) -> bool:
        """True if the group has members, or may have some."""
        return bool(self.members) or self.state not in (NativeState.DEAD, NativeState.EMPTY)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of a partition's log.

    - `start`: the log start, the first offset that a broker still has.
    - `end`: the log end, the offset of the next message. The lag of a group is `end` minus its committed offset.

    `offset in range` is true for every offset at which a consumer can start, `end` included.
    """

    start: int
    end: int

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset <= self.end
