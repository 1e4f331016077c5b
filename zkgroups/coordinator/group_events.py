"""The events of one group: requests that were checked against the group, deadlines, and results of the storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ..core.znodes.topic_partition import TopicPartition
from .values import CommitRequest, JoinRequest, KafkaError, SyncRequest


@dataclass(frozen=True, slots=True)
class MemberIdRequested:
    """A client without a member id wants to join. It gets an id, and must send its request again with this id."""

    request_id: int
    request: JoinRequest


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A new member joins with this id."""

    request_id: int
    request: JoinRequest
    member_id: str


@dataclass(frozen=True, slots=True)
class MemberRejoined:
    """A member joins again."""

    request_id: int
    request: JoinRequest


@dataclass(frozen=True, slots=True)
class StaticMemberReturned:
    """A static member has restarted: it joins with its instance id, and without its member id."""

    request_id: int
    request: JoinRequest


@dataclass(frozen=True, slots=True)
class MemberSynced:
    """A member of this generation asks for its assignment."""

    request_id: int
    request: SyncRequest


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A member of this generation is alive."""

    request_id: int
    member_id: str


@dataclass(frozen=True, slots=True)
class CommitReceived:
    """A member of this generation, or a simple consumer (without a member id), commits offsets."""

    request_id: int
    request: CommitRequest


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A member leaves."""

    member_id: str


@dataclass(frozen=True, slots=True)
class MemberExpired:
    """A member sent nothing within its session timeout."""

    member_id: str


@dataclass(frozen=True, slots=True)
class PendingIdDropped:
    """A client that got a member id leaves, or did not join with this id in time."""

    member_id: str


@dataclass(frozen=True, slots=True)
class InitialDelayElapsed:
    """The initial delay of an empty group is over. The group has waited for more members."""


@dataclass(frozen=True, slots=True)
class JoinTimedOut:
    """The longest rebalance timeout has elapsed since the rebalance began."""


@dataclass(frozen=True, slots=True)
class SyncTimedOut:
    """The longest rebalance timeout has elapsed since the generation began."""


@dataclass(frozen=True, slots=True)
class RebalanceStuck:
    """The group has been rebalancing for too long."""


@dataclass(frozen=True, slots=True)
class PartitionsAssigned:
    """The partitions of the generation are assigned."""

    generation: int
    partitions: Mapping[str, frozenset[TopicPartition]]


@dataclass(frozen=True, slots=True)
class GenerationReady:
    """The generation is stored with these assignments."""

    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class GenerationFailed:
    """The generation could not be assigned or stored."""

    generation: int
    error: KafkaError


@dataclass(frozen=True, slots=True)
class ReplacementStored:
    """The new id of a static member that has restarted is stored, or could not be stored."""

    member_id: str
    leader_before: str
    skips_assignment: bool
    error: KafkaError


@dataclass(frozen=True, slots=True)
class RebalanceRequested:
    """Something outside the group has changed, so it must rebalance. `within` limits the time to join again."""

    within: float | None


@dataclass(frozen=True, slots=True)
class MembersLost:
    """All members must join again, as new members."""


@dataclass(frozen=True, slots=True)
class GroupDropped:
    """The group is deleted, expired or moved, or the coordinator ends. Parked requests get this error."""

    error: KafkaError


GroupEvent: TypeAlias = (
    MemberIdRequested
    | MemberJoined
    | MemberRejoined
    | StaticMemberReturned
    | MemberSynced
    | HeartbeatReceived
    | CommitReceived
    | MemberLeft
    | MemberExpired
    | PendingIdDropped
    | InitialDelayElapsed
    | JoinTimedOut
    | SyncTimedOut
    | RebalanceStuck
    | PartitionsAssigned
    | GenerationReady
    | GenerationFailed
    | ReplacementStored
    | RebalanceRequested
    | MembersLost
    | GroupDropped
)
