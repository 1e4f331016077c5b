"""A real broker gives the same answers to the same random requests. More of them: `ZKGROUPS_COMPARISONS=200`."""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from kafka.protocol.admin import groups as admin
from kafka.protocol.consumer import group as consumer

from zkgroups import TopicPartition
from zkgroups.coordinator import (
    CommitRequest,
    CommittedValue,
    DeleteGroupsRequest,
    DeleteOffsetsRequest,
    DescribeRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    MemberIdentity,
    SyncRequest,
)
from zkgroups.testing import KafkaBroker

from .clients import Clients, subscribed

LONG = 300.0
ANSWER_TIMEOUT = 30.0
MOMENT = 0.03
"""How long the broker may take for an answer that it should not give."""
_PROBE = -1


@dataclass
class Side:
    """What a client knows of itself: once for our coordinator, and once for the broker."""

    member_id: str = ""
    generation: int = -1


@dataclass(eq=False)
class Client:
    """A client that sends the same requests to both."""

    number: int
    instance_id: str | None
    ours: Side = field(default_factory=Side)
    kafka: Side = field(default_factory=Side)
    leads: bool = False
    offer: tuple[tuple[str, ...], tuple[str, ...]] | None = None


class Broker:
    """Sends each request on a connection of its own: a broker answers one after the other on each."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._address = host, int(port)
        self._open: dict[int, tuple[socket.socket, Any]] = {}

    def send(self, id: int, message: Any) -> None:
        connection = socket.create_connection(self._address, timeout=ANSWER_TIMEOUT)
        message.with_header(correlation_id=1, client_id="app")
        connection.sendall(message.encode(header=True, framed=True))
        self._open[id] = connection, message

    def settle(self) -> None:
        """Return when the broker has begun all requests that were sent before, also those that it does not answer yet.

        It has read them before the first of these requests, and begins them before the second.
        """
        for _ in range(2):
            self.send(_PROBE, admin.DescribeGroupsRequest(version=5, groups=["nobody's"]))
            connection, _message = self._open[_PROBE]
            select.select([connection], [], [], ANSWER_TIMEOUT)
            self._read(_PROBE)

    def forget(self, id: int) -> None:
        self._open.pop(id)[0].close()

    def close(self) -> None:
        for id in list(self._open):
            self.forget(id)

    def answers(self, wanted: Iterable[int]) -> dict[int, Any]:
        """Return the answers to these requests, and all others that come within a moment."""
        found: dict[int, Any] = {}
        missing, end = set(wanted), time.monotonic() + ANSWER_TIMEOUT
        while time.monotonic() < end:
            if not missing:
                end = min(end, time.monotonic() + MOMENT)
            ids = {connection: id for id, (connection, _message) in self._open.items()}
            ready, _, _ = select.select(list(ids), [], [], max(0.0, end - time.monotonic()))
            for connection in ready:
                found[ids[connection]] = self._read(ids[connection])
                missing.discard(ids[connection])
            if not ready and not missing:
                break
        return found

    def _read(self, id: int) -> Any:
        connection, message = self._open.pop(id)
        # `MSG_WAITALL` does not wait on a socket with a timeout.
        with connection, connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            data = stream.read(size)
        name = type(message).__name__.replace("Request", "Response")
        answer = getattr(consumer, name, None) or getattr(admin, name)
        return answer.decode(data, version=message.version, header=True)


class ChoicesDiffer(Exception):
    """Kafka chose another new leader, or another protocol with as many votes. From there, the two groups differ."""


class Comparison:
    """Clients of one group, on both sides. The two topics exist on the broker."""

    def __init__(self, broker: Broker, group: str, topics: tuple[str, str], seed: int) -> None:
        self.broker = broker
        self.group = group
        self.orders, self.payments = topics
        self.chance = random.Random(seed)
        self.coordinator = Clients()
        self.clients = [Client(number, f"i{number}" if number < 2 and seed % 3 else None) for number in range(4)]
        self.history: list[Any] = []
        self._sent: dict[int, tuple[str, Client, Any]] = {}
        self._names: tuple[dict[str, str], dict[str, str]] = ({"": ""}, {"": ""})

    def step(self) -> None:
        client = self.chance.choice(self.clients)
        kinds: dict[Callable[[Client], Any], float] = {
            self.join: 12,
            self.sync: 10,
            self.beat: 4,
            self.commit: 3,
            self.leave: 2,
            self.describe: 2,
            self.delete_offset: 1,
            self.delete_group: 0.5,
            self.restart: 1,
        }
        [kind] = self.chance.choices(list(kinds), list(kinds.values()))
        if (pair := kind(client)) is not None:
            self._exchange(kind.__name__, client, *pair)

    def _exchange(self, kind: str, client: Client, ours: Any, message: Any) -> None:
        id = self.coordinator.send(ours)
        self._sent[id] = kind, client, message
        self.history.append((id, kind, client.number, ours))
        self.broker.send(id, message)
        self.coordinator.wait(0)
        mine, self.coordinator.answers = self.coordinator.answers, {}
        if id not in mine:
            self.broker.settle()
        theirs = self.broker.answers(set(mine) - self._never_answered(mine, id))
        for other in self._never_answered(mine, id) - set(theirs):
            self.broker.forget(other)
            del mine[other]
        self._learn_names(mine, theirs)
        for each in sorted({*mine, *theirs}):
            self._compare(each, mine.get(each), theirs.get(each))

    def _never_answered(self, mine: dict[int, Any], id: int) -> set[int]:
        """Kafka does not answer a parked request if its member sends it again or leaves. We do."""
        return {
            each
            for each in mine
            if each != id and self._sent[each][0] in ("join", "sync") and mine[each].error in (25, 27)
        }

    def _learn_names(self, mine: dict[int, Any], theirs: dict[int, Any]) -> None:
        """Member ids differ. Both get the name of the request that they were given for."""
        for id in sorted(set(mine) & set(theirs)):
            if self._sent[id][0] == "join":
                self._names[0].setdefault(mine[id].member_id, f"member {id}")
                self._names[1].setdefault(theirs[id].member_id, f"member {id}")

    def _compare(self, id: int, mine: Any, theirs: Any) -> None:
        kind, client, message = self._sent[id]
        assert mine is not None, f"only the broker answered {id}: {theirs}\n{self.history}"
        assert theirs is not None, f"only we answered {id}: {mine}\n{self.history}"
        ours, kafkas = getattr(self, f"_short_{kind}")(mine, theirs, message.version)
        if kind == "join" and ours[:3] == kafkas[:3] and ours[3:5] != kafkas[3:5]:
            raise ChoicesDiffer
        self.history.append((f"answer to {id}", ours))
        assert ours == kafkas, f"{id} {kind}: ours {ours}, Kafka's {kafkas}\n{self.history}"
        if kind == "join":
            if mine.error in (0, 79):
                client.ours, client.kafka = (
                    Side(mine.member_id, mine.generation),
                    Side(theirs.member_id, theirs.generation_id),
                )
                client.leads = mine.leader == mine.member_id
            elif mine.error == 25:
                client.ours, client.kafka = Side(), Side()

    # Requests, for us and for the broker

    def restart(self, client: Client) -> None:
        client.ours, client.kafka = Side(), Side()

    def _generations(self, client: Client) -> tuple[int, int]:
        """Sometimes those before."""
        late = self.chance.random() < 0.1
        return client.ours.generation - late, client.kafka.generation - late

    def join(self, client: Client) -> tuple[Any, Any]:
        if client.offer is None or self.chance.random() < 0.3:
            names = self.chance.choice([("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",)])
            client.offer = names, self.chance.choice([(self.orders,), (self.orders, self.payments)])
        names, topics = client.offer
        metadata = subscribed(*topics)
        version = self.chance.choice([9, 5, 5 if client.instance_id else 3])
        ours = JoinRequest(
            self.group,
            client.ours.member_id,
            tuple(GroupProtocol(name, metadata) for name in names),
            LONG,
            LONG,
            instance_id=client.instance_id,
            client_id="app",
            requires_known_member_id=version >= 4,
            supports_skipping_assignment=version >= 9,
        )
        protocol = consumer.JoinGroupRequest.JoinGroupRequestProtocol
        message = consumer.JoinGroupRequest(
            version=version,
            group_id=self.group,
            session_timeout_ms=int(LONG * 1000),
            rebalance_timeout_ms=int(LONG * 1000),
            member_id=client.kafka.member_id,
            group_instance_id=client.instance_id,
            protocol_type="consumer",
            protocols=[protocol(name=name, metadata=metadata) for name in names],
        )
        return ours, message

    def sync(self, client: Client) -> tuple[Any, Any]:
        generation, kafkas = self._generations(client)
        receivers = self.clients if client.leads else []
        ours = {each.ours.member_id: b"%d" % each.number for each in receivers if each.ours.member_id}
        theirs = {each.kafka.member_id: b"%d" % each.number for each in receivers if each.kafka.member_id}
        assignment = consumer.SyncGroupRequest.SyncGroupRequestAssignment
        return SyncRequest(
            self.group, client.ours.member_id, generation, ours, client.instance_id
        ), consumer.SyncGroupRequest(
            version=4,
            group_id=self.group,
            generation_id=kafkas,
            member_id=client.kafka.member_id,
            group_instance_id=client.instance_id,
            assignments=[assignment(member_id=id, assignment=data) for id, data in theirs.items()],
        )

    def beat(self, client: Client) -> tuple[Any, Any]:
        generation, kafkas = self._generations(client)
        message = consumer.HeartbeatRequest(
            version=4,
            group_id=self.group,
            generation_id=kafkas,
            member_id=client.kafka.member_id,
            group_instance_id=client.instance_id,
        )
        return HeartbeatRequest(self.group, client.ours.member_id, generation, client.instance_id), message

    def leave(self, client: Client) -> tuple[Any, Any] | None:
        if client.ours.member_id and client.ours.generation < 0:
            return None  # Kafka 4 begins a rebalance when an unused id leaves; Kafka 3 does not
        by_instance = client.instance_id is not None and self.chance.random() < 0.3
        identity = consumer.LeaveGroupRequest.MemberIdentity
        message = consumer.LeaveGroupRequest(
            version=5,
            group_id=self.group,
            members=[
                identity(
                    member_id="" if by_instance else client.kafka.member_id,
                    group_instance_id=client.instance_id,
                    reason=None,
                )
            ],
        )
        member_id = "" if by_instance else client.ours.member_id
        return LeaveRequest(self.group, (MemberIdentity(member_id, client.instance_id),)), message

    def commit(self, client: Client) -> tuple[Any, Any]:
        generation, kafkas = self._generations(client)
        simple = self.chance.random() < 0.3
        topic = consumer.OffsetCommitRequest.OffsetCommitRequestTopic
        partition = topic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=7, committed_leader_epoch=-1, committed_metadata=""
        )
        message = consumer.OffsetCommitRequest(
            version=8,
            group_id=self.group,
            generation_id_or_member_epoch=-1 if simple else kafkas,
            member_id="" if simple else client.kafka.member_id,
            group_instance_id=None if simple else client.instance_id,
            topics=[topic(name=self.orders, partitions=[partition])],
        )
        offsets = {TopicPartition(self.orders, 0): CommittedValue(7)}
        if simple:
            return CommitRequest(self.group, offsets), message
        return CommitRequest(self.group, offsets, client.ours.member_id, generation, client.instance_id), message

    def describe(self, _client: Client) -> tuple[Any, Any]:
        message = admin.DescribeGroupsRequest(version=5, groups=[self.group], include_authorized_operations=False)
        return DescribeRequest((self.group,)), message

    def delete_offset(self, _client: Client) -> tuple[Any, Any] | None:
        known = self.coordinator.coordinator.group(self.group)
        if known is None or known.state in ("Empty", "PreparingRebalance"):
            return None  # Kafka removes an empty group with its last offset; we are stricter while members first join
        topic = consumer.OffsetDeleteRequest.OffsetDeleteRequestTopic
        partition = topic.OffsetDeleteRequestPartition(partition_index=0)
        message = consumer.OffsetDeleteRequest(
            version=0, group_id=self.group, topics=[topic(name=self.payments, partitions=[partition])]
        )
        return DeleteOffsetsRequest(self.group, (TopicPartition(self.payments, 0),)), message

    def delete_group(self, _client: Client) -> tuple[Any, Any]:
        return DeleteGroupsRequest((self.group,)), admin.DeleteGroupsRequest(version=2, groups_names=[self.group])

    # What both answers say

    def _short_join(self, mine: Any, theirs: Any, version: int) -> tuple[Any, Any]:
        names, kafkas = self._names
        shows_instances = version >= 5
        ours = (
            int(mine.error),
            names.get(mine.member_id) if mine.error != 82 else None,
            mine.generation,
            names.get(mine.leader),
            mine.protocol or "",
            sorted(
                (names.get(each.member_id, "?"), (shows_instances and each.instance_id) or "") for each in mine.members
            ),
            version >= 9 and mine.skip_assignment,
        )
        members = [(each.member_id, getattr(each, "group_instance_id", None)) for each in theirs.members]
        return ours, (
            theirs.error_code,
            kafkas.get(theirs.member_id) if mine.error != 82 else None,
            theirs.generation_id,
            kafkas.get(theirs.leader or ""),
            theirs.protocol_name or "",
            sorted((kafkas.get(id, "?"), (shows_instances and instance) or "") for id, instance in members),
            version >= 9 and theirs.skip_assignment,
        )

    def _short_sync(self, mine: Any, theirs: Any, _version: int) -> tuple[Any, Any]:
        return (int(mine.error), mine.assignment), (theirs.error_code, bytes(theirs.assignment))

    def _short_beat(self, mine: Any, theirs: Any, _version: int) -> tuple[Any, Any]:
        return int(mine.error), theirs.error_code

    def _short_leave(self, mine: Any, theirs: Any, _version: int) -> tuple[Any, Any]:
        kafkas = [each.error_code for each in theirs.members]
        return (int(mine.error), list(map(int, mine.members))), (theirs.error_code, kafkas)

    def _short_commit(self, mine: Any, theirs: Any, _version: int) -> tuple[Any, Any]:
        kafkas = [each.error_code for topic in theirs.topics for each in topic.partitions]
        return list(map(int, mine.errors.values())), kafkas

    def _short_describe(self, mine: Any, theirs: Any, _version: int) -> tuple[Any, Any]:
        [ours], [kafkas] = mine.groups, theirs.groups
        stable = ours.state == "Stable"  # Kafka 4 shows old assignments also during a rebalance
        own = sorted((each.instance_id or "", each.metadata, each.assignment) for each in ours.members)
        members = [
            (each.group_instance_id or "", bytes(each.member_metadata), bytes(each.member_assignment))
            for each in kafkas.members
        ]
        return (ours.state, ours.protocol_type, ours.protocol, own if stable else len(own)), (
            kafkas.group_state,
            kafkas.protocol_type,
            kafkas.protocol_data,
            sorted(members) if stable else len(members),
        )

    def _short_delete_offset(self, mine: Any, theirs: Any, _version: int) -> tuple[Any, Any]:
        kafkas = [each.error_code for topic in theirs.topics for each in topic.partitions]
        return (int(mine.error), list(map(int, mine.errors.values()))), (theirs.error_code, kafkas)

    def _short_delete_group(self, mine: Any, theirs: Any, _version: int) -> tuple[Any, Any]:
        return list(map(int, mine.errors.values())), [each.error_code for each in theirs.results]


COMPARISONS = int(os.environ.get("ZKGROUPS_COMPARISONS", "10"))
STEPS = 50


def test_random_requests_get_the_same_answers_from_a_broker(kafka_broker: KafkaBroker) -> None:
    tag = f"compared-{uuid4().hex[:8]}"
    topics = f"{tag}-orders", f"{tag}-payments"
    for topic in topics:
        kafka_broker.create_topic(topic)
    whole = 0
    for seed in range(COMPARISONS):
        broker = Broker(kafka_broker.address)
        comparison = Comparison(broker, f"{tag}-{seed}", topics, seed)
        try:
            for _ in range(STEPS):
                comparison.step()
            whole += 1
        except ChoicesDiffer:
            continue
        finally:
            broker.close()
    assert whole >= COMPARISONS / 2
