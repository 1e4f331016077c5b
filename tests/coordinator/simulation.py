"""A coordinator with simulated consumers, whose answers and storage are as slow and as unreliable as a test wants."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from zkgroups import TopicPartition, coordinator
from zkgroups.coordinator import GroupCoordinator, KafkaError
from zkgroups.coordinator.memory_storage import MemoryStorage, assign_partitions
from zkgroups.coordinator.storage import PlannedMember, Result, Work, WorkFailed

GROUP = "billing"
RETRY_JOIN = {KafkaError.REBALANCE_IN_PROGRESS}
SAME_MEMBER = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    *RETRY_JOIN,
}


@dataclass(eq=False)
class Consumer:
    """A consumer that behaves as Kafka's clients do. It waits for one answer at a time, apart from commits."""

    name: str
    cooperative: bool
    instance_id: str | None = None
    topics: tuple[str, ...] = ("orders",)
    member_id: str = ""
    generation: int = -1
    owned: frozenset[TopicPartition] = frozenset()
    stable: bool = False
    awaits: int | None = None
    """The request whose answer it waits for."""
    alive: bool = True

    def reset(self) -> None:
        """It is no longer a member: it has lost its partitions."""
        self.member_id, self.generation, self.owned, self.stable = "", -1, frozenset(), False

    @property
    def protocols(self) -> tuple[coordinator.GroupProtocol, ...]:
        listed = self.owned if self.cooperative else frozenset()
        subscription = coordinator.encode_subscription(coordinator.Subscription(frozenset(self.topics), listed))
        return (coordinator.GroupProtocol("cooperative-sticky" if self.cooperative else "range", subscription),)


