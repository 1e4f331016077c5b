"""Events in any order: nothing is owned twice, everything is answered, generations grow, and the group settles."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from zkgroups.coordinator import GroupMoved, KafkaError, MembershipLost, RebalanceNeeded
from zkgroups.coordinator.deadlines import Deadlines

from .simulation import GROUP, Simulation

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


@pytest.mark.parametrize("by_coordinator", [True, False])
@pytest.mark.parametrize("cooperative", [True, False])
def test_two_hundred_members_settle_after_many_failures(by_coordinator: bool, cooperative: bool) -> None:
    chance = random.Random(by_coordinator + 2 * cooperative)
    group = Simulation(by_coordinator, cooperative, {"initial_rebalance_delay": 1}, partitions=300)
    for _ in range(200):
        group.add()
    for _ in range(30):
        group.slow = chance.random() < 0.5
        for _ in range(chance.randrange(5)):
            getattr(group, chance.choice(["kill", "leave", "retry"]))(chance.choice(group.consumers))
            group.add(chance.choice([None, None, "i", "j"]))
        for _ in range(chance.randrange(300)):
            group.deliver(chance.randrange(1000))
            group.beat(chance.choice(group.consumers))
        group.finish_work(0)
        group.wait(chance.random() * 4)
    group.settle(chance)
    for _ in range(5):
        group.add()
    group.leave(chance.choice(group.consumers))
    group.settle(chance)
    group.check_settled()
    group.close()


class DeadlinesInOrder(RuleBasedStateMachine):
    """Deadlines, compared with a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = Deadlines[str]()
        self.model: dict[str, float] = {}
        self.now = 0.0

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
