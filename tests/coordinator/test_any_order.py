"""Events in any order: nothing is owned twice, everything is answered, generations grow, and the group settles.

And the table of transitions is complete.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from zkgroups.coordinator import (
    CoordinatorConfig,
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
from zkgroups.coordinator.outbox import Deadlines
from zkgroups.coordinator.transitions import TRANSITIONS
from zkgroups.exceptions import InvalidOptionError

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
