"""Requests about groups, from Kafka's messages to the coordinator's, and the answers back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from ...coordinator import values
from ...coordinator.values import KafkaError
from ...core.znodes.topic_partition import TopicPartition
from ...input_errors import InvalidNameError
from ...kafka.wire import codec
from ...kafka.wire.codec import ReceivedRequest
from ...kafka.wire.connection import Code
from ...kafka.wire.errors import DamagedRequestError
from .addresses import FIRST_WITH_SEVERAL_KEYS

FIRST_FETCH_OF_SEVERAL: Final = 8

_LISTS: Final = (
    "groups",
    "groups_names",
    "coordinator_keys",
    "states_filter",
    "types_filter",
    "topics",
    "partitions",
    "partition_indexes",
    "members",
    "assignments",
    "protocols",
)
_SHORT: Final = 500
_LONGEST_TOPIC: Final = 249
"""In characters: Kafka has no longer names. Clients could fill the memory with them."""
_MOST_STRATEGIES: Final = 100
"""No client offers more than a few. They stay in memory."""


# What a request names, and how large it is.


def at_of(topic: str, partition: int) -> TopicPartition | None:
    """Return a partition; None if its name or number is not valid."""
    if len(topic or "") > _LONGEST_TOPIC:
        return None
    try:
        return _checked(topic, partition)
    except InvalidNameError:
        return None


_checked = lru_cache(maxsize=2**16)(TopicPartition)  # clients name the same partitions again and again


def groups_of(received: ReceivedRequest) -> list[str] | None:
    """Return the groups that a request names; None if it is about all groups."""
    message, key = received.message, received.kind.key
    if key == codec.LIST_GROUPS:
        return None
    if key == codec.DESCRIBE_GROUPS:
        found = message.groups
    elif key == codec.DELETE_GROUPS:
        found = message.groups_names
    elif key == codec.FIND_COORDINATOR:
        found = message.coordinator_keys if received.kind.version >= FIRST_WITH_SEVERAL_KEYS else [message.key]
    elif key == codec.OFFSET_FETCH and received.kind.version >= FIRST_FETCH_OF_SEVERAL:
        found = [each.group_id for each in message.groups or ()]
    else:
        found = [message.group_id]
    return [_text(name) for name in found or ()]


def check_entries(received: ReceivedRequest, most: int) -> None:
    """Raise DamagedRequestError if a request has too many entries: other clients wait while it is answered."""
    if (count := _entries(received.message, most)) > most:
        raise DamagedRequestError(f"a request about groups has {count} entries; at most {most} are accepted")


def is_long(received: ReceivedRequest) -> bool:
    """Return whether a request or its answer may have many entries."""
    message, key = received.message, received.kind.key
    if key == codec.OFFSET_FETCH:
        parts = (message,) if received.kind.version < FIRST_FETCH_OF_SEVERAL else message.groups or ()
        if any(each.topics is None for each in parts):
            return True
    return key in (codec.LIST_GROUPS, codec.DESCRIBE_GROUPS) or _entries(message, _SHORT) > _SHORT


def _entries(part: Any, most: int) -> int:
    """Return the number of elements of all lists in a request, or a smaller number that is above `most`."""
    lists = {name: found for name in _LISTS if (found := getattr(part, name, None))}
    count = sum(map(len, lists.values()))
    nested = (each for name in ("topics", "groups") for each in lists.get(name, ()) if not isinstance(each, str))
    return count if count > most else count + sum(_entries(each, most) for each in nested)


def _text(value: str | None) -> str:
    if value is None:
        raise DamagedRequestError("a name is null in a request about groups")
    return value


# The conversions. A table at the end has both directions of each kind of request.


def to_coordinator(received: ReceivedRequest, client_host: str) -> values.Request:
    """Convert one of Kafka's group requests to a request for the coordinator.

    Raise DamagedRequestError if a required field is null.
    """
    convert, _answer = _CONVERSIONS[received.kind.key]
    try:
        return convert(received, client_host)
    except TypeError as error:
        raise DamagedRequestError(f"a list is null in a request with API key {received.kind.key}") from error


def to_client(received: ReceivedRequest, answer: values.Answer) -> Any:
    """Convert the coordinator's answer to Kafka's answer for this request."""
    _request, convert = _CONVERSIONS[received.kind.key]
    message = convert(received, answer)
    message.API_VERSION = received.kind.version
    return message


_MS: Final = 1000
_FIRST_WITH_KNOWN_MEMBER_ID: Final = 4
_FIRST_WITHOUT_PROTOCOL_ON_ERROR: Final = 7
_FIRST_WITH_SKIPPED_ASSIGNMENT: Final = 9


def _join(received: ReceivedRequest, client_host: str) -> values.JoinRequest:
    message, version = received.message, received.kind.version
    if len(message.protocols) > _MOST_STRATEGIES:
        raise DamagedRequestError(f"a client offers {len(message.protocols)} strategies")
    rebalance_ms = message.rebalance_timeout_ms
    return values.JoinRequest(
        message.group_id,
        _text(message.member_id),
        tuple(values.GroupProtocol(_text(each.name), bytes(each.metadata)) for each in message.protocols),
        message.session_timeout_ms / _MS,
        (message.session_timeout_ms if rebalance_ms is None or rebalance_ms < 0 else rebalance_ms) / _MS,
        _text(message.protocol_type),
        message.group_instance_id,
        received.client_id or "",
        client_host,
        requires_known_member_id=version >= _FIRST_WITH_KNOWN_MEMBER_ID,
        supports_skipping_assignment=version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
    )


def _joined(received: ReceivedRequest, answer: values.JoinAnswer) -> Any:
    kind = codec.JoinGroupResponse
    lacks_protocol = answer.protocol is None and received.kind.version < _FIRST_WITHOUT_PROTOCOL_ON_ERROR
    members = [
        kind.JoinGroupResponseMember(
            member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata
        )
        for each in answer.members
    ]
    return kind(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name="" if lacks_protocol else answer.protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=members,
    )


def _sync(received: ReceivedRequest, _host: str) -> values.SyncRequest:
    message = received.message
    return values.SyncRequest(
        message.group_id,
        _text(message.member_id),
        message.generation_id,
        {_text(each.member_id): bytes(each.assignment) for each in message.assignments},
        message.group_instance_id,
        message.protocol_type,
        message.protocol_name,
    )


def _synced(_received: ReceivedRequest, answer: values.SyncAnswer) -> Any:
    return codec.SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


def _heartbeat(received: ReceivedRequest, _host: str) -> values.HeartbeatRequest:
    message = received.message
    return values.HeartbeatRequest(
        message.group_id, _text(message.member_id), message.generation_id, message.group_instance_id
    )


def _confirmed(_received: ReceivedRequest, answer: values.HeartbeatAnswer) -> Any:
    return codec.HeartbeatResponse(error_code=answer.error)


_FIRST_LEAVE_OF_SEVERAL: Final = 3


def _leave(received: ReceivedRequest, _host: str) -> values.LeaveRequest:
    message = received.message
    if received.kind.version < _FIRST_LEAVE_OF_SEVERAL:
        return values.LeaveRequest(message.group_id, (values.MemberIdentity(_text(message.member_id)),))
    members = tuple(values.MemberIdentity(_text(each.member_id), each.group_instance_id) for each in message.members)
    return values.LeaveRequest(message.group_id, members)


def _left(received: ReceivedRequest, answer: values.LeaveAnswer) -> Any:
    kind = codec.LeaveGroupResponse
    if received.kind.version < _FIRST_LEAVE_OF_SEVERAL:
        return kind(error_code=answer.error or next(iter(answer.members), KafkaError.NONE), members=[])
    left = zip(received.message.members, answer.members, strict=False)
    members = [
        kind.MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error)
        for each, error in left
    ]
    return kind(error_code=answer.error, members=members)


def _commit(received: ReceivedRequest, _host: str) -> values.CommitRequest:
    message = received.message
    return values.CommitRequest(
        message.group_id,
        dict(_offsets(message.topics)),
        _text(message.member_id),
        message.generation_id_or_member_epoch,
        message.group_instance_id,
    )


def _offsets(topics: Any) -> Iterator[tuple[TopicPartition, values.CommittedValue]]:
    for topic in topics:
        for each in topic.partitions:
            if (at := at_of(topic.name, each.partition_index)) is not None:
                epoch = -1 if each.committed_leader_epoch is None else each.committed_leader_epoch
                yield at, values.CommittedValue(each.committed_offset, each.committed_metadata or "", epoch)


def _committed(received: ReceivedRequest, answer: values.CommitAnswer) -> Any:
    kind = codec.OffsetCommitResponse.OffsetCommitResponseTopic
    partition = kind.OffsetCommitResponsePartition
    return codec.OffsetCommitResponse(topics=_errors(kind, partition, received.message.topics, answer.errors))


def _errors(kind: Any, partition: Any, topics: Any, errors: Mapping[TopicPartition, KafkaError]) -> list[Any]:
    """Return the errors of the partitions in a request. A partition that cannot exist is unknown."""

    def error(topic: str, number: int) -> int:
        at = at_of(topic, number)
        return Code.UNKNOWN_TOPIC_OR_PARTITION if at is None else errors[at]

    return [
        kind(
            name=topic.name,
            partitions=[
                partition(partition_index=each.partition_index, error_code=error(topic.name, each.partition_index))
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]


_FIRST_FETCH_FROM_KAFKA: Final = 1
_FIRST_FETCH_WITH_ERROR: Final = 2
_NO_OFFSET: Final = values.CommittedValue(-1)


def _fetch(received: ReceivedRequest, _host: str) -> values.FetchRequest:
    message = received.message
    if received.kind.version < FIRST_FETCH_OF_SEVERAL:
        return values.FetchRequest({message.group_id: _partitions(message.topics)})
    return values.FetchRequest({each.group_id: _partitions(each.topics) for each in message.groups})


def _partitions(topics: Any) -> tuple[TopicPartition, ...] | None:
    if topics is None:
        return None
    found = (at_of(topic.name, number) for topic in topics for number in topic.partition_indexes)
    return tuple(dict.fromkeys(at for at in found if at is not None))


def _fetched(received: ReceivedRequest, answer: values.FetchAnswer) -> Any:
    message, kind, version = received.message, codec.OffsetFetchResponse, received.kind.version
    if version < FIRST_FETCH_OF_SEVERAL:
        found = answer.groups[message.group_id]
        shape = kind.OffsetFetchResponseTopic
        missing: int = found.error
        if not found.error and version < _FIRST_FETCH_FROM_KAFKA:
            missing = Code.UNKNOWN_TOPIC_OR_PARTITION
        has_topics = not found.error or version < _FIRST_FETCH_WITH_ERROR
        wanted = message.topics if has_topics else ()
        topics = _fetched_topics(shape, shape.OffsetFetchResponsePartition, wanted, found, missing)
        return kind(error_code=found.error, topics=topics)
    groups = []
    for each in message.groups:
        found = answer.groups[each.group_id]
        shape = kind.OffsetFetchResponseGroup.OffsetFetchResponseTopics
        wanted = () if found.error else each.topics
        topics = _fetched_topics(shape, shape.OffsetFetchResponsePartitions, wanted, found, Code.NONE)
        groups.append(kind.OffsetFetchResponseGroup(group_id=each.group_id, topics=topics, error_code=found.error))
    return kind(groups=groups)


def _fetched_topics(kind: Any, partition: Any, wanted: Any, found: values.FetchedOffsets, missing: int) -> list[Any]:
    """Return the offsets of the requested partitions, or all offsets if `wanted` is None.

    `missing` is the error for partitions without an offset.
    """

    def fetched(topic: str, number: int) -> Any:
        at = at_of(topic, number)
        value, error = (None, missing) if at is None else (found.offsets.get(at), found.errors.get(at, missing))
        if value is not None:
            error = Code.NONE
        value = value or _NO_OFFSET
        return partition(
            partition_index=number,
            committed_offset=value.offset,
            committed_leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            error_code=error,
        )

    if wanted is None:
        numbers = _by_topic(found.offsets)
    else:
        numbers = [(topic.name, topic.partition_indexes) for topic in wanted]
    return [kind(name=topic, partitions=[fetched(topic, number) for number in those]) for topic, those in numbers]


def _by_topic(offsets: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for at in sorted(offsets):
        found.setdefault(at.topic, []).append(at.partition)
    return list(found.items())


_CLASSIC: Final = "classic"


def _list(received: ReceivedRequest, _host: str) -> values.ListRequest:
    message = received.message
    return values.ListRequest(frozenset(message.states_filter or ()), frozenset(message.types_filter or ()))


def _listed(_received: ReceivedRequest, answer: values.ListAnswer) -> Any:
    kind = codec.ListGroupsResponse
    groups = [
        kind.ListedGroup(
            group_id=each.group, protocol_type=each.protocol_type, group_state=each.state, group_type=_CLASSIC
        )
        for each in answer.groups
    ]
    return kind(error_code=answer.error, groups=groups)


_FIRST_DESCRIBE_OF_DEAD: Final = 6
_DEAD: Final = "Dead"


def _describe(received: ReceivedRequest, _host: str) -> values.DescribeRequest:
    return values.DescribeRequest(tuple(received.message.groups))


def _described(received: ReceivedRequest, answer: values.DescribeAnswer) -> Any:
    groups = [_described_group(each, received.kind.version) for each in answer.groups]
    return codec.DescribeGroupsResponse(groups=groups)


def _described_group(group: values.DescribedGroup, version: int) -> Any:
    kind = codec.DescribeGroupsResponse.DescribedGroup
    error, text = group.error, None
    if not error and group.state == _DEAD and version >= _FIRST_DESCRIBE_OF_DEAD:
        error, text = KafkaError.GROUP_ID_NOT_FOUND, f"Group {group.group} not found."
    members = [
        kind.DescribedGroupMember(
            member_id=each.member_id,
            group_instance_id=each.instance_id,
            client_id=each.client_id,
            client_host=each.client_host,
            member_metadata=each.metadata,
            member_assignment=each.assignment,
        )
        for each in group.members
    ]
    return kind(
        error_code=error,
        error_message=text,
        group_id=group.group,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=members,
    )


def _delete_groups(received: ReceivedRequest, _host: str) -> values.DeleteGroupsRequest:
    return values.DeleteGroupsRequest(tuple(received.message.groups_names))


def _deleted_groups(received: ReceivedRequest, answer: values.DeleteGroupsAnswer) -> Any:
    kind = codec.DeleteGroupsResponse
    names = dict.fromkeys(received.message.groups_names)
    results = [kind.DeletableGroupResult(group_id=name, error_code=answer.errors[name]) for name in names]
    return kind(results=results)


def _delete_offsets(received: ReceivedRequest, _host: str) -> values.DeleteOffsetsRequest:
    message = received.message
    found = (at_of(topic.name, each.partition_index) for topic in message.topics for each in topic.partitions)
    return values.DeleteOffsetsRequest(message.group_id, tuple(dict.fromkeys(at for at in found if at is not None)))


def _deleted_offsets(received: ReceivedRequest, answer: values.DeleteOffsetsAnswer) -> Any:
    kind = codec.OffsetDeleteResponse.OffsetDeleteResponseTopic
    topics = () if answer.error else received.message.topics
    deleted = _errors(kind, kind.OffsetDeleteResponsePartition, topics, answer.errors)
    return codec.OffsetDeleteResponse(error_code=answer.error, topics=deleted)


_CONVERSIONS: Final[
    Mapping[int, tuple[Callable[[ReceivedRequest, str], values.Request], Callable[[ReceivedRequest, Any], Any]]]
] = {
    codec.JOIN_GROUP: (_join, _joined),
    codec.SYNC_GROUP: (_sync, _synced),
    codec.HEARTBEAT: (_heartbeat, _confirmed),
    codec.LEAVE_GROUP: (_leave, _left),
    codec.OFFSET_COMMIT: (_commit, _committed),
    codec.OFFSET_FETCH: (_fetch, _fetched),
    codec.LIST_GROUPS: (_list, _listed),
    codec.DESCRIBE_GROUPS: (_describe, _described),
    codec.DELETE_GROUPS: (_delete_groups, _deleted_groups),
    codec.OFFSET_DELETE: (_delete_offsets, _deleted_offsets),
}
