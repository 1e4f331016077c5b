"""Events in any order: nothing is owned twice, everything is answered, generations grow, and the group settles.

And the table of transitions is complete.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from zkgroups import TopicPartition, coordinator
from zkgroups.coordinator import (
    CoordinatorConfig,
    GroupCoordinator,
    GroupMoved,
    GroupState,
    KafkaError,
    MembershipLost,
    RebalanceNeeded,
    outbox,
)
from zkgroups.coordinator.group import MAY_COME_AFTER
from zkgroups.coordinator.group_events import (
    CommitReceived,
    GroupEvent,
    HeartbeatReceived,
    MemberIdRequested,
    MemberJoined,
    MemberRejoined,
    MemberSynced,
    StaticMemberReturned,
)
from zkgroups.coordinator.memory_storage import MemoryStorage, assign_partitions
from zkgroups.coordinator.outbox import Deadlines
from zkgroups.coordinator.storage import PlannedMember, Result, Work, WorkFailed
from zkgroups.coordinator.transitions import TRANSITIONS
from zkgroups.exceptions import InvalidOptionError

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


WHICH = st.integers(0, 10_000)
FAILURES = st.sampled_from([None, None, None, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR])


class AnyOrder(RuleBasedStateMachine):
    """A group of consumers to which anything may happen."""

    @initialize(
        by_coordinator=st.booleans(),
        cooperative=st.booleans(),
        delay=st.sampled_from([0, 3]),
        members=st.integers(0, 8),
    )
    def begin(self, by_coordinator: bool, cooperative: bool, delay: float, members: int) -> None:
        self.group = Simulation(by_coordinator, cooperative, {"initial_rebalance_delay": delay})
        for _ in range(members):
            self.group.add()

    @rule(members=st.integers(1, 30), topics=st.sampled_from([("orders",), ("orders", "payments"), ("payments",)]))
    def add(self, members: int, topics: tuple[str, ...]) -> None:
        for _ in range(min(members, 200 - len(self.group.consumers))):
            self.group.add(topics=topics)

    @rule(instance=st.sampled_from(["i", "j", "k"]))
    def start_static(self, instance: str) -> None:
        self.group.add(instance_id=instance)

    @rule(which=WHICH, how=st.sampled_from(["kill", "leave", "beat", "commit", "retry"]))
    def act(self, which: int, how: str) -> None:
        if self.group.consumers:
            getattr(self.group, how)(self.group.consumers[which % len(self.group.consumers)])

    @rule(which=WHICH, many=st.booleans())
    def deliver(self, which: int, many: bool) -> None:
        for _ in range(len(self.group.mail) if many else 1):
            self.group.deliver(which)

    @rule(slow=st.booleans())
    def slow_down(self, slow: bool) -> None:
        self.group.slow = slow

    @rule(which=WHICH, failure=FAILURES, many=st.booleans())
    def finish_work(self, which: int, failure: KafkaError | None, many: bool) -> None:
        for _ in range(len(self.group.work) if many else 1):
            self.group.finish_work(which if failure else 0, failure)

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0, 31.0, 700.0]))
    def wait(self, seconds: float) -> None:
        self.group.wait(seconds)

    @rule()
    def beat(self) -> None:
        for consumer in list(self.group.consumers):
            self.group.beat(consumer)

    @rule(within=st.sampled_from([None, 2.0]))
    def change_outside(self, within: float | None) -> None:
        self.group.receive(RebalanceNeeded(GROUP, within))

    @rule(event=st.sampled_from([MembershipLost(), MembershipLost(GROUP), GroupMoved(GROUP)]))
    def lose(self, event: MembershipLost | GroupMoved) -> None:
        self.group.receive(event)
        if isinstance(event, GroupMoved):
            self.group.forget_generations()

    @rule(seconds=st.integers(1, 8), seed=WHICH)
    def go_on(self, seconds: int, seed: int) -> None:
        """Most of the time, nothing happens."""
        for _ in range(seconds):
            self.group.go_on(random.Random(seed))

    def teardown(self) -> None:
        if hasattr(self, "group"):
            self.group.settle(random.Random(len(self.group.mail)))
            self.group.check_settled()
            self.group.close()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40)


class DeadlinesInOrder(RuleBasedStateMachine):
    """Deadlines, compared with a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = Deadlines[str]()
        self.few, outbox._FEW = outbox._FEW, 3
        self.model: dict[str, float] = {}
        self.now = 0.0

    def teardown(self) -> None:
        outbox._FEW = self.few

    @rule(key=st.sampled_from("abcdef"), time=st.integers(0, 20))
    def set(self, key: str, time: int) -> None:
        self.deadlines.set(key, self.now + time)
        self.model[key] = self.now + time

    @rule(key=st.sampled_from("abcdef"))
    def cancel(self, key: str) -> None:
        self.deadlines.cancel(key)
        self.model.pop(key, None)

    @rule(seconds=st.integers(0, 8))
    def pass_time(self, seconds: int) -> None:
        assert self.deadlines.next_time == min(self.model.values(), default=None)
        self.now += seconds
        last = 0.0
        while (due := self.deadlines.take_due(self.now)) is not None:
            time, key = due
            assert time == self.model.pop(key) >= last
            last = time
        assert all(time > self.now for time in self.model.values())
        assert len(self.deadlines) == len(self.model)


TestDeadlinesInOrder = DeadlinesInOrder.TestCase
TestDeadlinesInOrder.settings = settings(max_examples=50, stateful_step_count=30)


# The table

ALIVE = set(GroupState) - {GroupState.DEAD}
WITH_MEMBERS = ALIVE - {GroupState.EMPTY}


def test_the_generated_page_is_up_to_date() -> None:
    script = Path(__file__).parents[2] / "scripts" / "coordinator_reference.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0, "run make docs"


def test_every_event_has_a_rule_where_a_request_needs_an_answer_and_nothing_happens_to_a_dead_group() -> None:
    states = dict.fromkeys((MemberIdRequested, MemberJoined, CommitReceived), ALIVE)
    states |= dict.fromkeys((MemberRejoined, StaticMemberReturned, MemberSynced, HeartbeatReceived), WITH_MEMBERS)
    assert {event: {state for state in GroupState if (state, event) in TRANSITIONS} for event in states} == states
    assert {event for _state, event in TRANSITIONS} == set(get_args(GroupEvent))
    assert {state for state, _event in TRANSITIONS} == ALIVE
    assert set(MAY_COME_AFTER) == set(GroupState)


def test_impossible_settings_are_refused() -> None:
    for options in (
        {"min_session_timeout": 0},
        {"min_session_timeout": 301},
        {"storage_timeout": 0},
        {"cleanup_interval": -1},
        {"initial_rebalance_delay": -1},
        {"max_members": 0},
        {"offset_retention": 0},
    ):
        with pytest.raises(InvalidOptionError):
            CoordinatorConfig(**options)  # type: ignore[arg-type]
    assert CoordinatorConfig(max_members=1).max_members == 1
