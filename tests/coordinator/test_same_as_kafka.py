"""A real broker gives the same answers to the same random requests. More of them: `ZKGROUPS_COMPARISONS=200`.

Our coordinator gets the requests in the bytes of the protocol, too, as a gateway reads and answers them.
"""

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

from zkgroups.gateway.protocol.group_messages import to_client, to_coordinator
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.codec import ReceivedRequest
from zkgroups.testing import KafkaBroker

from .clients import Clients, subscribed

LONG_MS = 300_000
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
        self._open: dict[int, tuple[socket.socket, int, int]] = {}

    def send(self, id: int, message: Any, version: int) -> None:
        connection = socket.create_connection(self._address, timeout=ANSWER_TIMEOUT)
        connection.sendall(codec.encode(message, version, 1, "app"))
        self._open[id] = connection, message.API_KEY, version

    def settle(self) -> None:
        """Return when the broker has begun all requests that were sent before, also those that it does not answer yet.

        It has read them before the first of these requests, and begins them before the second.
        """
        for _ in range(2):
            self.send(_PROBE, codec.DescribeGroupsRequest(groups=["nobody's"]), 5)
            select.select([self._open[_PROBE][0]], [], [], ANSWER_TIMEOUT)
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
            ids = {connection: id for id, (connection, *_) in self._open.items()}
            ready, _, _ = select.select(list(ids), [], [], max(0.0, end - time.monotonic()))
            for connection in ready:
                found[ids[connection]] = self._read(ids[connection])
                missing.discard(ids[connection])
            if not ready and not missing:
                break
        return found

    def _read(self, id: int) -> Any:
        connection, key, version = self._open.pop(id)
        # `MSG_WAITALL` does not wait on a socket with a timeout.
        with connection, connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            return codec.decode_answer(key, version, stream.read(size))


class ChoicesDiffer(Exception):
    """Kafka chose another new leader, or another protocol with as many votes. From there, the two groups differ."""


