"""The state machine of a member: in any order of events, no partition is held twice, a generation works only on
held partitions, and every group settles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zkgroups.core.rebalance.actions import (
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
from zkgroups.core.rebalance.round_robin import round_robin_assignor
from zkgroups.core.rebalance.state_machine import TRANSITIONS, Rebalance, RebalanceState
from zkgroups.core.znodes.topic_partition import TopicPartition

from ..seeds import seeds
from .simulation import Simulation, play


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
    assert member.held == held - moving, "another member may hold them before the answer arrives"
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
    assert member.receive(GenerationStopped(4)) == [DeregisterInstance(5, held)]
    assert member.held == NOTHING
    assert member.receive(Released(5)) == []
    assert member.state is RebalanceState.CLOSED
    assert member.receive(GroupChanged()) == member.receive(SessionLost()) == member.receive(JoinRequested()) == []


@pytest.mark.parametrize(
    ("request_", "end"),
    [(CloseRequested(), RebalanceState.CLOSED), (WithdrawRequested(), RebalanceState.OUT)],
    ids=["close", "withdraw"],
)
def test_a_leaving_member_whose_session_may_have_expired_deregisters(request_: Event, end: RebalanceState) -> None:
    """The session may live on, and the claims would stay with it."""
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held)
    assert member.receive(request_) == [StopGeneration(4, held)]
    assert member.receive(SessionLost()) == [DropPartitions(held), DeregisterInstance(5, NOTHING)]
    assert member.receive(GenerationStopped(4)) == []
    assert member.receive(Released(5)) == []
    assert (member.state, member.held) == (end, NOTHING)


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
    assert not member.settled
    assert member.receive(WorkerFinished()) == []
    assert member.receive(Planned(4, 2, held, held)) == [StopGeneration(5, NOTHING)]
    assert member.receive(GenerationStopped(5)) == [StartGeneration(2, held)]


def test_a_withdrawn_member_releases_everything_until_it_joins_again() -> None:
    held = frozenset({TopicPartition("orders", 0)})
    member = member_with(held)
    assert member.receive(WithdrawRequested()) == [StopGeneration(4, held)]
    assert member.receive(GenerationStopped(4)) == [DeregisterInstance(5, held)]
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
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0, "run make docs"
