"""Convert answers of the coordinator to Kafka's answers for clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ...coordinator.values import (
    Answer,
    CommitAnswer,
    CommittedValue,
    DeleteGroupsAnswer,
    DeleteOffsetsAnswer,
    DescribeAnswer,
    DescribedGroup,
    FetchAnswer,
    FetchedOffsets,
    HeartbeatAnswer,
    JoinAnswer,
    KafkaError,
    LeaveAnswer,
    ListAnswer,
    SyncAnswer,
)
from ...core.znodes.topic_partition import TopicPartition
from ...kafka.wire import codec
from ...kafka.wire.codec import ReceivedRequest
from ...kafka.wire.connection import Code
from .group_requests import FIRST_FETCH_OF_SEVERAL, at_of

_FIRST_WITHOUT_PROTOCOL_ON_ERROR: Final = 7
_FIRST_LEAVE_OF_SEVERAL: Final = 3
_FIRST_FETCH_FROM_KAFKA: Final = 1
_FIRST_FETCH_WITH_ERROR: Final = 2
_FIRST_DESCRIBE_OF_DEAD: Final = 6
_DEAD: Final = "Dead"
_CLASSIC: Final = "classic"
_NO_OFFSET: Final = CommittedValue(-1)


def to_client(received: ReceivedRequest, answer: Answer) -> Any:
    """Convert the coordinator's answer to Kafka's answer for this request."""
    message: Any = _TRANSLATIONS[received.kind.key](received, answer)
    message.API_VERSION = received.kind.version
    return message


def _join(received: ReceivedRequest, answer: JoinAnswer) -> Any:
    kind = codec.JoinGroupResponse
    version = received.kind.version
    protocol = answer.protocol
    if protocol is None and version < _FIRST_WITHOUT_PROTOCOL_ON_ERROR:
        protocol = ""
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
        protocol_name=protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=members,
    )


def _sync(_received: ReceivedRequest, answer: SyncAnswer) -> Any:
    return codec.SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


def _heartbeat(_received: ReceivedRequest, answer: HeartbeatAnswer) -> Any:
    return codec.HeartbeatResponse(error_code=answer.error)


def _leave(received: ReceivedRequest, answer: LeaveAnswer) -> Any:
    kind = codec.LeaveGroupResponse
    if received.kind.version < _FIRST_LEAVE_OF_SEVERAL:
        return kind(error_code=answer.error or next(iter(answer.members), KafkaError.NONE), members=[])
    left = zip(received.message.members, answer.members, strict=False)
    members = [
        kind.MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error)
        for each, error in left
    ]
    return kind(error_code=answer.error, members=members)


def _commit(received: ReceivedRequest, answer: CommitAnswer) -> Any:
    kind = codec.OffsetCommitResponse.OffsetCommitResponseTopic

    def partition(topic: str, each: Any) -> Any:
        at = at_of(topic, each.partition_index)
        if at is None:
            error: int = Code.UNKNOWN_TOPIC_OR_PARTITION
        else:
            error = answer.errors[at]
        return kind.OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)

    topics = [
        kind(name=topic.name, partitions=[partition(topic.name, each) for each in topic.partitions])
        for topic in received.message.topics
    ]
    return codec.OffsetCommitResponse(topics=topics)


def _fetch(received: ReceivedRequest, answer: FetchAnswer) -> Any:
    message, kind, version = received.message, codec.OffsetFetchResponse, received.kind.version
    if version < FIRST_FETCH_OF_SEVERAL:
        found = answer.groups[message.group_id]
        shape = kind.OffsetFetchResponseTopic
        missing: int = found.error
        if not found.error and version < _FIRST_FETCH_FROM_KAFKA:
            missing = Code.UNKNOWN_TOPIC_OR_PARTITION
        has_topics = not found.error or version < _FIRST_FETCH_WITH_ERROR
        wanted = message.topics if has_topics else ()
        topics = _fetched(shape, shape.OffsetFetchResponsePartition, wanted, found, missing)
        return kind(error_code=found.error, topics=topics)
    groups = []
    for each in message.groups:
        found = answer.groups[each.group_id]
        shape = kind.OffsetFetchResponseGroup.OffsetFetchResponseTopics
        wanted = () if found.error else each.topics
        topics = _fetched(shape, shape.OffsetFetchResponsePartitions, wanted, found, Code.NONE)
        groups.append(kind.OffsetFetchResponseGroup(group_id=each.group_id, topics=topics, error_code=found.error))
    return kind(groups=groups)


def _fetched(topic_kind: Any, partition_kind: Any, wanted: Any, found: FetchedOffsets, missing: int) -> list[Any]:
    """Return the offsets of the requested partitions, or all offsets if `wanted` is None.

    `missing` is the error for partitions without an offset.
    """
    numbers: Iterable[tuple[str, Iterable[int]]]
    if wanted is None:
        numbers = _by_topic(found.offsets).items()
    else:
        numbers = [(topic.name, topic.partition_indexes) for topic in wanted]

    def partition(topic: str, number: int) -> Any:
        at = at_of(topic, number)
        value, error = (None, missing) if at is None else (found.offsets.get(at), found.errors.get(at, missing))
        if value is not None:
            error = Code.NONE
        value = value or _NO_OFFSET
        return partition_kind(
            partition_index=number,
            committed_offset=value.offset,
            committed_leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            error_code=error,
        )

    return [
        topic_kind(name=topic, partitions=[partition(topic, number) for number in those]) for topic, those in numbers
    ]


def _by_topic(offsets: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for at in sorted(offsets):
        found.setdefault(at.topic, []).append(at.partition)
    return found


def _list(_received: ReceivedRequest, answer: ListAnswer) -> Any:
    kind = codec.ListGroupsResponse
    groups = [
        kind.ListedGroup(
            group_id=each.group, protocol_type=each.protocol_type, group_state=each.state, group_type=_CLASSIC
        )
        for each in answer.groups
    ]
    return kind(error_code=answer.error, groups=groups)


def _describe(received: ReceivedRequest, answer: DescribeAnswer) -> Any:
    return codec.DescribeGroupsResponse(groups=[_described(each, received.kind.version) for each in answer.groups])


def _described(group: DescribedGroup, version: int) -> Any:
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


def _delete_groups(received: ReceivedRequest, answer: DeleteGroupsAnswer) -> Any:
    kind = codec.DeleteGroupsResponse
    names = dict.fromkeys(received.message.groups_names)
    results = [kind.DeletableGroupResult(group_id=name, error_code=answer.errors[name]) for name in names]
    return kind(results=results)


def _delete_offsets(received: ReceivedRequest, answer: DeleteOffsetsAnswer) -> Any:
    if answer.error:
        return codec.OffsetDeleteResponse(error_code=answer.error, topics=[])
    kind = codec.OffsetDeleteResponse.OffsetDeleteResponseTopic

    def partition(topic: str, number: int) -> Any:
        at = at_of(topic, number)
        error = Code.UNKNOWN_TOPIC_OR_PARTITION if at is None else answer.errors[at]
        return kind.OffsetDeleteResponsePartition(partition_index=number, error_code=error)

    topics = [
        kind(name=topic.name, partitions=[partition(topic.name, each.partition_index) for each in topic.partitions])
        for topic in received.message.topics
    ]
    return codec.OffsetDeleteResponse(error_code=Code.NONE, topics=topics)


_TRANSLATIONS: Final[Mapping[int, Callable[[ReceivedRequest, Any], Any]]] = {
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
