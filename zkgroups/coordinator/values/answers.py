"""The answers to requests. Every request gets exactly one answer; a parked one gets it later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ...core.znodes.coordinator_node import CoordinatorNode
from ...core.znodes.topic_partition import TopicPartition
from .kafka_errors import KafkaError
from .offset_values import CommittedValue
from .requests import (
    CommitRequest,
    DeleteGroupsRequest,
    DeleteOffsetsRequest,
    DescribeRequest,
    FetchRequest,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    ListRequest,
    LocateRequest,
    Request,
    SyncRequest,
)

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
    """The `offsets` of one group, or an `error`. A partition without a committed offset is missing."""

    error: KafkaError
    offsets: Mapping[TopicPartition, CommittedValue] = field(default_factory=dict)


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
