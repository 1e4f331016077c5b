"""The requests that a coordinator answers: the fields of Kafka's group APIs that matter to it. Durations are seconds.

The decoder of Kafka's frames makes these values. A default is the meaning of a field that an old version of the API
does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ...core.znodes.topic_partition import TopicPartition
from .offset_values import CommittedValue


@dataclass(frozen=True, slots=True)
class GroupProtocol:
    """One assignment strategy that a member supports, with the member's subscription in the strategy's own format."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Join a group, or join again. A new member sends an empty member id. Parked until all members have joined."""

    group: str
    member_id: str
    protocols: tuple[GroupProtocol, ...]
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str = "consumer"
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    requires_known_member_id: bool = True
    """False for versions of JoinGroup before 4: a new member is admitted without a second request."""
    supports_skipping_assignment: bool = True
    """False for versions of JoinGroup before 9: a static leader that returns is not named as the leader."""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """Ask for the assignment of a generation. The leader brings the assignments of all members."""

    group: str
    member_id: str
    generation: int
    assignments: Mapping[str, bytes]
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """Keep a member's session alive, and learn whether a rebalance has begun."""

    group: str
    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """A member that leaves. A static member may be named by its instance id alone, with an empty member id."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """Remove members from a group."""

    group: str
    members: tuple[MemberIdentity, ...]


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Commit offsets. Generation -1 without a member id is a simple consumer, or an administrator."""

    group: str
    offsets: Mapping[TopicPartition, CommittedValue]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Fetch committed offsets of several groups; of a group with `None`, all partitions."""

    groups: Mapping[str, tuple[TopicPartition, ...] | None]


@dataclass(frozen=True, slots=True)
class ListRequest:
    """List all groups, or those in the named states, or of the named types (`classic` is the only one here)."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """Describe groups with their members."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest:
    """Delete groups without members, with their offsets."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteOffsetsRequest:
    """Delete committed offsets of topics to which no member of the group subscribes."""

    group: str
    partitions: tuple[TopicPartition, ...]


GroupRequest: TypeAlias = (
    JoinRequest | SyncRequest | HeartbeatRequest | LeaveRequest | CommitRequest | DeleteOffsetsRequest
)
"""A request to one group, which is loaded first."""

Request: TypeAlias = GroupRequest | FetchRequest | ListRequest | DescribeRequest | DeleteGroupsRequest
