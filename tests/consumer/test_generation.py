"""Generations: where they begin, what their workers mark and commit, and how they end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from zkgroups import Consumergroup, EventKind, Generation, Member, MemberEvent, Registry, StartAt, TopicPartition
from zkgroups.consumer import member, rebalance_loop
from zkgroups.consumer.membership import Membership
from zkgroups.consumer.rebalance_loop import RebalanceLoop
from zkgroups.consumer.step_failures import StepFailures
from zkgroups.core.znodes.states import InstanceState
from zkgroups.exceptions import (
    GenerationEndedError,
    InvalidNameError,
    InvalidOptionError,
    MemberClosedError,
    NotClaimedError,
    ReentrantCallError,
)

from .conftest import LONGEST, Run, Running, ats, plant_topic

pytestmark = pytest.mark.zookeeper


P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))
Partitions = frozenset[TopicPartition]


def test_a_generation_begins_at_committed_offsets_and_otherwise_at_start_at(
    run: Run, group: Consumergroup, registry: Registry
) -> None:
    plant_topic(registry.client, "orders", 2)
    group.offsets.set(P0, 17)
    one = run(start_at="latest").until_holding(P0, P1)
    assert one.generations[-1].partitions == {P0: 17, P1: StartAt.LATEST}


def test_a_partition_with_an_unreadable_offset_is_skipped_and_the_others_are_worked_on(
    run: Run, group: Consumergroup, registry: Registry
) -> None:
    plant_topic(registry.client, "orders", 2)
    registry.client.create("/consumers/billing/offsets/orders/0", b"7 ", makepath=True)
    one = run(reconcile_every=0.1).until_holding(P0, P1)
    assert one.generations[-1].partitions == {P1: StartAt.EARLIEST}
    assert one.generations[-1].unreadable[P0].reason == "not a plain decimal number"
    registry.client.set("/consumers/billing/offsets/orders/0", b"7")
    one.until(lambda: one.generations[-1].partitions == {P0: 7, P1: StartAt.EARLIEST})


def test_only_marked_offsets_are_committed_before_a_handover(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    def work(generation: Generation) -> None:
        for at in generation.partitions:
            if at.partition != 3:
                generation.mark(at, 10 + at.partition)
        generation.wait()

    a = run(id="a", work=work).until_holding(orders)
    a.until(lambda: len(a.generations[-1]._marked) == 5)
    b = run(id="b").until_holding(ats("orders", 3, 4, 5))
    starts = dict(b.generations[-1].partitions)
    assert starts == {TopicPartition("orders", 3): StartAt.EARLIEST, TopicPartition("orders", 4): 14, P5: 15}
    assert group.offsets.fetch(P0).offset == 10  # type: ignore[union-attr]


def test_auto_commit_commits_marked_offsets_during_the_work(run: Run, group: Consumergroup, orders: Partitions) -> None:
    one = run(auto_commit_every=0.05, work=lambda generation: (generation.mark(P0, 5), generation.wait()))
    one.until(lambda: any(event.kind is EventKind.COMMITTED for event in one.events))
    assert group.offsets.fetch(P0).offset == 5  # type: ignore[union-attr]
    assert one.generations[-1].active
    assert one.member.stats.commits == 1


def test_commit_writes_at_once(run: Run, group: Consumergroup, orders: Partitions) -> None:
    one = run().until_holding(orders)
    generation = one.generations[-1]
    generation.commit({P0: 3})
    generation.mark(P1, 4)
    generation.commit()
    assert {at: group.offsets.fetch(at).offset for at in (P0, P1)} == {P0: 3, P1: 4}  # type: ignore[union-attr]
    with pytest.raises(NotClaimedError):
        generation.commit({TopicPartition("orders", 99): 1})
    with pytest.raises(NotClaimedError):
        generation.mark(TopicPartition("refunds", 0), 1)
    with pytest.raises(InvalidOptionError):
        generation.mark(P0, -1)


def test_a_signal_handler_that_commits_during_a_commit_gets_an_error(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    generation = run().until_holding(orders).generations[-1]
    refused: list[bool] = []

    def commit(*_: object) -> None:
        with pytest.raises(ReentrantCallError):
            generation.commit({P0: 3})
        refused.append(True)

    before = signal.signal(signal.SIGUSR1, commit)
    try:
        with generation._committing:
            signal.raise_signal(signal.SIGUSR1)
        assert refused
    finally:
        signal.signal(signal.SIGUSR1, before)
    generation.commit({P0: 4})
    assert [offset.shown for offset in group.offsets] == ["4"]


def test_a_callback_for_a_commit_may_commit_another_offset(group: Consumergroup, orders: Partitions) -> None:
    told: list[Partitions] = []

    def hear(event: MemberEvent) -> None:
        if event.kind is EventKind.COMMITTED:
            told.append(event.at)
            if len(told) == 1:
                generation.commit({P1: 6})

    with Member(group, ["orders"], on_event=hear) as member:
        found = member.next_generation(LONGEST)
        assert found is not None
        generation = found
        generation.commit({P0: 5})
    assert told == [frozenset({P0}), frozenset({P1})]


def test_a_commit_after_the_end_is_refused_and_changes_nothing(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    a = run(id="a").until_holding(orders)
    late = a.generations[-1]
    run(id="b").until_holding(ats("orders", 3, 4, 5))
    for at in (P0, P5):  # held, and expired
        with pytest.raises(GenerationEndedError):
            late.commit({at: 9})
        with pytest.raises(GenerationEndedError):
            late.mark(at, 9)
        assert group.offsets.fetch(at) is None


def test_a_worker_that_does_not_end_within_the_release_timeout_is_left_behind(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    free, told = threading.Event(), []

    def work(generation: Generation) -> None:
        free.wait(2 * LONGEST)
        try:
            generation.commit({P5: 99})
        except GenerationEndedError as error:
            told.append(error)

    a = run(id="a", release_timeout=0.3, work=work).until_holding(orders)
    b = run(id="b").until_holding(ats("orders", 3, 4, 5))
    free.set()
    b.until(lambda: told)
    assert group.offsets.fetch(P5) is None
    assert a.errors == []


def test_partitions_are_released_only_after_the_worker_has_ended(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    owners_at_the_end: list[int] = []

    def work(generation: Generation) -> None:
        generation.wait()
        owners_at_the_end.append(sum(1 for owner in group.owners() if owner.session))

    a = run(id="a", work=work, release_timeout=60.0, rebalance_timeout=100.0).until_holding(orders)
    a.close()
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

    with Member(group, ["orders"]) as member:
        with pytest.raises(ZeroDivisionError, match="orders/0 at 17"):
            _work_on_all(member, fail)
        generation = member.next_generation(LONGEST)
        assert generation is not None
        assert generation.partitions.keys() == orders


def _work_on_all(member: Member, work: Callable[[Generation], object]) -> None:
    for generation in member.generations():
        generation.start(work)
        generation.wait()


def test_next_generation_returns_within_its_timeout_and_can_be_cancelled(group: Consumergroup) -> None:
    with Member(group, ["not yet there".replace(" ", "-")]) as member:
        assert member.next_generation(0.01) is None
        threading.Timer(0.05, member.cancel).start()
        assert member.next_generation(LONGEST) is None


def test_a_member_waits_for_the_body_of_the_loop_as_for_a_worker(group: Consumergroup, orders: Partitions) -> None:
    with Member(group, ["orders"], id="a", release_timeout=60.0, rebalance_timeout=100.0) as member:
        for generation in member.generations():
            if len(generation.partitions) == 3:
                break
            with Running(group, id="b") as other:
                assert generation.wait(LONGEST)
                assert not other.member.assignment
                generation.commit({P5: 8})
            # `other` left without ever getting partitions, because this body delayed it
            break
        assert group.offsets.fetch(P5).offset == 8  # type: ignore[union-attr]


def test_no_body_of_the_loop_begins_in_a_generation_that_has_ended(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    """Nobody would wait for it: another member has its partitions."""

    class Late(Member):
        """Sees its first generation only after another member has taken half of the partitions."""

        other: Running | None = None

        def next_generation(self, timeout: float | None = None) -> Generation | None:
            found = super().next_generation(timeout)
            self.other = self.other or run(id="b").until_holding(ats("orders", 3, 4, 5))
            return found

    with Late(group, "orders", id="a") as late:
        first = next(late.generations())
        assert first.active
        assert first.partitions.keys() == ats("orders", 0, 1, 2)


def test_a_waiting_result_is_found_while_stale_ones_are_removed_from_the_queue(
    group: Consumergroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment, the queue is empty."""
    closed = Member(group, "orders")
    closed.close()
    looking, may_go_on = threading.Event(), threading.Event()

    def slowly(_waiting: object) -> bool:
        looking.set()
        return not may_go_on.wait(LONGEST)

    monkeypatch.setattr(member, "_is_stale", slowly)
    offers = threading.Thread(target=closed._offer, args=[ValueError("a worker has failed")])
    offers.start()
    assert looking.wait(LONGEST)
    threading.Timer(0.1, may_go_on.set).start()
    with pytest.raises((MemberClosedError, ValueError)):
        closed.next_generation(0)
    offers.join()


