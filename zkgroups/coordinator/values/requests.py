"""The requests that a coordinator answers, with the fields of Kafka's group APIs that it needs.

Durations are in seconds. Old versions of an API do not have all fields: the default of a field is its meaning there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ...core.znodes.topic_partition import TopicPartition
from .offset_values import CommittedValue


@dataclass(frozen=True, slots=True)
class GroupProtocol:
    """An assignment strategy that a member supports.

    - `name`: the name of the strategy.
    - `metadata`: the subscription of the member, in the format of the strategy.
    """

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Join a group, or join again. Parked until all members have joined.

    - `group`, `member_id`: the group, and the id of the member. A new member sends an empty id.
    - `protocols`: the strategies that the member supports, in the order of its preference.
    - `session_timeout`: the member is removed if it sends nothing for this time.
    - `rebalance_timeout`: how long a rebalance waits for members to join again. The longest of all members counts.
    - `protocol_type`: the kind of members, such as `consumer`.
    - `instance_id`: the name of a static member, which stays the same when it restarts.
    - `client_id`, `client_host`: shown in descriptions.
    - `requires_known_member_id`: False for JoinGroup before version 4: new members join with their first request.
    - `supports_skipping_assignment`: False for JoinGroup before version 9, which does not have `skip_assignment`.
    """

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
    supports_skipping_assignment: bool = True


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """Ask for the assignment of a generation.

    - `group`, `member_id`, `generation`: those of the answer to the join request.
    - `assignments`: the assignments of all members. Only the leader sends them.
    - `instance_id`, `protocol_type`, `protocol`: checked if given.
    """

    group: str
    member_id: str
    generation: int
    assignments: Mapping[str, bytes]
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """Keep the session of a member alive, and learn whether a rebalance has begun.

    - `group`, `member_id`, `generation`: those of the answer to the join request.
    - `instance_id`: checked if given.
    """

    group: str
    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """A member that leaves. With an empty `member_id`, it is the static member with this `instance_id`."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """Remove `members` from a `group`."""

    group: str
    members: tuple[MemberIdentity, ...]


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Commit offsets.

    - `group`, `offsets`: the group, and the offset of each partition.
    - `member_id`, `generation`: those of a member. Generation -1 means a simple consumer, or an administrator.
    - `instance_id`: checked if given.
    """

    group: str
    offsets: Mapping[TopicPartition, CommittedValue]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LocateRequest:
    """Find the coordinators of `groups`, if several coordinators share the storage."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Fetch committed offsets of several `groups`. None instead of the partitions of a group means all its offsets."""

    groups: Mapping[str, tuple[TopicPartition, ...] | None]


@dataclass(frozen=True, slots=True)
class ListRequest:
    """List the groups in these `states` and of these `types`. Empty sets mean all. Every group here is `classic`."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """Describe `groups` with their members."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest:
    """Delete `groups` and their offsets. A group with members is not deleted."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteOffsetsRequest:
    """Delete committed offsets of `partitions`, if no member of the `group` subscribes to their topics."""

    group: str
    partitions: tuple[TopicPartition, ...]


GroupRequest: TypeAlias = (
    JoinRequest | SyncRequest | HeartbeatRequest | LeaveRequest | CommitRequest | DeleteOffsetsRequest
)
"""A request to one group, which is loaded first."""

Request: TypeAlias = GroupRequest | LocateRequest | FetchRequest | ListRequest | DescribeRequest | DeleteGroupsRequest
