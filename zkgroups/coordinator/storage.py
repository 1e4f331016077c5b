"""The interface between a coordinator and its storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ..core.znodes.own_nodes import CoordinatorNode
from ..core.znodes.topic_partition import TopicPartition
from .consumer_protocol import Subscription
from .values import CommittedValue, DescribedMember, FetchedOffsets, KafkaError

# Work for the storage of groups, and its results. A coordinator asks for work, and receives the result as an event.
#
# The storage carries out the work of one group in the order in which the coordinator asked for it. It answers each
# kind of work with the result named here, or with `WorkFailed`.


# Work


@dataclass(frozen=True, slots=True)
class LoadGroup:
    """Look up a group before its first request is processed. Answer with `GroupLoaded`.

    A storage with several coordinators fails with NOT_COORDINATOR if another one has the group.
    """

    group: str


@dataclass(frozen=True, slots=True)
class LocateGroups:
    """Find other coordinators of groups. Answer with `GroupsLocated`."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedMember:
    """A member for which partitions are assigned."""

    subscription: Subscription
    previous: frozenset[TopicPartition] = frozenset()
    """The assignment in the previous generation, for strategies that avoid moving partitions."""
    static_id: str | None = None
    """Its `group.instance.id`, if it is a static member."""
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class PerformAssignment:
    """Assign the partitions of all subscribed topics by a strategy. Answer with `AssignmentMade`.

    A storage may have members of other clients, such as Scala members in ZooKeeper. They get partitions, too.
    """

    group: str
    generation: int
    strategy: str
    members: Mapping[str, PlannedMember]


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a generation, as it is stored."""

    static_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes
    still_owned: frozenset[TopicPartition] = frozenset()
    """The partitions that the member listed as its own when it joined. It will give up those not assigned to it."""


@dataclass(frozen=True, slots=True)
class StoreGeneration:
    """Store a new generation. Its members get their assignments after the answer `GenerationStored`."""

    group: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: Mapping[str, StoredMember]


@dataclass(frozen=True, slots=True)
class ReleaseMembers:
    """Remove members that have left or expired, and release their partitions. Answer with `MembersReleased`."""

    group: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreOffsets:
    """Store offsets for a member of a generation, or for a simple consumer. Answer with `OffsetsStored`.

    The storage may refuse offsets of partitions that the member no longer owns there.
    """

    group: str
    member_id: str
    generation: int
    offsets: Mapping[TopicPartition, CommittedValue]


@dataclass(frozen=True, slots=True)
class ReadOffsets:
    """Read offsets of several groups. None means all offsets of a group. Answer with `OffsetsRead`."""

    groups: Mapping[str, tuple[TopicPartition, ...] | None]


@dataclass(frozen=True, slots=True)
class RemoveOffsets:
    """Delete offsets. Answer with `OffsetsRemoved`."""

    group: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """Delete the offsets that were committed before a time, except those of some topics.

    Without a time, delete nothing. Answer with `OffsetsExpired`: the number of offsets that remain.
    """

    group: str
    committed_before: float | None
    except_topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class RemoveGroup:
    """Delete a group with its offsets. Answer with `GroupRemoved`."""

    group: str


@dataclass(frozen=True, slots=True)
class ListStored:
    """List all stored groups. Answer with `StoredListed`."""


@dataclass(frozen=True, slots=True)
class DescribeStored:
    """Describe stored groups, with the members of other clients. Answer with `StoredDescribed`."""

    groups: tuple[str, ...]


Work: TypeAlias = (
    LoadGroup
    | LocateGroups
    | PerformAssignment
    | StoreGeneration
    | ReleaseMembers
    | StoreOffsets
    | ReadOffsets
    | RemoveOffsets
    | ExpireOffsets
    | RemoveGroup
    | ListStored
    | DescribeStored
)

# Results


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """The work was not carried out, or its outcome is unknown. The error goes to the client."""

    error: KafkaError


@dataclass(frozen=True, slots=True)
class GroupLoaded:
    """The stored state of a group. The number of its next generation is higher than `generation`."""

    exists: bool
    generation: int = 0
    protocol_type: str = ""


@dataclass(frozen=True, slots=True)
class GroupsLocated:
    """The groups that have another coordinator. `are_elected`: whether coordinators can change."""

    elsewhere: Mapping[str, CoordinatorNode] = field(default_factory=dict)
    are_elected: bool = False


@dataclass(frozen=True, slots=True)
class AssignmentMade:
    """The partitions of each member. A missing member gets none."""

    partitions: Mapping[str, frozenset[TopicPartition]]


@dataclass(frozen=True, slots=True)
class GenerationStored:
    """The generation is stored."""


@dataclass(frozen=True, slots=True)
class MembersReleased:
    """The members are released."""


@dataclass(frozen=True, slots=True)
class OffsetsStored:
    """The offsets are stored, except those in `errors`."""

    errors: Mapping[TopicPartition, KafkaError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetsRead:
    """The offsets of each group, or its error."""

    groups: Mapping[str, FetchedOffsets]


@dataclass(frozen=True, slots=True)
class OffsetsRemoved:
    """The offsets are deleted, except those in `errors`."""

    errors: Mapping[TopicPartition, KafkaError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetsExpired:
    """The number of offsets that remain."""

    remaining: int


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    """The group is deleted."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A stored group. `members` has the members of other clients, such as Scala consumers."""

    state: str
    protocol_type: str
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredListed:
    """All stored groups."""

    groups: Mapping[str, StoredGroup]


@dataclass(frozen=True, slots=True)
class StoredDescribed:
    """The requested groups that exist, or the error of a group."""

    groups: Mapping[str, StoredGroup | KafkaError]


Result: TypeAlias = (
    WorkFailed
    | GroupLoaded
    | GroupsLocated
    | AssignmentMade
    | GenerationStored
    | MembersReleased
    | OffsetsStored
    | OffsetsRead
    | OffsetsRemoved
    | OffsetsExpired
    | GroupRemoved
    | StoredListed
    | StoredDescribed
)


class Storage(Protocol):
    """Keeps generations and offsets."""

    def start(self, work_id: int, work: Work, /) -> Result | None:
        """Start work, and return its result, or None if the result comes later as a `WorkFinished` event.

        It must not block. Work for one group is carried out in the order in which it was started.
        """

    def let_leave(self) -> bool:
        """Let all members commit and leave, because the coordinator ends. Return whether none is left. Call it again.

        It must not block. Members that join from now on wait until the coordinator has ended.
        """

    def may_be_lost(self, group: str, /) -> bool:
        """True if another coordinator may have taken over this group since it was loaded. It must not block."""
