"""Generations: where they begin, what their workers mark and commit, and how they end."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.world import World
from zkgroups import Consumergroup, EventKind, Generation, InstanceState, Member, StartAt, TopicPartition
from zkgroups.exceptions import (
    GenerationEndedError,
    InvalidNameError,
    InvalidOptionError,
    NotClaimedError,
    ReentrantCallError,
)

from .conftest import LONGEST, Partitions, Run, Running, ats, committed

P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))
FIRST, SECOND = ats("orders", 0, 1, 2), ats("orders", 3, 4, 5)
PATIENT: dict[str, Any] = {"release_timeout": 60.0, "rebalance_timeout": 100.0}


def next_of(member: Member) -> Generation:
    found = member.next_generation(LONGEST)
    assert found is not None
    return found


# Offsets


def test_only_marked_offsets_are_committed_before_a_handover(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    def work(generation: Generation) -> None:
        for at in generation.partitions:
            if at.partition != 3:
                generation.mark(at, 10 + at.partition)
        generation.wait()

    a = run(id="a", work=work).until_holding(orders)
    a.until(lambda: len(a.generation.marked) == 5)
    b = run(id="b").until_holding(SECOND)
    starts = {at.partition: start for at, start in b.generations[0].partitions.items()}
    assert starts == {3: StartAt.EARLIEST, 4: 14, 5: 15}
    assert committed(group)[P0] == 10


def test_auto_commit_writes_marked_offsets_during_the_work_and_commit_at_once(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    one = run(auto_commit_every=0.05, work=lambda generation: (generation.mark(P0, 5), generation.wait()))
    one.until_told(EventKind.COMMITTED)
    assert (committed(group), one.generation.active, one.member.stats.commits) == ({P0: 5}, True, 1)
    one.generation.commit({P0: 6})
    one.generation.mark(P1, 4)
    one.generation.commit()
    assert committed(group) == {P0: 6, P1: 4}


def test_offsets_that_cannot_be_marked_or_committed_are_refused(run: Run, orders: Partitions) -> None:
    generation = run().until_holding(orders).generation
    refused: list[tuple[Any, type[Exception], str]] = [
        (lambda: generation.commit({TopicPartition("orders", 99): 1}), NotClaimedError, "orders/99"),
        (lambda: generation.mark(TopicPartition("refunds", 0), 1), NotClaimedError, "refunds/0"),
        (lambda: generation.mark(P0, -1), InvalidOptionError, "-1"),
        (lambda: generation.mark(("orders", 0), 1), InvalidNameError, "is not a TopicPartition"),  # type: ignore[arg-type]
        (lambda: generation.commit({"orders": 1}), InvalidNameError, "is not a TopicPartition"),  # type: ignore[dict-item]
        (lambda: generation.commit(5), InvalidOptionError, "offsets is 5"),  # type: ignore[arg-type]
    ]
    for call, error, text in refused:
        with pytest.raises(error, match=text):
            call()


def test_a_signal_handler_that_commits_during_a_commit_gets_an_error(run: Run, orders: Partitions) -> None:
    generation = run().until_holding(orders).generation
    refused: list[bool] = []

    def commit(*_: object) -> None:
        with pytest.raises(ReentrantCallError):
            generation.commit({P0: 3})
        refused.append(True)

    before = signal.signal(signal.SIGUSR1, commit)
    try:
        with generation._committing:  # as in the middle of a commit
            signal.raise_signal(signal.SIGUSR1)
        assert refused
    finally:
        signal.signal(signal.SIGUSR1, before)
    generation.commit({P0: 4})


def test_a_commit_after_the_end_is_refused_and_changes_nothing(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    late = run(id="a").until_holding(orders).generation
    run(id="b").until_holding(SECOND)
    for at in (P0, P5):  # held, and given away
        for call in (lambda at=at: late.commit({at: 9}), lambda at=at: late.mark(at, 9)):
            with pytest.raises(GenerationEndedError):
                call()
    assert committed(group) == {}


# Workers


def test_a_worker_that_does_not_end_within_the_release_timeout_is_left_behind(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    free, told = threading.Event(), list[GenerationEndedError]()

    def work(generation: Generation) -> None:
        free.wait(2 * LONGEST)
        try:
            generation.commit({P5: 99})
        except GenerationEndedError as error:
            told.append(error)

    a = run(id="a", release_timeout=0.3, work=work).until_holding(orders)
    b = run(id="b").until_holding(SECOND)
    free.set()
    b.until(lambda: told)
    assert (committed(group), a.errors) == ({}, [])


def test_partitions_are_released_only_after_the_worker_has_ended(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    owners_at_the_end: list[int] = []

    def work(generation: Generation) -> None:
        generation.wait()
        time.sleep(20)
        owners_at_the_end.append(len(list(group.owners())))

    run(id="a", work=work, **PATIENT).until_holding(orders).close()
    assert owners_at_the_end == [6]


def test_a_worker_that_ends_ends_the_generation_and_another_one_begins(run: Run, orders: Partitions) -> None:
    again = threading.Event()

    def work(generation: Generation) -> None:
        if again.is_set():
            generation.wait()
        again.set()

    one = run(work=work)
    one.until(lambda: len(one.generations) == 2)
    one.until_holding(orders)
    assert one.generations[0].number == one.generations[1].number
    assert one.member.stats.lost == 0


def test_an_exception_of_a_worker_is_raised_by_the_iteration_and_the_member_continues(
    group: Consumergroup, orders: Partitions
) -> None:
    def fail(generation: Generation) -> None:
        raise ZeroDivisionError("orders/0 at 17")

    def work_on_all() -> None:
        for generation in member.generations():
            generation.start(fail)
            generation.wait()

    with Member(group, ["orders"]) as member:
        with pytest.raises(ZeroDivisionError, match="orders/0 at 17"):
            work_on_all()
        assert next_of(member).partitions.keys() == orders


@pytest.mark.parametrize("error", [None, ValueError("no"), GenerationEndedError("billing", 1)], ids=repr)
def test_workers_that_end_at_once_do_not_cause_many_generations_and_failing_ones_ever_fewer(
    run: Run, orders: Partitions, error: Exception | None
) -> None:
    began: list[float] = []

    def work(_generation: Generation) -> None:
        began.append(time.monotonic())
        if error is not None:
            raise error

    a = run(work=work)
    a.expect(ValueError)
    a.until(lambda: len(began) > 12)
    pauses = [later - earlier for earlier, later in itertools.pairwise(began)]
    if error is None:
        assert min(pauses) > 0.02
        assert max(pauses) < 2 * min(pauses)
    else:
        assert pauses[1] > 1.5 * pauses[0]
        assert pauses[-1] > 20 * pauses[0]


@pytest.mark.parametrize(("work", "told"), [(None, "it must be a function"), (7, "it must be a function")])
def test_work_that_is_not_a_function_is_refused(run: Run, orders: Partitions, work: Any, told: str) -> None:
    one = run().until_holding(orders)
    with pytest.raises(InvalidOptionError, match=told):
        one.generation.start(work)


def test_work_on_an_ended_generation_is_called_and_can_change_nothing(run: Run, orders: Partitions) -> None:
    """Its caller may wait for it."""
    found: list[object] = []

    def work(generation: Generation) -> None:
        found.append(generation.active)
        generation.mark(P0, 7)

    one = run().until_holding(orders)
    one.close()
    one.generation.start(work)
    one.until(lambda: found)
    assert (found, one.generation.marked) == ([False], {})


# The loop of the caller


def test_next_generation_returns_within_its_timeout_and_can_be_cancelled(group: Consumergroup) -> None:
    with Member(group, ["not-yet-there"]) as member:
        assert member.next_generation(0.01) is None
        threading.Thread(target=lambda: (time.sleep(0.05), member.cancel())).start()
        assert member.next_generation(LONGEST) is None


def test_a_member_waits_for_the_body_of_the_loop_as_for_a_worker(group: Consumergroup, orders: Partitions) -> None:
    with Member(group, ["orders"], id="a", **PATIENT) as member:
        for generation in member.generations():
            with Running(group, id="b") as other:
                assert generation.wait(LONGEST)
                time.sleep(20)
                assert not other.member.assignment
                generation.commit({P5: 8})
            # `other` left without ever getting partitions, because this body delayed it
            break
        assert committed(group) == {P5: 8}


def test_no_body_of_the_loop_begins_in_a_generation_that_has_ended(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    """Nobody would wait for it: another member has its partitions."""

    class Late(Member):
        """Sees its first generation only after another member has taken half of the partitions."""

        other: Running | None = None

        def next_generation(self, timeout: float | None = None) -> Generation | None:
            found = super().next_generation(timeout)
            self.other = self.other or run(id="b").until_holding(SECOND)
            return found

    with Late(group, "orders", id="a") as late:
        first = next(late.generations())
        assert first.active
        assert first.partitions.keys() == FIRST


def test_no_generation_begins_while_disconnected(world: World, connect: Callable[..., Any], orders: Partitions) -> None:
    assigned = threading.Event()
    with Member(connect("far").group("billing"), ["orders"], on_assigned=lambda _: assigned.set()) as member:
        assert assigned.wait(LONGEST)
        world.cut("far")
        time.sleep(25)
        assert member.next_generation(0.2) is None
        world.heal("far")
        generation = next_of(member)
        assert generation.active
        assert not generation.paused


# Idle workers


def test_a_worker_that_marks_nothing_for_too_long_loses_its_partitions_until_it_has_ended(
    world: World, run: Run, orders: Partitions
) -> None:
    free = threading.Event()
    stuck = run(id="a", max_idle=10.0, release_timeout=0.1, work=lambda _generation: free.wait(4 * LONGEST))
    healthy = run(id="b", max_idle=60)
    stuck.until_told(EventKind.IDLE)
    healthy.until_holding(orders)
    assert stuck.member.state is InstanceState.LEAVING
    zxid = world.server.nodes["/consumers/billing/ids"].children_zxid
    time.sleep(30)
    assert world.server.nodes["/consumers/billing/ids"].children_zxid == zxid, "it deregisters once, and waits"
    free.set()
    stuck.until(lambda: stuck.member.assignment == FIRST)


@pytest.mark.parametrize("offset", [0, 7])
def test_marking_the_same_offset_again_counts_as_progress(run: Run, orders: Partitions, offset: int) -> None:
    def work(generation: Generation) -> None:
        while not generation.wait(5.0):
            generation.mark(P0, offset)

    one = run(max_idle=10.0, work=work).until_holding(orders)
    time.sleep(100)
    assert (len(one.generations), one.told(EventKind.IDLE)) == (1, [])


# Strategies and callbacks that fail


def leaving(_members: Any) -> Any:
    """A strategy that ends the program, as a script might."""
    sys.exit(3)


def test_a_strategy_that_exits_ends_the_member_and_releases_everything(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    with Member(group, ["orders"], id="a", assignors=[leaving]) as member:
        with pytest.raises(RuntimeError, match="SystemExit"):
            member.next_generation(LONGEST)
        assert not group.instances()
    run(id="b").until_holding(orders)
