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
    """An assignment strategy that a member supports.

    - `name`: the name of the strategy.
    - `metadata`: the subscription of the member, in the format of the strategy.
    """

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Join a group, or join again. Parked until all members have joined.

    - `group`, `member_id`: a new member sends an empty id.
    - `protocols`: the strategies that the member supports, in its order.
    - `session_timeout`: the member is removed if it sends nothing for this time.
    - `rebalance_timeout`: the group waits for members that must join again, for the longest of these times.
    - `protocol_type`: the kind of members, such as `consumer`.
    - `instance_id`: the name of a static member, which stays the same when it restarts.
    - `client_id`, `client_host`: shown in descriptions.
    - `requires_known_member_id`: False for versions of JoinGroup before 4, which join with one request.
    - `supports_skipping_assignment`: False for versions of JoinGroup before 9, which know no `skip_assignment`.
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
    - `assignments`: the assignments of all members, from the leader.
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
    """A member that leaves, by its `member_id`. With an empty one, a static member is named by its `instance_id`."""

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

    - `group`, `offsets`: the offset of each partition.
    - `member_id`, `generation`: those of a member. Generation -1 is a simple consumer, or an administrator.
    - `instance_id`: checked if given.
    """

    group: str
    offsets: Mapping[TopicPartition, CommittedValue]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Fetch committed offsets of several `groups`; of a group with `None`, all partitions."""

    groups: Mapping[str, tuple[TopicPartition, ...] | None]


@dataclass(frozen=True, slots=True)
class ListRequest:
    """List all groups, or those in the named `states`, or of the named `types` (`classic` is the only one here)."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """Describe `groups` with their members."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest:
    """Delete `groups` without members, with their offsets."""

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

Request: TypeAlias = GroupRequest | FetchRequest | ListRequest | DescribeRequest | DeleteGroupsRequest
