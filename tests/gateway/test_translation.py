"""Requests of clients as requests to the coordinator, and its answers as Kafka's, in every version."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from zkgroups import TopicPartition
from zkgroups.coordinator import (
    CommitAnswer,
    CommitRequest,
    CommittedValue,
    DeleteOffsetsAnswer,
    DescribeAnswer,
    DescribedGroup,
    DescribedMember,
    FetchAnswer,
    FetchedOffsets,
    FetchRequest,
    GroupProtocol,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    KafkaError,
    LeaveAnswer,
    LeaveRequest,
    ListAnswer,
    ListedGroup,
    MemberIdentity,
    refusal,
)
from zkgroups.gateway.protocol.frames import START_SIZE, expects_answer
from zkgroups.gateway.protocol.group_messages import at_of, check_entries, groups_of, to_client, to_coordinator
from zkgroups.gateway.protocol.offered_apis import NEEDED, join, only
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.codec import ReceivedRequest
from zkgroups.kafka.wire.errors import DamagedRequestError

from .running import produce

AT = TopicPartition("orders", 3)


def received(message: Any, version: int) -> ReceivedRequest:
    """The request after its way over a connection."""
    return codec.decode_request(codec.encode(message, version, 7, "app")[4:])


def sent(request: ReceivedRequest, answer: Any) -> Any:
    """The answer after its way over a connection."""
    version = request.kind.version
    frame = codec.encode_answer(to_client(request, answer), version, 7)
    return codec.decode_answer(request.kind.key, version, frame[4:])


def versions(key: int, first: int = 0) -> range:
    return range(max(codec.SERVED[key].first, first), codec.SERVED[key].last + 1)


def join_message(**more: Any) -> Any:
    protocol = codec.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\1")
    fields = {"group_id": "g", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000, "member_id": "m"}
    return codec.JoinGroupRequest(**fields | {"protocol_type": "consumer", "protocols": [protocol]} | more)


@pytest.mark.parametrize("version", versions(codec.JOIN_GROUP))
def test_join(version: int) -> None:
    request = received(join_message(group_instance_id="i" if version >= 5 else None), version)
    assert to_coordinator(request, "/host") == JoinRequest(
        "g",
        "m",
        (GroupProtocol("range", b"\0\1"),),
        10.0,
        60.0 if version else 10.0,
        "consumer",
        "i" if version >= 5 else None,
        "app",
        "/host",
        requires_known_member_id=version >= 4,
        supports_skipping_assignment=version >= 9,
    )
    joined = JoinAnswer(KafkaError.NONE, "m", 5, "consumer", "range", "m", (JoinedMember("m", None, b"\0\1"),))
    found = sent(request, joined)
    assert (found.error_code, found.member_id, found.generation_id, found.protocol_name) == (0, "m", 5, "range")
    assert [(each.member_id, bytes(each.metadata)) for each in found.members] == [("m", b"\0\1")]
    refused = sent(request, JoinAnswer(KafkaError.UNKNOWN_MEMBER_ID, "m"))
    assert (refused.error_code, refused.generation_id, refused.protocol_name or "") == (25, -1, "")


@pytest.mark.parametrize("version", versions(codec.LEAVE_GROUP))
def test_leave(version: int) -> None:
    member = codec.LeaveGroupRequest.MemberIdentity(member_id="m", group_instance_id="i")
    request = received(codec.LeaveGroupRequest(group_id="g", member_id="m", members=[member]), version)
    identity = MemberIdentity("m", "i" if version >= 3 else None)
    assert to_coordinator(request, "") == LeaveRequest("g", (identity,))
    found = sent(request, LeaveAnswer(KafkaError.NONE, (KafkaError.UNKNOWN_MEMBER_ID,)))
    if version < 3:
        assert found.error_code == 25
    else:
        assert [(each.member_id, each.error_code) for each in found.members] == [("m", 25)]


def commit_message(*offsets: tuple[str, int, int]) -> Any:
    kind = codec.OffsetCommitRequest.OffsetCommitRequestTopic
    topics = [
        kind(
            name=topic,
            partitions=[
                kind.OffsetCommitRequestPartition(
                    partition_index=number, committed_offset=offset, committed_leader_epoch=4, committed_metadata=None
                )
            ],
        )
        for topic, number, offset in offsets
    ]
    return codec.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=5, member_id="m", topics=topics)


@pytest.mark.parametrize("version", versions(codec.OFFSET_COMMIT))
def test_commit(version: int) -> None:
    request = received(commit_message(("orders", 3, 17), ("orders", 4, -1), ("a/b", 0, 1), ("orders", -1, 1)), version)
    epoch = 4 if version >= 6 else -1
    offsets = {AT: CommittedValue(17, "", epoch), TopicPartition("orders", 4): CommittedValue(-1, "", epoch)}
    member = ("m", 5) if version else ("", -1)
    assert to_coordinator(request, "") == CommitRequest("g", offsets, *member)
    found = sent(request, CommitAnswer(dict.fromkeys(offsets, KafkaError.ILLEGAL_GENERATION)))
    assert [topic.partitions[0].error_code for topic in found.topics] == [22, 22, 3, 3]


@pytest.mark.parametrize(("version", "more"), [(0, b""), (1, b"\0\0\0\5\0\1m")])
def test_a_commit_of_an_old_client(version: int, more: bytes) -> None:
    """kafka-python claims only later versions. Version 1 has a time for each offset."""
    head = struct.pack(">hhih", 8, version, 7, 3) + b"app" + b"\0\1g" + more
    topic = struct.pack(">ih", 1, 6) + b"orders" + struct.pack(">iiq", 1, 3, 17)
    request = codec.decode_request(head + topic + (struct.pack(">q", 99) if version else b"") + b"\0\2hi")
    member = ("m", 5) if version else ("", -1)
    assert to_coordinator(request, "") == CommitRequest("g", {AT: CommittedValue(17, "hi")}, *member)
    answer = codec.encode_answer(to_client(request, CommitAnswer({AT: KafkaError.NONE})), version, 7)
    assert answer[8:] == struct.pack(">ih", 1, 6) + b"orders" + struct.pack(">iih", 1, 3, 0)


@pytest.mark.parametrize("version", versions(codec.OFFSET_FETCH))
def test_fetch(version: int) -> None:
    kind = codec.OffsetFetchRequest
    if version < 8:
        topics = [kind.OffsetFetchRequestTopic(name="orders", partition_indexes=[3, 4, -1])]
        message = kind(group_id="g", topics=topics)
    else:
        group = kind.OffsetFetchRequestGroup
        topics = [group.OffsetFetchRequestTopics(name="orders", partition_indexes=[3, 4, -1])]
        message = kind(groups=[group(group_id="g", topics=topics)])
    request = received(message, version)
    assert to_coordinator(request, "") == FetchRequest({"g": (AT, TopicPartition("orders", 4))})
    found = sent(request, FetchAnswer({"g": FetchedOffsets(KafkaError.NONE, {AT: CommittedValue(17, "note")})}))
    [topic] = found.topics if version < 8 else found.groups[0].topics
    assert [(each.committed_offset, each.metadata) for each in topic.partitions] == [(17, "note"), (-1, ""), (-1, "")]
    missing = 0 if version else 3
    assert [each.error_code for each in topic.partitions] == [0, missing, missing]
    unreadable = {TopicPartition("orders", 4): KafkaError.UNKNOWN_SERVER_ERROR}
    found = sent(request, FetchAnswer({"g": FetchedOffsets(KafkaError.NONE, {AT: CommittedValue(17)}, unreadable)}))
    [topic] = found.topics if version < 8 else found.groups[0].topics
    assert [each.error_code for each in topic.partitions] == [0, -1, missing]
    refused = sent(request, FetchAnswer({"g": FetchedOffsets(KafkaError.COORDINATOR_NOT_AVAILABLE)}))
    if version < 2:
        assert [each.error_code for each in refused.topics[0].partitions] == [15, 15, 15]
    else:
        assert (refused if version < 8 else refused.groups[0]).error_code == 15


@pytest.mark.parametrize("version", versions(codec.OFFSET_FETCH, 2))
def test_fetch_of_all_partitions(version: int) -> None:
    kind = codec.OffsetFetchRequest
    message = kind(group_id="g", topics=None)
    if version >= 8:
        message = kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=None)])
    request = received(message, version)
    assert to_coordinator(request, "") == FetchRequest({"g": None})
    found = sent(request, FetchAnswer({"g": FetchedOffsets(KafkaError.NONE, {AT: CommittedValue(17)})}))
    [topic] = found.topics if version < 8 else found.groups[0].topics
    assert (topic.name, [each.partition_index for each in topic.partitions]) == ("orders", [3])


@pytest.mark.parametrize("version", versions(codec.DESCRIBE_GROUPS))
def test_describe(version: int) -> None:
    request = received(codec.DescribeGroupsRequest(groups=["g", "gone"]), version)
    member = DescribedMember("m", None, "app", "/host", b"s", b"a")
    stable = DescribedGroup("g", KafkaError.NONE, "Stable", "consumer", "range", (member,))
    found = sent(request, DescribeAnswer((stable, DescribedGroup("gone", KafkaError.NONE, "Dead"))))
    assert [each.group_state for each in found.groups] == ["Stable", "Dead"]
    assert [each.error_code for each in found.groups] == [0, 69 if version >= 6 else 0]
    [shown] = found.groups[0].members
    assert (shown.member_id, shown.client_host, bytes(shown.member_assignment)) == ("m", "/host", b"a")


@pytest.mark.parametrize("version", versions(codec.LIST_GROUPS))
def test_list(version: int) -> None:
    states = ["Stable"] if version >= 4 else []
    request = received(codec.ListGroupsRequest(states_filter=states), version)
    assert groups_of(request) is None
    found = sent(request, ListAnswer(KafkaError.NONE, (ListedGroup("g", "consumer", "Stable"),)))
    assert [(each.group_id, each.protocol_type) for each in found.groups] == [("g", "consumer")]
    assert version < 5 or found.groups[0].group_type == "classic"


def test_delete_offsets() -> None:
    kind = codec.OffsetDeleteRequest.OffsetDeleteRequestTopic
    partitions = [kind.OffsetDeleteRequestPartition(partition_index=number) for number in (3, -1)]
    request = received(codec.OffsetDeleteRequest(group_id="g", topics=[kind(name="orders", partitions=partitions)]), 0)
    found = sent(request, DeleteOffsetsAnswer(KafkaError.NONE, {AT: KafkaError.GROUP_SUBSCRIBED_TO_TOPIC}))
    assert [each.error_code for each in found.topics[0].partitions] == [86, 3]
    refused = sent(request, DeleteOffsetsAnswer(KafkaError.GROUP_ID_NOT_FOUND))
    assert (refused.error_code, refused.topics) == (69, [])


@pytest.mark.parametrize("key", [key for key in NEEDED if key != codec.FIND_COORDINATOR])
def test_every_request_can_be_refused_in_every_version(key: int) -> None:
    for version in versions(key):
        request = received(getattr(codec, f"{codec.SERVED[key].name}Request")(), version)
        sent(request, refusal(to_coordinator(request, ""), KafkaError.GROUP_AUTHORIZATION_FAILED))


def test_a_request_about_several_groups_is_split_and_its_answers_joined() -> None:
    request = received(codec.DescribeGroupsRequest(groups=["a", "b", "c"]), 5)
    parts = [only(request, {"b"}), only(request, {"a", "c"})]
    assert [groups_of(part) for part in parts] == [["b"], ["a", "c"]]
    answers = [
        to_client(part, refusal(to_coordinator(part, ""), KafkaError.GROUP_AUTHORIZATION_FAILED)) for part in parts
    ]
    assert [each.group_id for each in join(*answers).groups] == ["b", "a", "c"]


def test_a_topic_with_an_impossible_name_is_not_remembered() -> None:
    """Clients could fill the memory of the gateway with such names."""
    assert at_of("x" * 249, 0) == TopicPartition("x" * 249, 0)
    assert at_of("x" * 250, 0) is None


def test_a_group_that_is_named_twice_is_answered_once() -> None:
    describe = received(codec.DescribeGroupsRequest(groups=["a", "b", "a"]), 5)
    find = received(codec.FindCoordinatorRequest(key_type=0, coordinator_keys=["a", "a"]), 4)
    group = codec.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="a", topics=None)
    fetch = received(codec.OffsetFetchRequest(groups=[group, group]), 8)
    assert [groups_of(only(each, {"a", "b"})) for each in (describe, find, fetch)] == [["a", "b"], ["a"], ["a"]]


LEAVING = codec.LeaveGroupRequest.MemberIdentity(member_id="m", group_instance_id=None)
OLD_TOPIC = codec.OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[1, 2, 3])
NEW_TOPIC = codec.OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics(
    name="orders", partition_indexes=[1, 2]
)


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (codec.DescribeGroupsRequest(groups=["g"] * 4), 5),
        (codec.DeleteGroupsRequest(groups_names=["g"] * 4), 2),
        (codec.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"] * 4), 4),
        (codec.LeaveGroupRequest(group_id="g", members=[LEAVING] * 4), 4),
        (join_message(protocols=join_message().protocols * 4), 5),
        (commit_message(("orders", 3, 17), ("payments", 4, 18)), 8),
        (codec.OffsetFetchRequest(group_id="g", topics=[OLD_TOPIC]), 5),
        (
            codec.OffsetFetchRequest(
                groups=[codec.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[NEW_TOPIC])]
            ),
            8,
        ),
    ],
)
def test_a_request_with_too_many_entries_is_refused(message: Any, version: int) -> None:
    request = received(message, version)
    check_entries(request, 4)
    with pytest.raises(DamagedRequestError, match="entries; at most 3 are accepted"):
        check_entries(request, 3)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_only_a_produce_request_without_acks_has_no_answer(acks: int) -> None:
    frame = produce("orders", 0, acks=acks, id=1)[4:]
    assert expects_answer(frame[:START_SIZE]) is (acks != 0)
    first = frame[:2] + b"\0\0" + frame[4:8] + frame[8:11] + frame[13:]  # version 0 has no transactions
    assert expects_answer(first) is (acks != 0)


@pytest.mark.parametrize("cut", [0, 7, 9, 12, 14])
def test_a_produce_request_that_is_too_short_is_refused(cut: int) -> None:
    with pytest.raises(DamagedRequestError):
        expects_answer(produce("orders", 0, acks=1, id=1)[4 : 4 + cut])


@pytest.mark.parametrize(
    "message",
    [
        codec.HeartbeatRequest(group_id="g", generation_id=1, member_id=None),
        codec.SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=None),
        join_message(protocol_type=None),
        join_message(protocols=None),
        join_message(protocols=join_message().protocols * 101),
        codec.DescribeGroupsRequest(groups=["g", None]),
    ],
)
def test_a_request_without_a_name_or_with_too_many_strategies_is_refused(message: Any) -> None:
    kind = codec.RequestKind(message.API_KEY, 5, 1)
    request = ReceivedRequest(kind, "app", message)
    with pytest.raises(DamagedRequestError):
        _ = groups_of(request), to_coordinator(request, "")
