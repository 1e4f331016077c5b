"""The requests that a coordinator answers, and its answers, with the fields of Kafka's group APIs that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from ..core.znodes.own_nodes import CoordinatorNode
from ..core.znodes.topic_partition import TopicPartition

# The error codes that a group coordinator answers with, in Kafka's words.


class KafkaError(IntEnum):
    """An error code of Kafka's protocol. `NONE` means success."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    GROUP_AUTHORIZATION_FAILED = 30
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86


# The value of a committed offset, as clients commit and fetch it.


@dataclass(frozen=True, slots=True)
class CommittedValue:
    """A committed offset of one partition.

    - `offset`: the next message to read.
    - `metadata`: a free text of the client.
    - `leader_epoch`: the epoch of the partition's leader, if the client committed it.
    - `committed_at`: when it was committed, in seconds. The coordinator sets it.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    committed_at: float | None = None


# The requests that a coordinator answers, with the fields of Kafka's group APIs that it needs.
#
# Durations are in seconds. Old versions of an API do not have all fields: the default of a field is its meaning
# there.


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


# The answers to requests. Every request gets exactly one answer; a parked one gets it later.


NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member, as the leader of the group sees it.

    - `member_id`, `instance_id`: its ids.
    - `metadata`: its subscription for the protocol of the generation.
    """

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The generation that a member belongs to.

    - `error`: if it is not `NONE`, only `member_id` is valid.
    - `member_id`: the id to use from now on.
    - `generation`: the number of the generation.
    - `protocol_type`, `protocol`: the protocol that was chosen for all members.
    - `leader`: the member that assigns the partitions.
    - `members`: all members, if the answer goes to the leader.
    - `skip_assignment`: True if the leader must not assign the partitions again.
    """

    error: KafkaError
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The assignment of a member.

    - `error`: if it is not `NONE`, the other fields are not valid.
    - `assignment`: the assignment, as the leader wrote it.
    - `protocol_type`, `protocol`: the protocol of the generation.
    """

    error: KafkaError
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The `error` `REBALANCE_IN_PROGRESS` asks the member to join again."""

    error: KafkaError


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """One `error` for the whole request, or an error for each of its `members`, in the same order."""

    error: KafkaError
    members: tuple[KafkaError, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """The `errors` of all partitions of the request."""

    errors: Mapping[TopicPartition, KafkaError]


@dataclass(frozen=True, slots=True)
class LocateAnswer:
    """The `groups` of the request that have another coordinator. All other groups may be joined here.

    With an `error`, coordinators could not be looked up. `are_elected`: whether coordinators can change.
    """

    error: KafkaError
    groups: Mapping[str, CoordinatorNode] = field(default_factory=dict)
    are_elected: bool = False


@dataclass(frozen=True, slots=True)
class FetchedOffsets:
    """The `offsets` of one group, or an `error`. A partition without a committed offset is missing.

    `errors` has the partitions whose offsets could not be read.
    """

    error: KafkaError
    offsets: Mapping[TopicPartition, CommittedValue] = field(default_factory=dict)
    errors: Mapping[TopicPartition, KafkaError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """The offsets of each of the `groups` of the request."""

    groups: Mapping[str, FetchedOffsets]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One `group` of a list, with its `protocol_type` and `state`. Its type is `classic`."""

    group: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class ListAnswer:
    """All `groups`, sorted by name, or an `error`."""

    error: KafkaError
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member of a group.

    - `member_id`, `instance_id`: its ids.
    - `client_id`, `client_host`: its client.
    - `metadata`, `assignment`: its subscription and its assignment; empty unless the group is stable.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group with its members.

    - `group`, `error`: the name, and the error if it could not be described.
    - `state`: its state. A group that does not exist is Dead, without an error.
    - `protocol_type`, `protocol`: the protocol; empty unless the group is stable.
    - `members`: its members, including those of other clients.
    """

    group: str
    error: KafkaError
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeAnswer:
    """The `groups` of the request, in the same order."""

    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupsAnswer:
    """The `errors` of all groups of the request."""

    errors: Mapping[str, KafkaError]


@dataclass(frozen=True, slots=True)
class DeleteOffsetsAnswer:
    """One `error` for the whole request, or the `errors` of all its partitions."""

    error: KafkaError
    errors: Mapping[TopicPartition, KafkaError] = field(default_factory=dict)


Answer: TypeAlias = (
    JoinAnswer
    | SyncAnswer
    | HeartbeatAnswer
    | LeaveAnswer
    | CommitAnswer
    | LocateAnswer
    | FetchAnswer
    | ListAnswer
    | DescribeAnswer
    | DeleteGroupsAnswer
    | DeleteOffsetsAnswer
)


def refusal(request: Request, error: KafkaError) -> Answer:  # noqa: C901 - one case for each request
    """Return the answer that refuses the whole request, with the error in the field where clients look for it."""
    match request:
        case JoinRequest():
            return JoinAnswer(error, request.member_id)
        case SyncRequest():
            return SyncAnswer(error)
        case HeartbeatRequest():
            return HeartbeatAnswer(error)
        case LeaveRequest():
            return LeaveAnswer(error)
        case CommitRequest():
            return CommitAnswer(dict.fromkeys(request.offsets, error))
        case LocateRequest():
            return LocateAnswer(error)
        case FetchRequest():
            return FetchAnswer({group: FetchedOffsets(error) for group in request.groups})
        case ListRequest():
            return ListAnswer(error)
        case DescribeRequest():
            return DescribeAnswer(tuple(DescribedGroup(group, error) for group in request.groups))
        case DeleteGroupsRequest():
            return DeleteGroupsAnswer(dict.fromkeys(request.groups, error))
        case DeleteOffsetsRequest():
            return DeleteOffsetsAnswer(error)