def test_a_worker_that_marks_nothing_for_too_long_loses_its_partitions_until_it_has_ended(
    run: Run, orders: Partitions
) -> None:
    begun, free = threading.Event(), threading.Event()

    def work(_generation: Generation) -> None:
        begun.set()
        free.wait(4 * LONGEST)

    stuck = run(id="a", max_idle=1.0, release_timeout=0.1, work=work)
    stuck.until(begun.is_set, "its work: a generation that is idle before that ends at once")
    healthy = run(id="b", max_idle=60)
    stuck.until(lambda: EventKind.IDLE in {event.kind for event in stuck.events})
    healthy.until_holding(orders)
    assert stuck.member.state is InstanceState.LEAVING
    free.set()
    stuck.until(lambda: stuck.member.assignment == ats("orders", 0, 1, 2))


def test_a_member_that_waits_for_its_stuck_worker_has_deregistered_once(
    run: Run, orders: Partitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation that became idle before its worker has begun ends at once, and another one begins."""
    free, waited, left = threading.Event(), list[Generation](), list[object]()
    stay_out, deregister = RebalanceLoop._stay_out, Membership.deregister
    monkeypatch.setattr(RebalanceLoop, "_stay_out", lambda loop, idle: (waited.append(idle), stay_out(loop, idle)))
    monkeypatch.setattr(Membership, "deregister", lambda *given: (left.append(given), deregister(*given)))
    stuck = run(max_idle=0.5, release_timeout=0.1, work=lambda _: free.wait(4 * LONGEST))
    stuck.until(lambda: waited and waited.count(waited[-1]) > 3)
    assert len(left) == sum(event.kind is EventKind.IDLE for event in stuck.events)
    free.set()


@pytest.mark.parametrize("failed", [True, False], ids=["failed", "ended"])
def test_the_pause_grows_with_each_generation_whose_worker_fails_at_once(
    run: Run, orders: Partitions, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(rebalance_loop, "BRIEF_GENERATION", LONGEST)
    monkeypatch.setattr(StepFailures, "pause", lambda _self, failures: asked.append(failures) or 0.0)

    def work(_generation: Generation) -> None:
        if failed:
            raise GenerationEndedError("billing", 1)

    run(work=work).until(lambda: len(asked) > 3)
    assert asked[:4] == ([1, 2, 3, 4] if failed else [1, 1, 1, 1])


def test_marking_the_same_offset_again_counts_as_progress(run: Run, orders: Partitions) -> None:
    """A machine that stands still for a second ends a generation, but not every one."""
    lasted: list[float] = []

    def work(generation: Generation) -> None:
        began = time.monotonic()
        while not generation.wait(0.02):
            generation.mark(P0, 0)
            lasted.append(time.monotonic() - began)

    one = run(max_idle=1.0, work=work)
    one.until(lambda: lasted and max(lasted) > 2.5, "a generation that lasts")


@pytest.mark.parametrize("work", [None, 7])
def test_work_that_is_not_a_function_is_refused(run: Run, orders: Partitions, work: Any) -> None:
    one = run().until_holding(orders)
    with pytest.raises(InvalidOptionError, match="it must be a function"):
        one.generations[-1].start(work)


def test_a_coroutine_function_is_refused_as_work_and_the_error_names_aio(run: Run, orders: Partitions) -> None:
    async def work(_generation: Generation) -> None: ...

    one = run().until_holding(orders)
    with pytest.raises(InvalidOptionError, match=r"zkgroups\.aio"):
        one.generations[-1].start(work)


def test_partition_objects_of_other_libraries_are_refused_by_their_type(run: Run, orders: Partitions) -> None:
    one = run().until_holding(orders)
    with pytest.raises(InvalidNameError, match="is not a TopicPartition"):
        one.generations[-1].mark(("orders", 0), 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidNameError, match="is not a TopicPartition"):
        one.generations[-1].commit({"orders": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidOptionError, match="offsets is 5"):
        one.generations[-1].commit(5)  # type: ignore[arg-type]
