"""Members for asyncio, and the tasks and callbacks that work on their generations."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import threading

import pytest

import zkgroups
from tests.simulation.loop import in_a_loop, run_in_a_loop
from tests.simulation.world import World
from zkgroups import Consumergroup, EventKind, MemberEvent, Owner, Registry, StartAt, TopicPartition, aio
from zkgroups.exceptions import GenerationEndedError, InvalidOptionError, MemberClosedError

from ..conftest import LONGEST, Partitions, ats, committed
from .conftest import PATIENT, Running, for_ever, mark_ten_more, work_on_all

P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))


# Options


def test_a_member_for_asyncio_has_the_options_of_a_threaded_member(group: Consumergroup) -> None:
    assert inspect.signature(aio.Member) == inspect.signature(zkgroups.Member)
    with pytest.raises(InvalidOptionError, match="on_lost is 3, but it must be a function"):
        aio.Member(group, ["orders"], on_lost=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="nonsense"):
        aio.Member(group, ["orders"], nonsense=1)  # type: ignore[call-arg]


@in_a_loop
async def test_nothing_is_registered_before_the_start(group: Consumergroup) -> None:
    member = aio.Member(group, ["orders"])
    await member.close()
    assert not group.exists()
    assert [each async for each in member.generations()] == []
    with pytest.raises(MemberClosedError):
        await member.next_generation()


@in_a_loop
async def test_a_member_cannot_be_used_in_another_loop(group: Consumergroup, orders: Partitions) -> None:
    async with aio.Member(group, ["orders"]) as member:
        elsewhere = asyncio.to_thread(asyncio.run, member.start())
        with pytest.raises(RuntimeError, match="another event loop"):
            await elsewhere


@in_a_loop
async def test_two_members_in_one_loop_share_and_continue_from_marked_offsets(
    group: Consumergroup, orders: Partitions
) -> None:
    """The workers never end by themselves."""
    async with Running(group, id="a", work=mark_ten_more, **PATIENT) as a:
        await a.until_holding(orders)
        async with Running(group, id="b", work=mark_ten_more, **PATIENT) as b:
            await b.until_holding(ats("orders", 3, 4, 5))
            await a.until_holding(ats("orders", 0, 1, 2))
        await a.until_holding(orders)
        assert a.generations[0].partitions == dict.fromkeys(orders, StartAt.EARLIEST)
        assert b.generations[0].partitions == dict.fromkeys(ats("orders", 3, 4, 5), 10)
        assert a.generations[-1].partitions == dict.fromkeys(orders, 20)
        assert a.member.stats.lost == 3
    assert {offset.offset for offset in group.offsets} == {30}  # type: ignore[union-attr]


@in_a_loop
async def test_a_task_that_is_cancelled_still_commits_and_marks_in_finally(
    group: Consumergroup, orders: Partitions
) -> None:
    async def work(generation: aio.Generation) -> None:
        try:
            await for_ever()
        finally:
            assert not generation.active
            await generation.commit({P0: 42})
            generation.mark(P1, 43)

    async with Running(group, work=work) as one:
        await one.until_holding(orders)
    assert {offset.at: offset.offset for offset in group.offsets} == {P0: 42, P1: 43}  # type: ignore[union-attr]
    with pytest.raises(GenerationEndedError):
        await one.generations[-1].commit({P0: 50})
    with pytest.raises(GenerationEndedError):
        one.generations[-1].mark(P0, 50)


@pytest.mark.parametrize("grace", [0.0, 0.1])
def test_a_task_of_an_ended_generation_is_called_and_cancelled_after_its_grace(
    world: World, group: Consumergroup, orders: Partitions, grace: float
) -> None:
    """Its caller may wait for it."""
    found: list[object] = []

    async def work(generation: aio.Generation) -> None:
        found.append(generation.active)
        try:
            await asyncio.sleep(0.05)
            found.append("slept")
            await for_ever()
        finally:
            found.append("ended")

    async def main() -> None:
        async with Running(group) as one:
            await one.until_holding(orders)
        one.generations[-1].start(work, grace=grace)
        await asyncio.sleep(1)

    run_in_a_loop(world, main())
    assert found == [False, *(["slept"] if grace else []), "ended"]


@in_a_loop
async def test_a_task_with_grace_may_end_by_itself(group: Consumergroup, orders: Partitions) -> None:
    ended: list[str] = []

    async def work(generation: aio.Generation) -> None:
        await generation.wait()
        ended.append("by itself")

    async def deaf(generation: aio.Generation) -> None:
        try:
            await for_ever()
        except asyncio.CancelledError as error:
            ended.append(str(error))
            raise

    async with aio.Member(group, ["orders"], **PATIENT) as member:
        generation = await member.next_generation(LONGEST)
        assert generation is not None
        for grace in (-1, 60.0):
            with pytest.raises(InvalidOptionError, match="grace is"):
                generation.start(work, grace=grace)
        generation.start(work, grace=50.0)
        generation.start(deaf, grace=0.1)
    assert sorted(ended) == ["by itself", f"generation {generation.number} of group 'billing' has ended"]


@in_a_loop
async def test_a_task_that_ends_ends_the_generation_and_its_other_tasks(
    group: Consumergroup, orders: Partitions
) -> None:
    cancelled: list[int] = []

    async def wait(generation: aio.Generation) -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            cancelled.append(generation.number)
            raise

    async def end(generation: aio.Generation) -> None:
        await asyncio.sleep(0)

    async with aio.Member(group, ["orders"]) as member:
        first = await member.next_generation(LONGEST)
        assert first is not None
        first.start(wait)
        first.start(end)
        assert await first.wait(LONGEST)
        second = await member.next_generation(LONGEST)
        assert second is not None
        assert cancelled == [first.number]
        assert second.partitions.keys() == orders
        assert member.stats.lost == 0


@in_a_loop
async def test_an_exception_of_a_task_is_raised_by_the_iteration_and_the_member_continues(
    group: Consumergroup, orders: Partitions
) -> None:
    async def fail(generation: aio.Generation) -> None:
        raise TimeoutError("orders/0 at 17")

    async with aio.Member(group, ["orders"]) as member:
        with pytest.raises(TimeoutError, match="orders/0 at 17"):
            await work_on_all(member, fail)
        generation = await member.next_generation(LONGEST)
        assert generation is not None
        assert generation.partitions.keys() == orders


@in_a_loop
async def test_an_exception_that_a_task_raises_at_the_end_is_not_lost(group: Consumergroup, orders: Partitions) -> None:
    async def fail(generation: aio.Generation) -> None:
        try:
            await for_ever()
        finally:
            raise ValueError("orders/0 at 18")

    member = await aio.Member(group, ["orders"]).start()
    generation = await member.next_generation(LONGEST)
    assert generation is not None
    generation.start(fail)
    await asyncio.sleep(0)
    await member.close()
    with pytest.raises(ValueError, match="orders/0 at 18"):
        await member.next_generation()
    with pytest.raises(MemberClosedError):
        await member.next_generation()


@in_a_loop
async def test_a_function_added_after_the_end_of_a_generation_is_called_at_once(
    group: Consumergroup, orders: Partitions
) -> None:
    """Otherwise tasks of a generation that ends before it is handed out would never be cancelled."""
    async with aio.Member(group, ["orders"]) as member:
        generation = await member.next_generation(LONGEST)
    told: list[int] = []
    generation._inner._call_at_end(lambda: told.append(generation.number))
    assert told == [generation.number]


@in_a_loop
async def test_only_coroutine_functions_can_be_started(group: Consumergroup, orders: Partitions) -> None:
    async with aio.Member(group, ["orders"]) as member:
        generation = await member.next_generation(LONGEST)
        assert generation is not None
        with pytest.raises(InvalidOptionError, match="it must be a coroutine function"):
            generation.start(print)  # type: ignore[arg-type]
        assert generation.active


@pytest.mark.parametrize("times", [1, 2])
@in_a_loop
async def test_a_refused_commit_whose_caller_was_cancelled_is_not_logged_by_asyncio(
    group: Consumergroup, registry: Registry, orders: Partitions, times: int
) -> None:
    """`nothing_is_forgotten` looks at the log."""
    async with aio.Member(group, ["orders"]) as member:
        generation = await member.next_generation(LONGEST)
        assert generation is not None
        registry.client.delete("/consumers/billing/owners/orders/0")
        commit = asyncio.create_task(generation.commit({P0: 5}))
        for _ in range(times):
            await asyncio.sleep(0)
            commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
    assert group.offsets.fetch(P0) is None


@in_a_loop
async def test_a_cancelled_wait_loses_no_generation(group: Consumergroup, orders: Partitions) -> None:
    """The wait is cancelled at every possible moment: before the generation is ready, when it is, and afterwards."""
    async with aio.Member(group, ["orders"]) as member:
        found = None
        for steps in itertools.cycle(range(5)):
            asking = asyncio.create_task(member.next_generation())
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            [found] = await asyncio.gather(asking, return_exceptions=True)
            if not isinstance(found, asyncio.CancelledError):
                break
            await asyncio.sleep(0.001)
        assert isinstance(found, aio.Generation)
        assert found.active
        assert await member.next_generation(0) is None
        assert member.stats.generations == 1


@in_a_loop
async def test_callbacks_run_in_the_loop_may_mark_and_commit_and_partitions_are_released_after_on_revoked(
    group: Consumergroup, orders: Partitions
) -> None:
    moving = ats("orders", 3, 4, 5)
    called: list[tuple[str, Partitions]] = []
    threads: set[threading.Thread] = set()
    gate, at_gate = asyncio.Event(), asyncio.Event()

    def hear(what: str, partitions: Partitions) -> None:
        threads.add(threading.current_thread())
        called.append((what, partitions))

    async def assigned(partitions: Partitions) -> None:
        await asyncio.sleep(0)
        hear("a has", partitions)

    async def revoked(partitions: Partitions) -> None:
        at_gate.set()
        await gate.wait()
        hear("a gives", partitions)
        a.generations[-1].mark(P0, 7)
        await a.generations[-1].commit({P1: 8})

    async with Running(group, id="a", on_assigned=assigned, on_revoked=revoked) as a:
        await a.until_holding(orders)
        async with Running(group, id="b", on_assigned=lambda at: hear("b has", at)) as b:
            await at_gate.wait()
            await b.until(lambda: b.told(EventKind.WAITING))
            assert {owner.id for owner in group.owners() if isinstance(owner, Owner)} == {"a-0"}
            gate.set()
            await b.until_holding(moving)
            assert called == [("a has", orders), ("a gives", moving), ("b has", moving)]
            assert committed(group) == {P0: 7, P1: 8}
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("fails", [True, False])
def test_a_callback_that_fails_is_logged_one_that_never_ends_is_cancelled_and_the_member_continues(
    world: World, group: Consumergroup, orders: Partitions, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    async def callback(_partitions: Partitions) -> None:
        if fails:
            raise ZeroDivisionError
        await for_ever()

    async def main() -> None:
        async with Running(group, on_assigned=callback, release_timeout=0.1, rebalance_timeout=0.2) as one:
            await one.until_holding(orders)

    run_in_a_loop(world, main())
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "of group 'billing' failed, called with frozenset" in record.getMessage()
    assert record.exc_info is not None
    error = (
        "ZeroDivisionError()" if fails else "TimeoutError('the callback did not end within 0.2 s and was cancelled')"
    )
    assert repr(record.exc_info[1]) == error


@in_a_loop
async def test_a_callback_for_any_event_may_commit(group: Consumergroup, orders: Partitions) -> None:
    """Even a callback for a commit may commit: the second commit does not wait for the first callback."""
    told: list[Partitions] = []
    offsets = itertools.count(1)
    enough = asyncio.Event()

    async def hear(event: MemberEvent) -> None:
        if event.kind is EventKind.COMMITTED:
            told.append(event.at)
            if len(told) < 4:
                await generation.commit({P1: next(offsets)})
                return
            enough.set()

    async with aio.Member(group, ["orders"], on_event=hear, auto_commit_every=0.05, **PATIENT) as member:
        found = await member.next_generation(LONGEST)
        assert found is not None
        generation = found
        generation.mark(P0, 5)  # the member's own thread reports this one
        await enough.wait()
        enough.clear()
        del told[:]
        await generation.commit({P5: 6})
        await enough.wait()
