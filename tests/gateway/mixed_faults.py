"""Scala members and the clients of two gateways in one group, while both are killed and suspended.

The faults are those of `tests/consumer/nemesis.py`; they strike gateways and Scala members. All records are judged at
the end: the transaction log of ZooKeeper, what each client has read and when it had which partition, and the logs of
the Scala members and of the gateways.

ZooKeeper has one owner node for each partition, so two owners never overlap in its log. What a client has is another
question: a gateway must give a partition to its client after the owner node was created, and must not delete the node
before the client has given the partition up. There is one exception. If the session of a gateway expires, ZooKeeper
deletes the owner nodes of its clients, who learn of it later. Their commits are refused until then.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, product
from math import inf
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition

from tests.consumer import journal
from tests.consumer.history import History, Kind, Violation, at, fallen, unfenced
from tests.consumer.nemesis import Nemesis, Strike
from tests.consumer.scala import SHORT_SESSION, ScalaConsumer, whose
from tests.consumer.with_scala.mixed_group import AS_IT_COMES, STILL, Feed
from tests.waiting import LONGEST, eventually
from zkgroups import Registry
from zkgroups.core.history.events import MemberAction, MemberChange, OwnerAction, OwnerChange
from zkgroups.core.rebalance.assignors import range_assignor
from zkgroups.core.rebalance.members import Members
from zkgroups.testing import KafkaBroker, ZooKeeperServer

from .old_members import owners
from .peers import Member
from .running import GatewayProcess, reserved


@dataclass(slots=True)
class Ownership:
    """The time in which an owner node existed. `expired`: the node was deleted together with its session."""

    at: str
    owner: str
    session: int
    start: float
    end: float = inf
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Belief:
    """The time in which a client believed that it had a partition."""

    at: str
    member_id: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class OwnerHistory:
    """All owners of a group in order, and the sessions in which its members were registered, by instance id."""

    owners: list[Ownership]
    sessions: dict[str, set[int]]


def read_owners(data_dir: Path, group: str, chroot: str) -> OwnerHistory:
    """Read the transaction log of a server."""
    owners: list[Ownership] = []
    sessions: dict[str, set[int]] = {}
    current: dict[str, Ownership] = {}
    for event in journal.read(data_dir, group, chroot=chroot):
        if isinstance(event, MemberChange) and event.action is MemberAction.REGISTERED:
            sessions.setdefault(event.member.id, set()).add(event.session)
        if isinstance(event, OwnerChange):
            time = event.time_ms / 1000
            if (before := current.pop(at(event), None)) is not None:
                before.end, before.expired = time, event.action in (OwnerAction.CLOSED, OwnerAction.EXPIRED)
            if event.action in (OwnerAction.CLAIMED, OwnerAction.CHANGED):
                current[at(event)] = Ownership(at(event), event.owner.id, event.owner.session or 0, time)
                owners.append(current[at(event)])
    return OwnerHistory(owners, sessions)


def unowned(history: OwnerHistory, beliefs: Iterable[Belief]) -> Iterator[Violation]:
    """Partitions that a client had before its gateway had claimed them, or after its gateway had released them."""
    for belief in beliefs:
        owned = [
            each
            for each in history.owners
            if (each.at, each.owner) == (belief.at, f"{belief.member_id}-0") and each.start <= belief.start <= each.end
        ]
        if not owned:
            yield Violation("a partition without an owner node", str(belief))
        elif owned[0].end < belief.end and not owned[0].expired:
            yield Violation("a partition that was released before", f"{belief}, {owned[0]}")


# A librdkafka consumer on a thread of its own, which remembers when it had each partition


class WatchedClient(Member):
    """It commits automatically, as most consumers do, and finds another coordinator soon."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.beliefs: list[Belief] = []
        self.member_id = ""
        self._since: dict[Partition, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watched-client")
        settings: dict[str, Any] = {"topic.metadata.refresh.interval.ms": 300, "reconnect.backoff.max.ms": 500}
        settings |= {"coordinator.query.interval.ms": 500, "enable.auto.commit": True, "auto.commit.interval.ms": 200}
        super().__init__(bootstrap, group, topic, **settings)

    def _assign(self, consumer: Consumer, partitions: list[Partition]) -> None:
        now = time.time()
        super()._assign(consumer, partitions)
        self.member_id = str(consumer.memberid())
        self._since |= dict.fromkeys(partitions, now)

    def _revoke(self, consumer: Consumer, partitions: list[Partition]) -> None:
        now = time.time()
        for each in partitions:
            at = f"{each.topic}/{each.partition}"
            self.beliefs.append(Belief(at, self.member_id, self._since.pop(each), now))
        super()._revoke(consumer, partitions)

    def _run(self) -> None:
        while not self._ended.is_set():
            self.poll()

    def leave(self) -> None:
        """Leave the group. Further calls do nothing."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join(LONGEST)
            self.consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


# Scala members and the clients of two gateways in one group, while both are killed and suspended


SESSION = 4.0
"""In seconds: the session of each gateway and of each Scala member."""
PARTITIONS = 7
_CHROOT = "/kafka"
GAVE_UP = "can't rebalance after"

Read = tuple[int, int]


class ScalaPlace:
    """One Scala member after the other, each with an id of its own."""

    def __init__(self, broker: KafkaBroker, group: str, topic: str, name: str, stack: ExitStack) -> None:
        self._broker, self._group, self._topic, self._name, self._stack = broker, group, topic, name, stack
        self._numbers = count(1)
        self.all: list[ScalaConsumer] = []

    def start(self) -> None:
        """Start the next member. A killed one stays registered until its session expires."""
        name = f"{self._name}-{next(self._numbers)}"
        member = ScalaConsumer(self._broker, self._group, name, {self._topic: 1}, config=AS_IT_COMES | SHORT_SESSION)
        self.all.append(self._stack.enter_context(member))

    def send(self, number: signal.Signals) -> None:
        """Kill, suspend or resume the current member."""
        actions = {signal.SIGKILL: "kill", signal.SIGSTOP: "suspend", signal.SIGCONT: "resume"}
        getattr(self.all[-1], actions[number])()


class MixedScene:
    """Two gateways, two Scala members, and two clients that know both gateways."""

    timeout = SESSION

    def __init__(self, broker: KafkaBroker, zookeeper: ZooKeeperServer, name: str, stack: ExitStack) -> None:
        self._broker, self._zookeeper, self._name = broker, zookeeper, name
        broker.create_topic(name, PARTITIONS)
        self._registry = stack.enter_context(Registry.connect(broker.zookeeper))
        self._group = self._registry.group(name)
        ports = [stack.enter_context(reserved(2)) for _ in range(2)]
        self.gateways = [GatewayProcess(broker, each, stack, session_timeout=SESSION) for each in ports]
        self.scala = [ScalaPlace(broker, name, name, each, stack) for each in ("one", "~two")]
        self.places = [*self.gateways, *self.scala]
        for place in self.places[:-1]:
            place.start()
        for gateway in self.gateways:
            gateway.wait_ready()
        both = [each.address for each in self.gateways]
        addresses = ",".join(both), ",".join(reversed(both))
        self.clients = [stack.enter_context(WatchedClient(each, name, name)) for each in addresses]
        self.struck: list[str] = []

    # For the nemesis

    def start(self, place: GatewayProcess | ScalaPlace, **_options: object) -> None:
        place.start()

    def signal(self, place: GatewayProcess | ScalaPlace, number: signal.Signals) -> None:
        place.send(number)

    def note(self, kind: Kind, text: str = "") -> None:
        self.struck.append(f"{kind} {text}")

    # The test

    def settle(self) -> None:
        """Wait until all clients and all Scala members have exactly the shares that Scala computes, for a while."""
        began = last_unsettled = time.monotonic()
        while (now := time.monotonic()) - last_unsettled < STILL:
            if not self._is_settled():
                assert now - began < 2 * LONGEST, self._unsettled()
                last_unsettled = now
            time.sleep(0.1)

    def _is_settled(self) -> bool:
        ids = self._ids()
        streams = {id: {self._name: 1} for id in ids}
        shares = range_assignor(Members(streams, {self._name: range(PARTITIONS)}))
        expected = {at.partition: str(stream) for at, stream in shares.items()}
        if {each.id for each in self._group.instances()} != ids or owners(self._group) != expected:
            return False
        return all(
            client.partitions == {number for number, owner in expected.items() if owner == f"{client.member_id}-0"}
            for client in self.clients
        )

    def _unsettled(self) -> str:
        registered = [each.id for each in self._group.instances()]
        clients = {client.member_id: (client.partitions, client.errors) for client in self.clients}
        return f"registered: {registered}, owners: {owners(self._group)}, clients: {clients}, members: {self._ids()}"

    def _ids(self) -> set[str]:
        scala = {place.all[-1].id for place in self.scala if place.all}
        return scala | {client.member_id for client in self.clients}

    def run(self, strikes: list[Strike]) -> Feed:
        """Let the last Scala member join, and let the faults strike, while messages are written.

        Return when the group has settled and read everything.
        """
        self.settle()
        with Feed(self._broker, self._name) as feed:
            self.scala[-1].start()
            self.settle()
            Nemesis(self).run(strikes)
            for gateway in self.gateways:
                if len(gateway.all) > 1:
                    gateway.wait_ready()
            self.settle()
        everything = set(product(range(PARTITIONS), range(len(feed.texts) // PARTITIONS)))
        assert eventually(lambda: everything <= self.read().keys()), everything - self.read().keys()
        return feed

    def read(self) -> Counter[Read]:
        """How often each message was read."""
        scala = [member for place in self.scala for member in place.all]
        read = Counter(message for client in self.clients for message in tuple(client.read))
        return read + Counter((each.at.partition, each.offset) for member in scala for each in member.messages)

    def end(self) -> Counter[Read]:
        """Let the clients leave, and return how often each message was read."""
        for client in self.clients:
            client.leave()
        return self.read()

    # The judgement

    def history(self) -> OwnerHistory:
        return read_owners(self._zookeeper.data_dir, self._name, _CHROOT)

    def client_sessions(self) -> set[int]:
        """The sessions of gateways in which clients were registered."""
        scala = {member.id for place in self.scala for member in place.all}
        sessions = self.history().sessions
        return {session for id in sessions.keys() - scala for session in sessions[id]}

    def violations(self) -> Iterator[Violation]:
        """All violations, after the end."""
        history = self.history()
        yield from unowned(history, (each for client in self.clients for each in client.beliefs))
        log = journal.read(self._zookeeper.data_dir, self._name, chroot=_CHROOT)
        scala = {member.id for place in self.scala for member in place.all}
        # Scala's own commits and claims are not fenced: a member that was suspended may write in its next session.
        theirs = frozenset(session for id in scala for session in history.sessions.get(id, ()))
        ours = [event for event in log if not (isinstance(event, OwnerChange) and whose(event.owner.id) in scala)]
        found = History((), log=ours, administrators=theirs)
        yield from unfenced(found)
        yield from fallen(found)
        for place in self.scala:
            for member in place.all:
                if GAVE_UP in member.log_tail(10**6):
                    yield Violation("a Scala member gave up", member.id)
        for gateway in self.gateways:
            for process in gateway.all:
                process.kill()
                assert process.stderr is not None
                if "Traceback" in (text := process.stderr.read()):
                    yield Violation("a gateway failed", text)
