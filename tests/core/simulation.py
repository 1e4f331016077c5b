"""Simulated rebalances of up to 200 members: the events of a group in random order, with failures."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

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
from zkgroups.core.rebalance.state_machine import Rebalance, RebalanceState
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