Make = Callable[[Callable[[Client], Side]], Any]
"""Makes a message, given how to find what a client knows of itself."""


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
        self._sent: dict[int, tuple[Client, ReceivedRequest]] = {}
        self._names: tuple[dict[str, str], dict[str, str]] = ({"": ""}, {"": ""})

    def step(self) -> None:
        client = self.chance.choice(self.clients)
        kinds: dict[Callable[[Client], tuple[int, Make] | None], float] = {
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
        if (chosen := kind(client)) is not None:
            version, make = chosen
            self._exchange(client, make(lambda each: each.ours), make(lambda each: each.kafka), version)

    def _exchange(self, client: Client, ours: Any, kafkas: Any, version: int) -> None:
        received = codec.decode_request(codec.encode(ours, version, 1, "app")[4:])
        id = self.coordinator.send(to_coordinator(received, "/127.0.0.1"))
        self._sent[id] = client, received
        self.history.append((id, client.number, ours))
        self.broker.send(id, kafkas, version)
        self.coordinator.wait(0)
        mine = {each: self._converted(each, answer) for each, answer in self.coordinator.answers.items()}
        self.coordinator.answers = {}
        if id not in mine:
            self.broker.settle()
        theirs = self.broker.answers(set(mine) - self._never_answered(mine, id))
        for other in self._never_answered(mine, id) - set(theirs):
            self.broker.forget(other)
            del mine[other]
        for each in sorted(set(mine) & set(theirs)):
            if mine[each].API_KEY == codec.JOIN_GROUP:  # member ids differ: both get the name of this request
                self._names[0].setdefault(mine[each].member_id, f"member {each}")
                self._names[1].setdefault(theirs[each].member_id, f"member {each}")
        for each in sorted({*mine, *theirs}):
            self._compare(each, mine.get(each), theirs.get(each))

    def _converted(self, id: int, answer: Any) -> Any:
        _client, received = self._sent[id]
        kind = received.kind
        frame = codec.encode_answer(to_client(received, answer), kind.version, 1)
        return codec.decode_answer(kind.key, kind.version, frame[4:])

    def _never_answered(self, mine: dict[int, Any], id: int) -> set[int]:
        """Kafka does not answer a parked request if its member sends it again or leaves. We do."""
        parked = (codec.JOIN_GROUP, codec.SYNC_GROUP)
        return {
            each
            for each, answer in mine.items()
            if each != id and answer.API_KEY in parked and answer.error_code in (25, 27)
        }

    def _compare(self, id: int, mine: Any, theirs: Any) -> None:
        client, _received = self._sent[id]
        assert mine is not None, f"only the broker answered {id}: {theirs}\n{self.history}"
        assert theirs is not None, f"only we answered {id}: {mine}\n{self.history}"
        ours, kafkas = (shown(answer, names) for answer, names in zip((mine, theirs), self._names, strict=True))
        joined = mine.API_KEY == codec.JOIN_GROUP
        if joined and ours[:3] == kafkas[:3] and ours[3:5] != kafkas[3:5]:
            raise ChoicesDiffer
        self.history.append((f"answer to {id}", ours))
        assert ours == kafkas, f"{id}: ours {ours}, Kafka's {kafkas}\n{self.history}"
        if joined and mine.error_code in (0, 79):
            client.ours = Side(mine.member_id, mine.generation_id)
            client.kafka = Side(theirs.member_id, theirs.generation_id)
            client.leads = mine.leader == mine.member_id
        elif joined and mine.error_code == 25:
            client.ours, client.kafka = Side(), Side()

    # Requests: the version, and a function that makes the message for us or for the broker

    def restart(self, client: Client) -> None:
        client.ours, client.kafka = Side(), Side()

    def _member(self, client: Client) -> Callable[[Side], dict[str, Any]]:
        """Return the fields of a member. Its generation is sometimes the one before."""
        late = self.chance.random() < 0.1
        return lambda side: {
            "group_id": self.group,
            "generation_id": side.generation - late,
            "member_id": side.member_id,
            "group_instance_id": client.instance_id,
        }

    def join(self, client: Client) -> tuple[int, Make]:
        if client.offer is None or self.chance.random() < 0.3:
            names = self.chance.choice([("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",)])
            client.offer = names, self.chance.choice([(self.orders,), (self.orders, self.payments)])
        names, topics = client.offer
        protocol, metadata = codec.JoinGroupRequest.JoinGroupRequestProtocol, subscribed(*topics)
        return self.chance.choice([9, 5, 5 if client.instance_id else 3]), lambda side: codec.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=LONG_MS,
            rebalance_timeout_ms=LONG_MS,
            member_id=side(client).member_id,
            group_instance_id=client.instance_id,
            protocol_type="consumer",
            protocols=[protocol(name=name, metadata=metadata) for name in names],
        )

    def sync(self, client: Client) -> tuple[int, Make]:
        fields, receivers = self._member(client), self.clients if client.leads else []
        assignment = codec.SyncGroupRequest.SyncGroupRequestAssignment

        def make(side: Callable[[Client], Side]) -> Any:
            ids = {side(each).member_id: b"%d" % each.number for each in receivers if side(each).member_id}
            assignments = [assignment(member_id=id, assignment=data) for id, data in ids.items()]
            return codec.SyncGroupRequest(**fields(side(client)), assignments=assignments)

        return 4, make

    def beat(self, client: Client) -> tuple[int, Make]:
        fields = self._member(client)
        return 4, lambda side: codec.HeartbeatRequest(**fields(side(client)))

    def leave(self, client: Client) -> tuple[int, Make] | None:
        if client.ours.member_id and client.ours.generation < 0:
            return None  # Kafka 4 begins a rebalance when an unused id leaves; Kafka 3 does not
        by_instance = client.instance_id is not None and self.chance.random() < 0.3
        identity = codec.LeaveGroupRequest.MemberIdentity

        def make(side: Callable[[Client], Side]) -> Any:
            id = "" if by_instance else side(client).member_id
            leaving = identity(member_id=id, group_instance_id=client.instance_id, reason=None)
            return codec.LeaveGroupRequest(group_id=self.group, members=[leaving])

        return 5, make

    def commit(self, client: Client) -> tuple[int, Make]:
        fields, simple = self._member(client), self.chance.random() < 0.3
        topic = codec.OffsetCommitRequest.OffsetCommitRequestTopic
        partition = topic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=7, committed_leader_epoch=-1, committed_metadata=""
        )
        topics = [topic(name=self.orders, partitions=[partition])]

        def make(side: Callable[[Client], Side]) -> Any:
            member = fields(side(client))
            return codec.OffsetCommitRequest(
                group_id=self.group,
                generation_id_or_member_epoch=-1 if simple else member["generation_id"],
                member_id="" if simple else member["member_id"],
                group_instance_id=None if simple else client.instance_id,
                topics=topics,
            )

        return 8, make

    def describe(self, _client: Client) -> tuple[int, Make]:
        return 5, lambda _side: codec.DescribeGroupsRequest(groups=[self.group], include_authorized_operations=False)

    def delete_offset(self, _client: Client) -> tuple[int, Make] | None:
        known = self.coordinator.coordinator.group(self.group)
        if known is None or known.state in ("Empty", "PreparingRebalance"):
            return None  # Kafka removes an empty group with its last offset; we are stricter while members first join
        topic = codec.OffsetDeleteRequest.OffsetDeleteRequestTopic
        topics = [topic(name=self.payments, partitions=[topic.OffsetDeleteRequestPartition(partition_index=0)])]
        return 0, lambda _side: codec.OffsetDeleteRequest(group_id=self.group, topics=topics)

    def delete_group(self, _client: Client) -> tuple[int, Make]:
        return 2, lambda _side: codec.DeleteGroupsRequest(groups_names=[self.group])


def shown(answer: Any, names: dict[str, str]) -> list[Any]:
    """Return what an answer says. Names of members are the same on both sides."""
    match answer.API_KEY:
        case codec.JOIN_GROUP:
            members = [(names.get(each.member_id, "?"), each.group_instance_id or "") for each in answer.members]
            return [
                answer.error_code,
                None if answer.error_code == 82 else names.get(answer.member_id),
                answer.generation_id,
                names.get(answer.leader or ""),
                answer.protocol_name or "",
                sorted(members),
                answer.skip_assignment,
            ]
        case codec.DESCRIBE_GROUPS:
            [group] = answer.groups
            members = [
                (each.group_instance_id or "", bytes(each.member_metadata), bytes(each.member_assignment))
                for each in group.members
            ]
            stable = group.group_state == "Stable"  # Kafka 4 shows old assignments also during a rebalance
            head = [group.error_code, group.group_state, group.protocol_type, group.protocol_data]
            return [*head, sorted(members) if stable else len(members)]
    parts = [*getattr(answer, "members", ()), *getattr(answer, "results", ())]
    parts += [each for topic in getattr(answer, "topics", ()) for each in topic.partitions]
    codes = [each.error_code for each in parts]
    return [getattr(answer, "error_code", 0), codes, bytes(getattr(answer, "assignment", b""))]


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