@dataclass
class Simulation:
    """All consumers of one group. Its methods are the events that a test can put into any order."""

    by_coordinator: bool
    cooperative: bool
    config: dict[str, Any] = field(default_factory=dict)
    partitions: int = 12
    now: float = 0.0
    consumers: list[Consumer] = field(default_factory=list)
    mail: list[tuple[int, Any]] = field(default_factory=list)
    """Answers that are on their way."""
    slow: bool = False
    work: list[tuple[int, Work]] = field(default_factory=list)
    incidents: list[coordinator.ReportIncident] = field(default_factory=list)
    last_generation: int = 0

    def __post_init__(self) -> None:
        ids = count(1)
        self._requests = count(1)
        self._names = count(1)
        self.senders: dict[int, tuple[Consumer, Any]] = {}
        self.unanswered: set[int] = set()
        self.memory = MemoryStorage({"orders": self.partitions, "payments": 3})
        by = coordinator.AssignmentBy.COORDINATOR if self.by_coordinator else coordinator.AssignmentBy.LEADER
        config = coordinator.CoordinatorConfig(assignment_by=by, **self.config)
        self.coordinator = GroupCoordinator(self, config, new_id=lambda: str(next(ids)))
        self.given: defaultdict[int, dict[TopicPartition, str]] = defaultdict(dict)
        self.closed = False

    # The storage

    def start(self, work_id: int, work: Work) -> Result | None:
        if not self.slow:
            return self.memory.start(work_id, work)
        self.work.append((work_id, work))
        return None

    def may_be_lost(self, _group: str) -> bool:
        return False

    def finish_work(self, position: int, failure: KafkaError | None = None) -> None:
        """Finish some work. Work of a group is carried out in order, but its result may come late."""
        if self.work:
            work_id, work = self.work.pop(position % len(self.work))
            result = self.memory.start(work_id, work) if failure is None else WorkFailed(failure)
            self.receive(coordinator.WorkFinished(work_id, result))

    # Sending and receiving

    def receive(self, event: Any) -> None:
        self._keep(self.coordinator.receive(event, self.now))

    def send(self, consumer: Consumer, request: Any) -> int:
        id = next(self._requests)
        self.senders[id] = consumer, request
        self.unanswered.add(id)
        self._keep(self.coordinator.request(id, request, self.now))
        return id

    def _keep(self, outcomes: list[coordinator.SendAnswer | coordinator.ReportIncident]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, coordinator.ReportIncident):
                self.incidents.append(outcome)
                continue
            assert outcome.request_id in self.unanswered, "answered twice"
            self.unanswered.discard(outcome.request_id)
            self.mail.append((outcome.request_id, outcome.answer))

    def deliver(self, position: int) -> None:
        """Let a consumer read one of the answers."""
        if self.mail:
            id, answer = self.mail.pop(position % len(self.mail))
            consumer, request = self.senders.pop(id)
            if consumer.alive and consumer.awaits == id:
                consumer.awaits = None
                getattr(self, f"_on_{type(answer).__name__.removesuffix('Answer').lower()}")(consumer, request, answer)

    def wait(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.now + seconds
        while (deadline := self.coordinator.next_deadline) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self._keep(self.coordinator.pass_time(self.now))
            following = self.coordinator.next_deadline
            assert following is None or following > self.now, "a deadline that has come is still set"
        self.now = end

    # Consumers

    def add(self, instance_id: str | None = None, topics: tuple[str, ...] = ("orders",)) -> Consumer:
        """Start a consumer. Another one with the same instance id is dead."""
        for other in self.consumers:
            if instance_id is not None and other.instance_id == instance_id:
                self.kill(other)
        consumer = Consumer(f"c{next(self._names)}", self.cooperative, instance_id, topics)
        self.consumers.append(consumer)
        self.join(consumer)
        return consumer

    def kill(self, consumer: Consumer) -> None:
        """The process ends without a word."""
        consumer.alive = False
        self.consumers = [each for each in self.consumers if each is not consumer]

    def leave(self, consumer: Consumer) -> None:
        """The consumer closes, and leaves also with a request on its way."""
        self.kill(consumer)
        if consumer.member_id:
            self.send(
                consumer,
                coordinator.LeaveRequest(
                    GROUP, (coordinator.MemberIdentity(consumer.member_id, consumer.instance_id),)
                ),
            )

    def join(self, consumer: Consumer) -> None:
        if not consumer.cooperative:
            consumer.owned = frozenset()
        consumer.stable = False
        request = coordinator.JoinRequest(
            GROUP,
            consumer.member_id,
            consumer.protocols,
            session_timeout=10.0,
            rebalance_timeout=30.0,
            instance_id=consumer.instance_id,
            client_id=consumer.name,
        )
        self._ask(consumer, request)

    def beat(self, consumer: Consumer) -> None:
        if consumer.stable and consumer.awaits is None:
            request = coordinator.HeartbeatRequest(GROUP, consumer.member_id, consumer.generation, consumer.instance_id)
            self._ask(consumer, request)

    def commit(self, consumer: Consumer) -> None:
        if consumer.stable and consumer.owned:
            offsets = {at: coordinator.CommittedValue(1) for at in consumer.owned}
            self.send(consumer, coordinator.CommitRequest(GROUP, offsets, consumer.member_id, consumer.generation))

    def retry(self, consumer: Consumer) -> None:
        """The consumer gives its connection up, and sends its join request again."""
        if not consumer.stable and consumer.member_id:
            self.join(consumer)

    def _ask(self, consumer: Consumer, request: Any) -> None:
        consumer.awaits = -1
        id = self.send(consumer, request)
        consumer.awaits = id

    def _on_join(self, consumer: Consumer, request: coordinator.JoinRequest, answer: Any) -> None:
        if answer.error is KafkaError.MEMBER_ID_REQUIRED:
            consumer.member_id = answer.member_id
            self.join(consumer)
        elif answer.error:
            self._join_after(consumer, answer.error)
        else:
            consumer.member_id, consumer.generation = answer.member_id, answer.generation
            leads = answer.leader == answer.member_id and not answer.skip_assignment
            assignments = self._assign(answer.members) if leads else {}
            request = coordinator.SyncRequest(
                GROUP, consumer.member_id, consumer.generation, assignments, consumer.instance_id
            )
            self._ask(consumer, request)

    def _assign(self, members: Any) -> dict[str, bytes]:
        """What a leader does. It is as careful with cooperative members as Kafka's clients are."""
        wanted = {
            each.member_id: coordinator.decode_subscription(each.metadata) or coordinator.Subscription(frozenset())
            for each in members
        }
        planned = {id: PlannedMember(subscription) for id, subscription in wanted.items()}
        found = assign_partitions("sticky", planned, self.memory.partitions)
        listed = {at: id for id, subscription in wanted.items() for at in subscription.owned}
        return {
            id: coordinator.encode_assignment(at for at in partitions if listed.get(at, id) == id)
            for id, partitions in found.items()
        }

    def _on_sync(self, consumer: Consumer, _request: Any, answer: Any) -> None:
        if answer.error:
            self._join_after(consumer, answer.error)
            return
        before, consumer.owned = consumer.owned, coordinator.decode_assignment(answer.assignment) or frozenset()
        consumer.stable = True
        for at in consumer.owned:
            holder = self.given[consumer.generation].setdefault(at, consumer.instance_id or consumer.member_id)
            assert holder == (consumer.instance_id or consumer.member_id), f"{at} was given to two members"
        if consumer.owned - before:
            self.check()
        if before - consumer.owned:
            self.join(consumer)  # a cooperative member that gave partitions up

    def _on_heartbeat(self, consumer: Consumer, _request: Any, answer: Any) -> None:
        if answer.error:
            self._join_after(consumer, answer.error)

    def _join_after(self, consumer: Consumer, error: KafkaError) -> None:
        if error is KafkaError.FENCED_INSTANCE_ID:
            self.kill(consumer)
            return
        if error not in SAME_MEMBER or not consumer.member_id:
            consumer.reset()
        self.join(consumer)

    # Rules that always hold

    def check(self) -> None:
        """Called when a consumer got partitions: only then, two can have the same."""
        group = self.coordinator.group(GROUP)
        if group is None:
            self.last_generation = 0
            return
        assert group.generation >= self.last_generation, "the generation went back"
        self.last_generation = group.generation
        valid = {member.member_id for member in group.members if member.state is not coordinator.MemberState.LEAVING}
        holders: dict[TopicPartition, str] = {}
        for consumer in self.consumers:
            if consumer.member_id in valid:
                for at in consumer.owned:
                    assert holders.setdefault(at, consumer.name) == consumer.name, f"{at} is held by two members"

    def forget_generations(self) -> None:
        """The group is loaded again. If its last generation could not be stored, its number comes again."""
        self.given.clear()
        self.last_generation = 0

    # The end

    def go_on(self, chance: random.Random) -> None:
        """Let the consumers go on for a second. All answers arrive, in any order."""
        while self.work or self.mail:
            self.finish_work(0)
            if self.mail:
                self.deliver(chance.randrange(len(self.mail)))
        for consumer in list(self.consumers):
            self.beat(consumer)
        self.wait(1.0)

    def settle(self, chance: random.Random) -> None:
        """Let the consumers go on undisturbed, until every one of them is stable."""
        self.slow = False
        for seconds in range(400):
            self.go_on(chance)
            if seconds > 40 and all(consumer.stable for consumer in self.consumers):
                break

    def check_settled(self) -> None:
        assert all(consumer.stable for consumer in self.consumers)
        wanted = {topic for consumer in self.consumers for topic in consumer.topics}
        expected = [TopicPartition(t, n) for t, c in self.memory.partitions.items() if t in wanted for n in range(c)]
        assert sorted(at for consumer in self.consumers for at in consumer.owned) == sorted(expected)
        group = self.coordinator.group(GROUP)
        if self.consumers:
            assert group is not None
            assert group.state == "Stable"
            assert {member.member_id for member in group.members} == {each.member_id for each in self.consumers}

    def close(self) -> None:
        self.receive(coordinator.CloseRequested())
        assert self.unanswered == set(), "requests without an answer"
        assert self.coordinator.next_deadline is None
        self.closed = True
