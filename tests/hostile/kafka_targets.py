"""Requests of Kafka's clients to the gateway, and answers of brokers, in all versions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from struct import pack
from typing import Any, TypeAlias

from zkgroups import TopicPartition
from zkgroups.coordinator import (
    CoordinatorConfig,
    GroupCoordinator,
    MemoryStorage,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from zkgroups.coordinator.actions import SendAnswer
from zkgroups.coordinator.config import AssignmentBy
from zkgroups.coordinator.consumer_protocol import decode_subscription
from zkgroups.gateway.protocol.frames import NAME_START, FrameError, FrameSplitter, expects_answer, name_end
from zkgroups.gateway.protocol.group_messages import groups_of, to_client, to_coordinator
from zkgroups.gateway.protocol.offered_apis import Handling, offered, only
from zkgroups.kafka.requests import fetch_offsets
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.errors import DamagedAnswerError, DamagedRequestError

from ..gateway.running import produce
from ..gateway.test_translation import versions

Errors: TypeAlias = tuple[type[BaseException], ...]
AT = TopicPartition("orders", 3)
SUBSCRIBED = encode_subscription(Subscription(frozenset({"orders", "ä"}), frozenset({AT})))


def kafka_targets() -> dict[str, tuple[Callable[[bytes], object], tuple[bytes, ...], Errors]]:
    """Return functions, their samples, and their errors."""
    return {
        "requests to the gateway": (_Served.begin, requests(), (DamagedRequestError, FrameError)),
        "answers of brokers": (_answer, _answers(), (DamagedAnswerError,)),
        "committed offsets": (_fetched, _fetch_answers(), (DamagedAnswerError,)),
        "consumer protocol": (_consumer_protocol, (SUBSCRIBED, encode_assignment([AT, TopicPartition("ä", 0)])), ()),
    }


# Requests

JOIN = codec.JoinGroupRequest.JoinGroupRequestProtocol
SYNC = codec.SyncGroupRequest.SyncGroupRequestAssignment
LEAVE = codec.LeaveGroupRequest.MemberIdentity
COMMIT = codec.OffsetCommitRequest.OffsetCommitRequestTopic
FETCH = codec.OffsetFetchRequest.OffsetFetchRequestTopic
GROUP = codec.OffsetFetchRequest.OffsetFetchRequestGroup
DELETE = codec.OffsetDeleteRequest.OffsetDeleteRequestTopic


def _messages() -> list[Any]:
    partition = COMMIT.OffsetCommitRequestPartition(
        partition_index=3, committed_offset=5, committed_leader_epoch=-1, committed_metadata="m"
    )
    member = {"group_id": "g", "generation_id": 1, "member_id": "c-1"}
    return [
        codec.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[JOIN(name="range", metadata=SUBSCRIBED)],
        ),
        codec.SyncGroupRequest(**member, assignments=[SYNC(member_id="c-1", assignment=encode_assignment([AT]))]),
        codec.HeartbeatRequest(**member),
        codec.LeaveGroupRequest(group_id="g", member_id="c-1", members=[LEAVE(member_id="c-1", group_instance_id="i")]),
        codec.OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[COMMIT(name="orders", partitions=[partition])],
        ),
        codec.OffsetFetchRequest(
            group_id="g",
            topics=[FETCH(name="orders", partition_indexes=[3])],
            groups=[GROUP(group_id="g", topics=[GROUP.OffsetFetchRequestTopics(name="orders", partition_indexes=[3])])],
        ),
        codec.OffsetDeleteRequest(
            group_id="g",
            topics=[DELETE(name="orders", partitions=[DELETE.OffsetDeleteRequestPartition(partition_index=3)])],
        ),
        codec.DescribeGroupsRequest(groups=["g", "h"]),
        codec.DeleteGroupsRequest(groups_names=["g"]),
        codec.ListGroupsRequest(states_filter=["Stable"]),
        codec.FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"]),
        codec.MetadataRequest(topics=[]),
        codec.ApiVersionsRequest(client_software_name="c", client_software_version="1"),
    ]


def requests() -> tuple[bytes, ...]:
    frames = [
        codec.encode(message, version, 7, "c") for message in _messages() for version in versions(message.API_KEY)
    ]
    return (*frames, produce("orders", 3, acks=1, id=7, records=b"x" * 20))


MEMBER = codec.encode(_messages()[0], 3, 7, "c") + codec.encode(_messages()[1], 3, 8, "c")


class _Served:
    """What a gateway does with the bytes of a client, without connections."""

    def __init__(self) -> None:
        config = CoordinatorConfig(assignment_by=AssignmentBy.COORDINATOR, initial_rebalance_delay=0)
        self._coordinator = GroupCoordinator(MemoryStorage({"orders": 4}), config, new_id=map(str, count(1)).__next__)
        self._now = 0.0

    @classmethod
    def begin(cls, data: bytes) -> None:
        """Let a member join, and then receive these bytes."""
        served = cls()
        served.receive(MEMBER)
        served.receive(data)

    def receive(self, data: bytes) -> None:
        frames = FrameSplitter(longest=1 << 20)
        frames.add(data)
        while (start := frames.start(8)) is not None:
            kind = codec.RequestKind.read(start)
            found = offered(kind.key, kind.version)
            if found is None:
                raise DamagedRequestError("it is not offered")
            if found.handling is not Handling.GROUPS:
                self._look(frames, kind.key)
                frames.pass_on()
                frames.take()
                continue
            frames.take()
            frame = frames.whole()
            if frame is None:
                return
            self._answer(bytes(frame))

    @staticmethod
    def _look(frames: FrameSplitter, key: int) -> None:
        if key == 0 and (begin := frames.start(512)) is not None:
            expects_answer(begin)
        if key == codec.METADATA and (begin := frames.start(NAME_START)) is not None:
            name_end(begin)

    def _answer(self, frame: bytes) -> None:
        received = codec.decode_request(frame)
        names = groups_of(received)
        if received.kind.key == codec.FIND_COORDINATOR or names == []:
            return  # the broker answers
        asked = received if names is None else only(received, names)
        self._now += 1.0
        outcomes = [
            *self._coordinator.pass_time(self._now),
            *self._coordinator.request(1, to_coordinator(asked, "/host"), self._now),
        ]
        for each in outcomes:
            if isinstance(each, SendAnswer) and each.request_id == 1:
                answer = codec.encode_answer(to_client(asked, each.answer), received.kind.version, 7)
                codec.decode_answer(received.kind.key, received.kind.version, answer[4:])


# Answers

_MARK = 0x5A


def _answers() -> tuple[bytes, ...]:
    """The kind and the version, and then the frame of an answer without its length."""
    found = []
    for key, api in {**codec.SERVED, **codec.APIS}.items():
        for version in range(api.first, api.last + 1):
            answer = getattr(codec, f"{api.name}Response")()
            try:
                frame = codec.encode_answer(answer, version, 7)[4:]
            except Exception:  # a version needs more fields
                frame = pack(">i", 7) + bytes(40)
            found.append(bytes([_MARK, key, version]) + frame + bytes(12))
    return tuple(found)


def _answer(data: bytes) -> None:
    if len(data) < 3 or data[0] != _MARK:
        return
    key, version, frame = data[1], data[2], data[3:]
    api = codec.APIS.get(key) or codec.SERVED.get(key)
    if api is not None and api.first <= version <= api.last:
        codec.decode_answer(key, version, frame)


def _fetch_answers() -> tuple[bytes, ...]:
    row = pack(">iqih", 3, 17, 0, 0) + pack(">h", -1)
    classic = pack(">ii", 7, 0) + pack(">ih", 1, 6) + b"orders" + pack(">i", 2) + row + row + pack(">h", 0)
    flexible = (
        pack(">i", 7) + b"\0" + pack(">i", 0) + b"\2\2g\2\7orders\2" + pack(">iqi", 3, 17, 0) + b"\1\0\0\0\0\0\0\0\0"
    )
    return tuple(bytes([version]) + frame for version in range(1, 10) for frame in (classic, flexible))


def _fetched(data: bytes) -> None:
    if data and 1 <= data[0] <= 9:
        fetch_offsets.read(["g"], data[0], data[1:])


def _consumer_protocol(data: bytes) -> None:
    if (subscription := decode_subscription(data)) is not None:
        assert len(subscription.topics) + len(subscription.owned) <= len(data)
    decode_assignment(data)
