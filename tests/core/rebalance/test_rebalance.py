"""The state machine of a member: in any order of events, no partition is held twice, a generation works only on
held partitions, and every group settles. Simulated with up to 200 members, whose messages are late, doubled or lost."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.seeds import seeds
from zkgroups import TopicPartition
from zkgroups.core.rebalance import state_machine as do
from zkgroups.core.rebalance import state_machine as on
from zkgroups.core.rebalance.assignors import range_assignor, round_robin_assignor
from zkgroups.core.rebalance.members import Members, assigned_to
from zkgroups.core.rebalance.shared_plan import ReleaseSignals
from zkgroups.core.rebalance.state_machine import NOTHING, TRANSITIONS, Event, Partitions, Rebalance, RebalanceState


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
        self.tell(name, on.JoinRequested())

    def close(self, name: str) -> None:
        self.tell(name, on.CloseRequested())

    def expire(self, name: str) -> None:
        """The member notices the loss by its own clock, before the server expires the session."""
        self.tell(name, on.SessionLost())
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
            self.hear(name, on.GroupChanged())

    def await_free(self, name: str, partitions: Partitions) -> None:
        """Watch one partition of all that are released together."""
        for at in self.signals[name].choose({at: self.group.owners.get(at, at) for at in partitions}):
            self.group.waiting.setdefault(at, set()).add(name)
            if at not in self.group.owners:
                self.tell_free(name, at)

    def tell_free(self, name: str, at: TopicPartition) -> None:
        self.hear(name, on.PartitionsFreed(self.signals[name].released_with(at)))

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

    def carry_out(self, name: str, machine: Rebalance, action: do.Action) -> None:
        match action:
            case do.StartGeneration(partitions=partitions):
                assert name not in self.working, "the one before has ended"
                self.working[name] = partitions
            case do.DropPartitions():
                self.working.pop(name, None)
            case do.StartLinger():
                self.later(lambda: self.tell(name, on.LingerElapsed()))
            case do.AwaitRelease(partitions):
                self.await_free(name, partitions)
            case do.StopGeneration(turn):
                self.working.pop(name, None)
                self.later(lambda: self.tell(name, on.GenerationStopped(turn)))
            case (
                do.RegisterInstance()
                | do.ReadGroup()
                | do.ClaimPartitions()
                | do.ReleasePartitions()
                | do.DeregisterInstance()
            ):
                self.later(lambda: self.ask(name, machine, action))

    def ask(self, name: str, machine: Rebalance, action: do.Action) -> None:
        """Deliver a request and later its answer, or lose one of the two. An expired session sends no more requests."""
        if self.machines.get(name) is not machine or machine._turn != action.turn:
            return
        fails = self.rng.random() < self.lossy / 2
        if fails and self.rng.random() < 0.5:
            self.later(lambda: self.tell(name, on.RequestFailed(action.turn)))
            return
        answer = on.RequestFailed(action.turn) if (answer := self.answer(name, action)) and fails else answer
        for _ in range(self.rng.choice((1, 1, 2))):
            self.later(lambda: self.tell(name, answer))

    def answer(self, name: str, action: do.Action) -> Event:
        group = self.group
        match action:
            case do.RegisterInstance(turn):
                if name not in group.ids:
                    group.number += 1
                    group.ids[name] = group.number
                    self.announce()
                return on.Registered(turn)
            case do.ReadGroup(turn):
                wanted = frozenset(assigned_to(name, self.plan()))
                mine = frozenset(at for at, owner in group.owners.items() if owner == name)
                taken = frozenset(at for at in wanted if group.owners.get(at, name) != name)
                self.await_free(name, self.signals[name].without_signal(taken))
                return on.Planned(turn, group.number, wanted, mine, taken)
            case do.ClaimPartitions(turn, partitions):
                granted = frozenset(at for at in partitions if group.owners.get(at, name) == name)
                group.owners |= dict.fromkeys(granted, name)
                return on.Claimed(turn, granted)
            case do.ReleasePartitions(turn, partitions):
                self.let_go(name, partitions)
                return on.Released(turn)
            case do.DeregisterInstance(turn):
                self.forget(name)
                return on.Released(turn)
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
        """Check that the member owns on the server what it believes to hold, and works on nothing else."""
        worked_on = self.working.get(name, NOTHING)
        assert worked_on <= machine.held
        assert all(self.group.owners.get(at) == name for at in machine.held), (name, machine.held, self.group.owners)
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
                self.tell(name, on.GroupChanged())
        raise AssertionError({name: (m.state, len(m.held), len(m.wanted)) for name, m in self.machines.items()})

    def settled(self) -> bool:
        alive = self.alive
        everything = {TopicPartition(topic, n) for topic, numbers in self.group.partitions.items() for n in numbers}
        return (
            all(self.machines[name].settled for name in alive)
            and set(self.group.ids) == set(alive)
            and set(self.group.owners) == (everything if alive else set())
        )

    @property
    def alive(self) -> list[str]:
        return [name for name, machine in self.machines.items() if machine.state is not RebalanceState.CLOSED]

    def end(self, name: str) -> None:
        """A worker returns."""
        self.tell(name, on.WorkerFinished())

    def withdraw(self, name: str) -> None:
        """The member withdraws, and joins again later."""
        self.tell(name, on.WithdrawRequested())

    def come_back(self) -> None:
        for name, machine in list(self.machines.items()):
            if machine.state is RebalanceState.OUT:
                self.tell(name, on.JoinRequested())


FATES = ("add", "close", "expire", "kill", "grow", "end", "withdraw")


def play(simulation: Simulation, turns: int) -> None:
    for turn in range(turns):
        simulation.run(simulation.rng.randrange(1, 60))
        fate = simulation.rng.choice(FATES)
        if fate == "add":
            simulation.add(f"n{turn:03}")
        elif fate == "grow":
            simulation.grow()
        elif alive := simulation.alive:
            getattr(simulation, fate)(simulation.rng.choice(alive))
        simulation.come_back()


@pytest.mark.parametrize("seed", seeds(60))
def test_a_small_group_settles_after_any_failures(seed: int) -> None:
    simulation = Simulation(seed, members=seed % 6 + 1, partitions=seed % 9 + 1)
    play(simulation, turns=30)
    simulation.settle()


@pytest.mark.parametrize("seed", seeds(3))
def test_a_group_of_two_hundred_settles_after_any_failures(seed: int) -> None:
    simulation = Simulation(seed, members=200, partitions=300, assignor=round_robin_assignor)
    play(simulation, turns=20)
    simulation.settle()


# With the last three seeds, a member waits for partitions that are released without their signal.
@pytest.mark.parametrize("seed", [*seeds(60), 427, 1284, 1311])
def test_a_group_settles_without_polling_if_no_message_is_lost(seed: int) -> None:
    simulation = Simulation(seed, members=seed % 6 + 2, partitions=seed % 29 + 5)
    simulation.lossy = 0.0
    for turn in range(12):
        simulation.run(simulation.rng.randrange(1, 12))
        if not (alive := simulation.alive) or simulation.rng.random() < 0.5:
            simulation.add(f"n{turn:03}")
        else:
            simulation.close(simulation.rng.choice(alive))
    assert simulation.settle() == 0


def test_a_member_that_keeps_its_partitions_is_not_interrupted() -> None:
    """Range gives the first member the same two partitions, whichever other members exist."""
    simulation = Simulation(1, members=3, partitions=6)
    simulation.lossy = 0.0
    simulation.settle()
    before, seen = simulation.working["m000"], []
    usual = simulation.carry_out
    simulation.carry_out = lambda name, *of: (seen.append((name, of[1])), usual(name, *of))[1]  # type: ignore[method-assign]
    simulation.add("zzz")
    simulation.close("zzz")
    simulation.settle()
    interrupting = do.StartGeneration | do.StopGeneration | do.ReleasePartitions | do.DropPartitions
    assert simulation.machines["m000"].running == before
    assert [action for name, action in seen if name == "m000" and isinstance(action, interrupting)] == []


# Step by step: what happens, and what the member does then. The member holds partition 0, or 0 and 1, in a generation
# that began after three requests.

P0, P1 = (frozenset({TopicPartition("orders", number)}) for number in range(2))
BOTH = P0 | P1
LOOK = (on.GroupChanged(), [do.ReadGroup(4)])
CLOSED, OUT = RebalanceState.CLOSED, RebalanceState.OUT
Script = list[tuple[Event, list[do.Action]]]


def leaving(state: RebalanceState, request: Event, *after: tuple[Event, list[do.Action]]) -> tuple[Any, ...]:
    """All is stopped, released and deregistered. Then nothing matters any more."""
    script: Script = [
        (request, [do.StopGeneration(4, P0)]),
        (on.GenerationStopped(4), [do.DeregisterInstance(5, P0)]),
        (on.Released(5), []),
        (on.GroupChanged(), []),
        *after,
    ]
    return P0, script, (state, NOTHING)


def leaving_with_a_lost_session(state: RebalanceState, request: Event) -> tuple[Any, ...]:
    """The session may live on, and the claims would stay with it."""
    script: Script = [
        (request, [do.StopGeneration(4, P0)]),
        (on.SessionLost(), [do.DropPartitions(P0), do.DeregisterInstance(5, NOTHING)]),
        (on.GenerationStopped(4), []),
        (on.Released(5), []),
    ]
    return P0, script, (state, NOTHING)


SCRIPTS: dict[str, tuple[Partitions, Script, tuple[RebalanceState, Partitions]]] = {
    "a generation is stopped before its partitions are released": (
        BOTH,
        [
            LOOK,
            (on.Planned(4, 2, P0, BOTH), [do.StopGeneration(5, P1)]),
            (on.GenerationStopped(5), [do.ReleasePartitions(6, P1)]),
            (on.Released(6), [do.StartGeneration(2, P0)]),
        ],
        (RebalanceState.IDLE, P0),
    ),
    "new partitions interrupt only once they are claimed": (
        P0,
        [
            LOOK,
            (on.Planned(4, 2, BOTH, P0, P1), [do.AwaitRelease(P1)]),
            (on.PartitionsFreed(P1), [do.ClaimPartitions(5, P1)]),
            (on.Claimed(5, P1), [do.StopGeneration(6, NOTHING)]),
            (on.GenerationStopped(6), [do.StartGeneration(2, BOTH)]),
        ],
        (RebalanceState.IDLE, BOTH),
    ),
    "a change while stopping is read before anything is released": (
        BOTH,
        [
            LOOK,
            (on.Planned(4, 2, P0, BOTH), [do.StopGeneration(5, P1)]),
            (on.GroupChanged(), []),
            (on.GenerationStopped(5), [do.ReadGroup(6)]),
            (on.Planned(6, 3, BOTH, BOTH), [do.StartGeneration(3, BOTH)]),
        ],
        (RebalanceState.IDLE, BOTH),
    ),
    "a lost session voids all claims, and its late answers are ignored": (
        P0,
        [
            LOOK,
            (on.SessionLost(), [do.DropPartitions(P0), do.RegisterInstance(5)]),
            (on.Planned(4, 9, P0), []),
            (on.Registered(5), [do.ReadGroup(6)]),
        ],
        (RebalanceState.READING, NOTHING),
    ),
    "partitions taken away end the generation, and the rest continues": (
        BOTH,
        [
            LOOK,
            (on.Planned(4, 1, BOTH, P0, P1), [do.DropPartitions(P1), do.AwaitRelease(P1), do.StartLinger()]),
            (on.LingerElapsed(), [do.StartGeneration(1, P0)]),
        ],
        (RebalanceState.IDLE, P0),
    ),
    "an unanswered request is checked and not repeated, and plan numbers never decrease": (
        P0,
        [
            LOOK,
            (on.Planned(4, 0, NOTHING, P0), [do.StopGeneration(5, P0)]),
            (on.GenerationStopped(5), [do.ReleasePartitions(6, P0)]),
            (on.RequestFailed(6), [do.ReadGroup(7)]),
            (on.Planned(7, 2, P0, P0), [do.StartGeneration(2, P0)]),
            (on.WorkerFinished(), [do.StopGeneration(8, NOTHING)]),
        ],
        (RebalanceState.STOPPING, P0),
    ),
    "a stop that failed is followed by the release": (
        P0,
        [
            LOOK,
            (on.Planned(4, 2, NOTHING, P0), [do.StopGeneration(5, P0)]),
            (on.RequestFailed(5), [do.ReleasePartitions(6, P0)]),
        ],
        (RebalanceState.RELEASING, NOTHING),
    ),
    "unexpected answers are ignored": (
        P0,
        [(late, []) for late in (on.GenerationStopped(5), on.Released(4), on.Claimed(3, NOTHING), on.RequestFailed(1))],
        (RebalanceState.IDLE, P0),
    ),
    "after a finished worker a new generation starts": (
        P0,
        [
            (on.WorkerFinished(), [do.StopGeneration(4, NOTHING)]),
            (on.GenerationStopped(4), [do.StartGeneration(1, P0)]),
        ],
        (RebalanceState.IDLE, P0),
    ),
    "a worker that finishes during a rebalance ends the generation afterwards": (
        P0,
        [
            LOOK,
            (on.WorkerFinished(), []),
            (on.Planned(4, 2, P0, P0), [do.StopGeneration(5, NOTHING)]),
            (on.GenerationStopped(5), [do.StartGeneration(2, P0)]),
        ],
        (RebalanceState.IDLE, P0),
    ),
    "closing": leaving(CLOSED, on.CloseRequested(), (on.SessionLost(), []), (on.JoinRequested(), [])),
    "withdrawing": leaving(OUT, on.WithdrawRequested()),
    "closing with a lost session": leaving_with_a_lost_session(CLOSED, on.CloseRequested()),
    "withdrawing with a lost session": leaving_with_a_lost_session(OUT, on.WithdrawRequested()),
    "closing without leaving keeps registration and claims": (
        P0,
        [(on.CloseRequested(leave=False), [do.StopGeneration(4, P0)]), (on.GenerationStopped(4), [])],
        (CLOSED, NOTHING),
    ),
}


def member_with(held: Partitions) -> Rebalance:
    """A member with a running generation, after three requests."""
    member = Rebalance()
    for event in (on.JoinRequested(), on.Registered(1), on.Planned(2, 1, held)):
        member.receive(event)
        assert not member.stable
    assert member.receive(on.Claimed(3, held)) == [do.StartGeneration(1, held)]
    return member


@pytest.mark.parametrize("name", SCRIPTS)
def test_step_by_step(name: str) -> None:
    held, script, end = SCRIPTS[name]
    member = member_with(held)
    numbers = [member.number]
    for event, actions in script:
        assert member.receive(event) == actions, event
        numbers.append(member.number)
    assert (member.state, member.held) == end
    assert numbers == sorted(numbers)


def test_a_member_starts_without_missing_partitions_after_lingering() -> None:
    member = Rebalance()
    member.receive(on.JoinRequested())
    member.receive(on.Registered(1))
    assert member.receive(on.Planned(2, 1, BOTH, taken=P1)) == [do.AwaitRelease(P1), do.ClaimPartitions(3, P0)]
    assert member.receive(on.Claimed(3, P0)) == [do.StartLinger()]
    assert member.receive(on.LingerElapsed()) == [do.StartGeneration(1, P0)]


def test_a_withdrawn_member_joins_again() -> None:
    held, script, _end = leaving(OUT, on.WithdrawRequested())
    member = member_with(held)
    for event, _actions in script:
        member.receive(event)
    assert member.receive(on.JoinRequested()) == [do.RegisterInstance(6)]


def test_a_member_stays_stable_during_a_look_unless_that_changes_something() -> None:
    member = member_with(P0)
    for event in (on.GroupChanged(), on.RequestFailed(4), on.GroupChanged(), on.Planned(5, 1, P0, P0)):
        member.receive(event)  # also if the look failed, or is repeated because the group has changed again
        assert member.stable
    for event in (on.Planned(6, 1, BOTH, P0), on.GroupChanged(), on.Claimed(7, P1), on.SessionLost()):
        member.receive(event)  # the generation does not begin
        assert not member.stable


def test_close_and_session_loss_are_handled_in_every_state() -> None:
    for state in set(RebalanceState) - {OUT, CLOSED}:
        assert {(state, on.CloseRequested), (state, on.SessionLost)} <= TRANSITIONS.keys()


def test_the_generated_page_is_up_to_date() -> None:
    script = Path(__file__).parents[3] / "scripts" / "rebalance_reference.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0, "run make docs"
