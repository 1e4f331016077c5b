"""Convert requests of clients to requests for the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from ...coordinator.values import (
    CommitRequest,
    CommittedValue,
    DeleteGroupsRequest,
    DeleteOffsetsRequest,
    DescribeRequest,
    FetchRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    ListRequest,
    MemberIdentity,
    Request,
    SyncRequest,
)
from ...core.znodes.topic_partition import TopicPartition
from ...input_errors import InvalidNameError
from ...kafka.wire import codec
from ...kafka.wire.codec import ReceivedRequest
from ...kafka.wire.errors import DamagedRequestError
from .addresses import FIRST_WITH_SEVERAL_KEYS

_FIRST_WITH_KNOWN_MEMBER_ID: Final = 4
_FIRST_WITH_SKIPPED_ASSIGNMENT: Final = 9
_FIRST_LEAVE_OF_SEVERAL: Final = 3
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

_MS: Final = 1000


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


def to_coordinator(received: ReceivedRequest, client_host: str) -> Request:
    """Convert one of Kafka's group requests to a request for the coordinator.

    Raise DamagedRequestError if a required field is null.
    """
    try:
        return _TRANSLATIONS[received.kind.key](received, client_host)
    except TypeError as error:
        raise DamagedRequestError(f"a list is null in a request with API key {received.kind.key}") from error


def _text(value: str | None) -> str:
    if value is None:
        raise DamagedRequestError("a name is null in a request about groups")
    return value


def _join(received: ReceivedRequest, client_host: str) -> Request:
    message, version = received.message, received.kind.version
    if len(message.protocols) > _MOST_STRATEGIES:
        raise DamagedRequestError(f"a client offers {len(message.protocols)} strategies")
    rebalance_ms = message.rebalance_timeout_ms
    return JoinRequest(
        message.group_id,
        _text(message.member_id),
        tuple(GroupProtocol(_text(each.name), bytes(each.metadata)) for each in message.protocols),
        message.session_timeout_ms / _MS,
        (message.session_timeout_ms if rebalance_ms is None or rebalance_ms < 0 else rebalance_ms) / _MS,
        _text(message.protocol_type),
        message.group_instance_id,
        received.client_id or "",
        client_host,
        requires_known_member_id=version >= _FIRST_WITH_KNOWN_MEMBER_ID,
        supports_skipping_assignment=version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
    )


def _sync(received: ReceivedRequest, _host: str) -> Request:
    message = received.message
    return SyncRequest(
        message.group_id,
        _text(message.member_id),
        message.generation_id,
        {_text(each.member_id): bytes(each.assignment) for each in message.assignments},
        message.group_instance_id,
        message.protocol_type,
        message.protocol_name,
    )


def _heartbeat(received: ReceivedRequest, _host: str) -> Request:
    message = received.message
    return HeartbeatRequest(
        message.group_id, _text(message.member_id), message.generation_id, message.group_instance_id
    )


def _leave(received: ReceivedRequest, _host: str) -> Request:
    message = received.message
    if received.kind.version < _FIRST_LEAVE_OF_SEVERAL:
        return LeaveRequest(message.group_id, (MemberIdentity(_text(message.member_id)),))
    members = tuple(MemberIdentity(_text(each.member_id), each.group_instance_id) for each in message.members)
    return LeaveRequest(message.group_id, members)


def _commit(received: ReceivedRequest, _host: str) -> Request:
    message = received.message
    return CommitRequest(
        message.group_id,
        dict(_offsets(message.topics)),
        _text(message.member_id),
        message.generation_id_or_member_epoch,
        message.group_instance_id,
    )


def _offsets(topics: Any) -> Iterator[tuple[TopicPartition, CommittedValue]]:
    for topic in topics:
        for each in topic.partitions:
            at = at_of(topic.name, each.partition_index)
            if at is not None:
                epoch = -1 if each.committed_leader_epoch is None else each.committed_leader_epoch
                yield at, CommittedValue(each.committed_offset, each.committed_metadata or "", epoch)


def _fetch(received: ReceivedRequest, _host: str) -> Request:
    message = received.message
    if received.kind.version < FIRST_FETCH_OF_SEVERAL:
        return FetchRequest({message.group_id: _partitions(message.topics, "partition_indexes")})
    groups = {each.group_id: _partitions(each.topics, "partition_indexes") for each in message.groups}
    return FetchRequest(groups)


def _partitions(topics: Any, numbers: str) -> tuple[TopicPartition, ...] | None:
    if topics is None:
        return None
    found = (at_of(topic.name, number) for topic in topics for number in getattr(topic, numbers))
    return tuple(dict.fromkeys(at for at in found if at is not None))


def _list(received: ReceivedRequest, _host: str) -> Request:
    message = received.message
    return ListRequest(frozenset(message.states_filter or ()), frozenset(message.types_filter or ()))


def _describe(received: ReceivedRequest, _host: str) -> Request:
    return DescribeRequest(tuple(received.message.groups))


def _delete_groups(received: ReceivedRequest, _host: str) -> Request:
    return DeleteGroupsRequest(tuple(received.message.groups_names))


def _delete_offsets(received: ReceivedRequest, _host: str) -> Request:
    message = received.message
    found = (at_of(topic.name, each.partition_index) for topic in message.topics for each in topic.partitions)
    return DeleteOffsetsRequest(message.group_id, tuple(dict.fromkeys(at for at in found if at is not None)))


_TRANSLATIONS: Final[Mapping[int, Callable[[ReceivedRequest, str], Request]]] = {
    codec.JOIN_GROUP: _join,
    codec.SYNC_GROUP: _sync,
    codec.HEARTBEAT: _heartbeat,
    codec.LEAVE_GROUP: _leave,
    codec.OFFSET_COMMIT: _commit,
    codec.OFFSET_FETCH: _fetch,
    codec.LIST_GROUPS: _list,
    codec.DESCRIBE_GROUPS: _describe,
    codec.DELETE_GROUPS: _delete_groups,
    codec.OFFSET_DELETE: _delete_offsets,
}
