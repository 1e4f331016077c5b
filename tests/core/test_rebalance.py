"""Simulated rebalances of up to 200 members: in any order of events, no partition is held twice, a generation only
works on held partitions, and every group settles."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from zkgroups.core.rebalance.actions import (
    Action,
    AwaitRelease,
    ClaimPartitions,
    DeregisterInstance,
    DropPartitions,
    ReadGroup,
    RegisterInstance,
    ReleasePartitions,
    StartGeneration,
    StartLinger,
    StopGeneration,
)
from zkgroups.core.rebalance.events import (
    NOTHING,
    Claimed,
    CloseRequested,
    Event,
    GenerationStopped,
    GroupChanged,
    JoinRequested,
    LingerElapsed,
    Partitions,
    PartitionsFreed,
    Planned,
    Registered,
    Released,
    RequestFailed,
    SessionLost,
    WithdrawRequested,
    WorkerFinished,
)
from zkgroups.core.rebalance.members import Members, assigned_to
from zkgroups.core.rebalance.range import range_assignor
from zkgroups.core.rebalance.release_signals import ReleaseSignals
from zkgroups.core.rebalance.round_robin import round_robin_assignor
from zkgroups.core.rebalance.state_machine import TRANSITIONS, Rebalance, RebalanceState
from zkgroups.core.znodes.topic_partition import TopicPartition


@dataclass
class Group:
    """The state of a group on the server: registrations, owners and watches."""

    partitions: dict[str, list[int]]
    number: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    waiting: dict[TopicPartition, set[str]] = field(default_factory=dict)


class Simulation:
    """Members and a server. The seed decides the order in which messages arrive."""

    def __init__(self, seed: int, members: int, partitions: int, assignor: Callable = range_assignor) -> None:
        self.rng = random.Random(seed)
        half = partitions // 2
        self.group = Group({"orders": list(range(half)), "payments": list(range(partitions - half))})
        self.assignor = assignor
        self.machines: dict[str, Rebalance] = {}
        self.signals: dict[str, ReleaseSignals] = {}
        self.working: dict[str, Partitions] = {}
        self.under_way: list[Callable[[], None]] = []
        self.lossy = 0.2
        self.plans: dict[int, dict] = {}
        for number in range(members):
            self.add(f"m{number:03}")

    # Members

    def add(self, name: str) -> None:
        self.machines[name], self.signals[name] = Rebalance(), ReleaseSignals()
        self.tell(name, JoinRequested())

    def close(self, name: str) -> None:
        self.tell(name, CloseRequested())

    def expire(self, name: str) -> None:
        """The member notices the loss by its own clock, before the server expires the session."""
        self.tell(name, SessionLost())
        self.forget(name)

    def kill(self, name: str) -> None:
        """The member stops without a message. Its session expires later."""
        del self.machines[name]
        self.working.pop(name, None)
        self.later(lambda: self.forget(name))

    def grow(self) -> None:
        topic = self.group.partitions["orders"]
        topic.append(len(topic))
        self.group.number += 1
        self.announce()

    # The server

    def forget(self, name: str) -> None:
        if self.group.ids.pop(name, None) is not None:
            self.group.number += 1
            self.announce()
        self.let_go(name, frozenset(at for at, owner in self.group.owners.items() if owner == name))

    def let_go(self, name: str, partitions: Partitions) -> None:
        for at in sorted(partitions):
            if self.group.owners.get(at) == name:
                del self.group.owners[at]
                for other in sorted(self.group.waiting.pop(at, ())):
                    self.tell_free(other, at)

    def announce(self) -> None:
        for name in self.machines:
            self.hear(name, GroupChanged())

    def await_free(self, name: str, partitions: Partitions) -> None:
        """Watch one partition of all that are released together."""
        for at in self.signals[name].choose({at: self.group.owners.get(at, at) for at in partitions}):
            self.group.waiting.setdefault(at, set()).add(name)
            if at not in self.group.owners:
                self.tell_free(name, at)

    def tell_free(self, name: str, at: TopicPartition) -> None:
        self.hear(name, PartitionsFreed(self.signals[name].released_with(at)))

    # Messages

    def later(self, act: Callable[[], None]) -> None:
        self.under_way.append(act)

    def hear(self, name: str, event: Event) -> None:
        """Notify a watch: once, twice, or never."""
        for _ in range(self.rng.choice((1, 1, 1, 2)) if self.rng.random() >= self.lossy else 0):
            self.later(lambda: self.tell(name, event))

    def tell(self, name: str, event: Event) -> None:
        if (machine := self.machines.get(name)) is None:
            return
        for action in machine.receive(event):
            self.carry_out(name, machine, action)
        if machine.state is RebalanceState.CLOSED:
            self.later(lambda: self.forget(name))  # with its session
        self.check(name, machine)

    def carry_out(self, name: str, machine: Rebalance, action: Action) -> None:
        match action:
            case StartGeneration(partitions=partitions):
                assert name not in self.working, "the one before has ended"
                self.working[name] = partitions
            case DropPartitions():
                self.working.pop(name, None)
            case StartLinger():
                self.later(lambda: self.tell(name, LingerElapsed()))
            case AwaitRelease(partitions):
                self.await_free(name, partitions)
            case StopGeneration(turn):
                self.working.pop(name, None)
                self.later(lambda: self.tell(name, GenerationStopped(turn)))
            case RegisterInstance() | ReadGroup() | ClaimPartitions() | ReleasePartitions() | DeregisterInstance():
                self.later(lambda: self.ask(name, machine, action))

    def ask(self, name: str, machine: Rebalance, action: Action) -> None:
        """Deliver a request and later its answer, or lose one of the two. An expired session sends no more requests."""
        if self.machines.get(name) is not machine or machine._turn != action.turn:
            return
        fails = self.rng.random() < self.lossy / 2
        if fails and self.rng.random() < 0.5:
            self.later(lambda: self.tell(name, RequestFailed(action.turn)))
            return
        answer = RequestFailed(action.turn) if (answer := self.answer(name, action)) and fails else answer
        for _ in range(self.rng.choice((1, 1, 2))):
            self.later(lambda: self.tell(name, answer))

    def answer(self, name: str, action: Action) -> Event:
        group = self.group
        match action:
            case RegisterInstance(turn):
                if name not in group.ids:
                    group.number += 1
                    group.ids[name] = group.number
                    self.announce()
                return Registered(turn)
            case ReadGroup(turn):
                wanted = frozenset(assigned_to(name, self.plan()))
                mine = frozenset(at for at, owner in group.owners.items() if owner == name)
                taken = frozenset(at for at in wanted if group.owners.get(at, name) != name)
                self.await_free(name, self.signals[name].without_signal(taken))
                return Planned(turn, group.number, wanted, mine, taken)
            case ClaimPartitions(turn, partitions):
                granted = frozenset(at for at in partitions if group.owners.get(at, name) == name)
                group.owners |= dict.fromkeys(granted, name)
                return Claimed(turn, granted)
            case ReleasePartitions(turn, partitions):
                self.let_go(name, partitions)
                return Released(turn)
            case DeregisterInstance(turn):
                self.forget(name)
                return Released(turn)
        raise AssertionError(action)

    def plan(self) -> dict:
        """Every member that reads the same state gets the same plan."""
        group = self.group
        if group.number not in self.plans:
            streams = {name: dict.fromkeys(group.partitions, 1) for name in group.ids}
            self.plans[group.number] = self.assignor(Members(streams, group.partitions))
        return self.plans[group.number]

    # Invariants

    def check(self, name: str, machine: Rebalance) -> None:
        """Check that the member owns the partitions that it works on, on the server as well. So it does the partitions
        that it believes to hold, except while a request is under way."""
        worked_on = self.working.get(name, NOTHING)
        assert worked_on <= machine.held
        assert all(self.group.owners.get(at) == name for at in worked_on), (name, worked_on, self.group.owners)
        if machine.state in {RebalanceState.IDLE, RebalanceState.CLAIMING}:
            assert all(self.group.owners.get(at) == name for at in machine.held)
        assert machine.running is None or machine.running == worked_on or machine.state is RebalanceState.STOPPING

    def step(self) -> None:
        """Deliver one of the messages under way."""
        number = self.rng.randrange(len(self.under_way))
        self.under_way[number], self.under_way[-1] = self.under_way[-1], self.under_way[number]
        self.under_way.pop()()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.under_way:
                self.step()

    def settle(self) -> int:
        """Stop losing messages, and let all members poll. Return the number of polls until the group has settled."""
        self.lossy = 0.0
        for round_ in range(12):
            while self.under_way:
                self.step()
            if self.settled():
                return round_
            self.come_back()
            for name in list(self.machines):
                self.tell(name, GroupChanged())
        raise AssertionError({name: (m.state, len(m.held), len(m.wanted)) for name, m in self.machines.items()})

    def settled(self) -> bool:
        alive = {name: machine for name, machine in self.machines.items() if machine.state is not RebalanceState.CLOSED}
        everything = {TopicPartition(topic, n) for topic, numbers in self.group.partitions.items() for n in numbers}
        return (
            all(machine.settled for machine in alive.values())
            and set(self.group.ids) == set(alive)
            and set(self.group.owners) == (everything if alive else set())
        )

    def end(self, name: str) -> None:
        """A worker returns."""
        self.tell(name, WorkerFinished())

    def withdraw(self, name: str) -> None:
        """The member withdraws, and joins again later."""
        self.tell(name, WithdrawRequested())

    def come_back(self) -> None:
        for name, machine in list(self.machines.items()):
            if machine.state is RebalanceState.OUT:
                self.tell(name, JoinRequested())


FATES = ("add", "close", "expire", "kill", "grow", "end", "withdraw")


def play(simulation: Simulation, turns: int) -> None:
    for turn in range(turns):
        simulation.run(simulation.rng.randrange(1, 60))
        fate = simulation.rng.choice(FATES)
        alive = [name for name, machine in simulation.machines.items() if machine.state is not RebalanceState.CLOSED]
        if fate == "add":
            simulation.add(f"n{turn:03}")
        elif fate == "grow":
            simulation.grow()
        elif alive:
            getattr(simulation, fate)(simulation.rng.choice(alive))
        simulation.come_back()


@pytest.mark.parametrize("seed", range(60))
def test_a_small_group_settles_after_any_failures(seed: int) -> None:
    simulation = Simulation(seed, members=seed % 6 + 1, partitions=seed % 9 + 1)
    play(simulation, turns=30)
    simulation.settle()


@pytest.mark.parametrize("seed", range(3))
def test_a_group_of_two_hundred_settles_after_any_failures(seed: int) -> None:
    simulation = Simulation(seed, members=200, partitions=300, assignor=round_robin_assignor)
    play(simulation, turns=20)
    simulation.settle()


# With the last three seeds, a member waits for partitions that are released without their signal.
@pytest.mark.parametrize("seed", [*range(60), 427, 1284, 1311])
def test_a_group_settles_without_polling_if_no_message_is_lost(seed: int) -> None:
    simulation = Simulation(seed, members=seed % 6 + 2, partitions=seed % 29 + 5)
    simulation.lossy = 0.0
    for turn in range(12):
        simulation.run(simulation.rng.randrange(1, 12))
        alive = [name for name, machine in simulation.machines.items() if machine.state is not RebalanceState.CLOSED]
        if not alive or simulation.rng.random() < 0.5:
            simulation.add(f"n{turn:03}")
        else:
            simulation.close(simulation.rng.choice(alive))
    assert simulation.settle() == 0


def test_a_member_that_keeps_its_partitions_is_not_interrupted() -> None:
    """Range gives the first member the same two partitions, whichever other members exist."""
    simulation = Simulation(1, members=3, partitions=6)
    simulation.lossy = 0.0
    simulation.settle()
    machine, before = simulation.machines["m000"], simulation.working["m000"]
    begun = []
    usual = simulation.carry_out
    simulation.carry_out = lambda name, m, action: (begun.append((name, action)), usual(name, m, action))[1]
    simulation.add("zzz")
    simulation.close("zzz")
    simulation.settle()
    kept = [
        action
        for name, action in begun
        if name == "m000" and isinstance(action, StartGeneration | StopGeneration | ReleasePartitions | DropPartitions)
    ]
    assert machine.running == before
    assert kept == []


def test_a_generation_is_stopped_before_its_partitions_are_released() -> None:
    held = frozenset(TopicPartition("orders", number) for number in range(3))
    moving = frozenset({TopicPartition("orders", 2)})
    member = member_with(held)
    look = member.receive(GroupChanged())
    assert look == [ReadGroup(4)]
    assert member.receive(Planned(4, 2, held - moving, held)) == [StopGeneration(5, moving)]
    assert member.receive(GenerationStopped(5)) == [ReleasePartitions(6, moving)]
    assert member.receive(Released(6)) == [StartGeneration(2, held - moving)]


def test_new_partitions_interrupt_only_once_they_are_claimed() -> None:
    mine, more = frozenset({TopicPartition("orders", 0)}), frozenset({TopicPartition("orders", 1)})
    member = member_with(mine)
    member.receive(GroupChanged())
    assert member.receive(Planned(4, 2, mine | more, mine, more)) == [AwaitRelease(more)]
    assert member.running == mine
    [at] = more
    assert member.receive(PartitionsFreed(frozenset({at}))) == [ClaimPartitions(5, more)]
    assert member.receive(Claimed(5, more)) == [StopGeneration(6, NOTHING)]
    assert member.receive(GenerationStopped(6)) == [StartGeneration(2, mine | more)]


def test_a_member_starts_without_missing_partitions_after_lingering() -> None:
    mine, more = frozenset({TopicPartition("orders", 0)}), frozenset({TopicPartition("orders", 1)})
    member = Rebalance()
    member.receive(JoinRequested())
    member.receive(Registered(1))
    assert member.receive(Planned(2, 1, mine | more, taken=more)) == [AwaitRelease(more), ClaimPartitions(3, mine)]
    assert member.receive(Claimed(3, mine)) == [StartLinger()]
    assert member.receive(LingerElapsed()) == [StartGeneration(1, mine)]


def test_a_change_while_stopping_is_read_before_anything_is_released() -> None:
    held = frozenset({TopicPartition("orders", 0), TopicPartition("orders", 1)})
    moving = frozenset({TopicPartition("orders", 1)})
    member = member_with(held)
    member.receive(GroupChanged())
    member.receive(Planned(4, 2, held - moving, held))
    assert member.receive(GroupChanged()) == []
    assert member.receive(GenerationStopped(5)) == [ReadGroup(6)]
    assert member.receive(Planned(6, 3, held, held)) == [StartGeneration(3, held)]


def test_a_lost_session_voids_all_claims_and_its_late_answers_are_ignored() -> None:
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held)
    member.receive(GroupChanged())
    assert member.receive(SessionLost()) == [DropPartitions(held), RegisterInstance(5)]
    assert (member.held, member.running) == (NOTHING, None)
    assert member.receive(Planned(4, 9, held)) == []
    assert member.receive(Registered(5)) == [ReadGroup(6)]


def test_partitions_taken_away_end_the_generation_and_the_rest_continues() -> None:
    held = frozenset({TopicPartition("orders", 0), TopicPartition("orders", 1)})
    taken = frozenset({TopicPartition("orders", 1)})
    member = member_with(held)
    member.receive(GroupChanged())
    actions = member.receive(Planned(4, 1, held, held - taken, taken))
    assert actions == [DropPartitions(taken), AwaitRelease(taken), StartLinger()]
    assert member.receive(LingerElapsed()) == [StartGeneration(1, held - taken)]


def test_an_unanswered_request_is_checked_and_not_repeated() -> None:
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held)
    member.receive(GroupChanged())
    member.receive(Planned(4, 2, NOTHING, held))
    assert member.receive(GenerationStopped(5)) == [ReleasePartitions(6, held)]
    assert member.receive(RequestFailed(6)) == [ReadGroup(7)]
    assert member.receive(Planned(7, 2, NOTHING, NOTHING)) == []
    assert member.settled


def test_a_stop_that_failed_is_followed_by_the_release() -> None:
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held)
    member.receive(GroupChanged())
    assert member.receive(Planned(4, 2, NOTHING, held)) == [StopGeneration(5, held)]
    assert member.receive(RequestFailed(5)) == [ReleasePartitions(6, held)]
    assert member.running is None


@pytest.mark.parametrize("late", [GenerationStopped(5), Released(4), Claimed(3, NOTHING), RequestFailed(1)], ids=repr)
def test_an_unexpected_answer_is_ignored(late: Event) -> None:
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held)
    assert member.receive(late) == []
    assert member.settled


def test_plan_numbers_never_decrease() -> None:
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held, number=9)
    member.receive(GroupChanged())
    assert member.receive(Planned(4, 3, NOTHING, held)) == [StopGeneration(5, held)]
    assert member.number == 9


@pytest.mark.parametrize(
    "state", [state for state in RebalanceState if state not in {RebalanceState.OUT, RebalanceState.CLOSED}]
)
def test_close_and_session_loss_are_handled_in_every_state(state: RebalanceState) -> None:
    assert (state, CloseRequested) in TRANSITIONS
    assert (state, SessionLost) in TRANSITIONS


def test_closing_stops_releases_and_ends() -> None:
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held)
    assert member.receive(CloseRequested()) == [StopGeneration(4, held)]
    assert member.receive(GenerationStopped(4)) == [DeregisterInstance(5)]
    assert member.receive(Released(5)) == []
    assert (member.state, member.held) == (RebalanceState.CLOSED, NOTHING)
    assert member.receive(GroupChanged()) == member.receive(SessionLost()) == member.receive(JoinRequested()) == []


def test_a_finished_worker_ends_the_generation_and_a_new_one_starts() -> None:
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held)
    assert member.receive(WorkerFinished()) == [StopGeneration(4, NOTHING)]
    assert member.receive(GenerationStopped(4)) == [StartGeneration(1, held)]
    assert member.settled


def test_a_worker_that_finishes_during_a_rebalance_ends_the_generation_afterwards() -> None:
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held)
    member.receive(GroupChanged())
    assert member.receive(WorkerFinished()) == []
    assert member.receive(Planned(4, 2, held, held)) == [StopGeneration(5, NOTHING)]
    assert member.receive(GenerationStopped(5)) == [StartGeneration(2, held)]


def test_a_withdrawn_member_releases_everything_until_it_joins_again() -> None:
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held)
    assert member.receive(WithdrawRequested()) == [StopGeneration(4, held)]
    assert member.receive(GenerationStopped(4)) == [DeregisterInstance(5)]
    assert member.receive(Released(5)) == []
    assert (member.state, member.held) == (RebalanceState.OUT, NOTHING)
    assert member.receive(GroupChanged()) == []
    assert member.receive(JoinRequested()) == [RegisterInstance(6)]


def test_closing_without_leaving_keeps_registration_and_claims() -> None:
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held)
    assert member.receive(CloseRequested(leave=False)) == [StopGeneration(4, held)]
    assert member.receive(GenerationStopped(4)) == []
    assert member.state is RebalanceState.CLOSED


def member_with(held: Partitions, number: int = 1) -> Rebalance:
    """A member with a running generation, after three requests."""
    member = Rebalance()
    member.receive(JoinRequested())
    member.receive(Registered(1))
    member.receive(Planned(2, number, held))
    assert member.receive(Claimed(3, held)) == [StartGeneration(number, held)]
    return member


def test_the_generated_page_is_up_to_date() -> None:
    script = Path(__file__).parents[2] / "scripts" / "rebalance_reference.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0, "make docs writes it anew"
