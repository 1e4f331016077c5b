"""Members for asyncio, on a real server: they share and hand over as all do, and never hold up their loop."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import logging
import re
import signal
import textwrap
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from typing import Any, Self

import pytest

import zkgroups
from zkgroups import Consumergroup, EventKind, MemberEvent, Owner, Registry, StartAt, TopicPartition, aio
from zkgroups.core.znodes.states import InstanceState
from zkgroups.exceptions import GenerationEndedError, InvalidOptionError, MemberClosedError
from zkgroups.testing import ZooKeeperServer, expire_session

from ..testing.waiting import eventually
from .conftest import LONGEST, Run, ats, plant_topic

pytestmark = pytest.mark.zookeeper

P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))
Partitions = frozenset[TopicPartition]

PATIENT = {"release_timeout": 60.0, "rebalance_timeout": 100.0}
"""Whoever waits for a worker that does not end by itself fails the test."""


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(60):
                await test(*arguments, **fixtures)

        asyncio.run(limited(), debug=False)

    return run


@pytest.fixture(autouse=True)
def nothing_is_forgotten(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No task is destroyed while it is pending, and no exception is left that nobody has asked for."""
    yield
    gc.collect()
    assert [record for record in caplog.get_records("call") if record.name in ("asyncio", "concurrent.futures")] == []
    assert eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("zkgroups-")])


async def for_ever() -> None:
    await asyncio.Event().wait()


class Running:
    """A member whose generations are worked on by a task, and everything that it tells."""

    def __init__(self, group: Consumergroup, *, work: aio.Work | None = None, **options: Any) -> None:
        self.events: list[MemberEvent] = []
        self.generations: list[aio.Generation] = []
        self._news = asyncio.Event()
        self._work = work
        self.member = aio.Member(group, ["orders"], on_event=self._hear, **options)

    def _hear(self, event: MemberEvent) -> None:
        self.events.append(event)
        self._news.set()

    async def _run(self) -> None:
        async for generation in self.member.generations():
            self.generations.append(generation)
            self._news.set()
            if self._work is not None:
                generation.start(self._work)
            await generation.wait()

    async def until(self, so: Callable[[], object]) -> Self:
        """Wait until something is so, and look at each event, and now and then."""
        async with asyncio.timeout(LONGEST):
            while not so():
                self._news.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.05)
        return self

    async def until_holding(self, partitions: Partitions) -> Self:
        """Wait until it works on exactly these."""

        def works() -> bool:
            settled = self.member.assignment == partitions and self.member.state is InstanceState.STABLE
            return settled and bool(self.generations) and self.generations[-1].active

        return await self.until(works)

    def told(self, kind: EventKind) -> bool:
        return any(event.kind is kind for event in self.events)

    async def __aenter__(self) -> Self:
        await self.member.start()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.member.close()
        await self._task


# Options


def test_the_options_are_those_of_every_member(group: Consumergroup) -> None:
    assert inspect.signature(aio.Member) == inspect.signature(zkgroups.Member)
    with pytest.raises(InvalidOptionError, match="on_lost is 3, but it must be a function"):
        aio.Member(group, ["orders"], on_lost=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="nonsense"):
        aio.Member(group, ["orders"], nonsense=1)  # type: ignore[call-arg]


@in_a_loop
async def test_nothing_is_registered_before_it_is_started(group: Consumergroup) -> None:
    member = aio.Member(group, ["orders"])
    await member.close()
    assert not group.exists()
    with pytest.raises(MemberClosedError):
        await member.next_generation()


@in_a_loop
async def test_a_member_stays_in_its_loop(group: Consumergroup, orders: Partitions) -> None:
    async with aio.Member(group, ["orders"]) as member:
        elsewhere = asyncio.to_thread(asyncio.run, member.start())
        with pytest.raises(RuntimeError, match="another event loop"):
            await elsewhere


# Sharing


async def mark_ten_more(generation: aio.Generation) -> None:
    for at, start in generation.partitions.items():
        generation.mark(at, (start if isinstance(start, int) else 0) + 10)
    await for_ever()


@in_a_loop
async def test_two_in_one_loop_share_and_hand_over_where_it_was_marked(
    group: Consumergroup, orders: Partitions
) -> None:
    """Their workers never end by themselves."""
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
async def test_it_shares_with_members_that_have_threads(run: Run, group: Consumergroup, orders: Partitions) -> None:
    async with Running(group, id="a", work=mark_ten_more) as a:
        await a.until_holding(orders)
        b = await asyncio.to_thread(run, id="b")
        await asyncio.to_thread(b.until_holding, ats("orders", 3, 4, 5))
        assert b.generations[-1].partitions == dict.fromkeys(ats("orders", 3, 4, 5), 10)


# Generations and tasks


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
    one.generations[-1].start(work)  # nothing is started


@in_a_loop
async def test_an_offset_outside_of_the_log_is_moved_from_a_task_and_told_in_the_loop(
    group: Consumergroup, orders: Partitions
) -> None:
    group.offsets.set(P0, 5_558)

    async def work(generation: aio.Generation) -> None:
        generation.mark(P0, generation.start_offset(P0, log_start=0, log_end=20) + 1)
        await generation.wait()

    async with Running(group, work=work, out_of_range="earliest") as one:
        await one.until(lambda: any(event.kind is EventKind.RESET for event in one.events))
    assert group.offsets.fetch(P0).offset == 1  # type: ignore[union-attr]


@in_a_loop
async def test_a_task_with_grace_comes_to_its_end_by_itself(group: Consumergroup, orders: Partitions) -> None:
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
    assert ended == ["by itself", f"generation {generation.number} of group 'billing' has ended"]


@in_a_loop
async def test_a_task_that_will_not_be_cancelled_is_left_behind(group: Consumergroup, orders: Partitions) -> None:
    free, told = asyncio.Event(), asyncio.Event()

    async def work(generation: aio.Generation) -> None:
        with suppress(asyncio.CancelledError):
            await for_ever()
        await free.wait()
        with pytest.raises(GenerationEndedError):
            await generation.commit({P5: 99})
        told.set()

    async with Running(group, id="a", release_timeout=0.2, work=work) as a:
        await a.until_holding(orders)
        async with Running(group, id="b") as b:
            await b.until_holding(ats("orders", 3, 4, 5))
            free.set()
            await told.wait()
            assert group.offsets.fetch(P5) is None


@in_a_loop
async def test_a_task_that_ends_ends_the_generation_and_the_others_of_it(
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
async def test_a_task_that_somebody_cancels_ends_the_generation_even_before_it_has_begun(
    group: Consumergroup, orders: Partitions
) -> None:
    async with aio.Member(group, ["orders"], **PATIENT) as member:
        generation = await member.next_generation(LONGEST)
        assert generation is not None
        generation.start(mark_ten_more)
        [task] = [task for task in asyncio.all_tasks() if task.get_name().startswith("zkgroups-work-billing")]
        task.cancel()
        assert await generation.wait(LONGEST)
        assert await member.next_generation(LONGEST)
    assert list(group.offsets) == []


@in_a_loop
async def test_what_a_task_raises_reaches_who_iterates_and_the_member_goes_on(
    group: Consumergroup, orders: Partitions
) -> None:
    async def fail(generation: aio.Generation) -> None:
        raise TimeoutError("orders/0 at 17")

    async with aio.Member(group, ["orders"]) as member:
        with pytest.raises(TimeoutError, match="orders/0 at 17"):
            await work_on_all(member, fail)
        with pytest.raises(TimeoutError, match="orders/0 at 17"):
            await start_each(member, fail)
        generation = await member.next_generation(LONGEST)
        assert generation is not None
        assert generation.partitions.keys() == orders


async def start_each(member: aio.Member, work: aio.Work) -> None:
    while generation := await member.next_generation(LONGEST):
        generation.start(work)


async def work_on_all(member: aio.Member, work: aio.Work) -> None:
    async for generation in member.generations():
        generation.start(work)
        await generation.wait()


@in_a_loop
async def test_what_a_task_raises_at_the_very_end_is_not_lost(group: Consumergroup, orders: Partitions) -> None:
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
async def test_the_body_of_the_loop_is_waited_for_like_a_task_and_is_not_cancelled(
    group: Consumergroup, orders: Partitions
) -> None:
    async with aio.Member(group, ["orders"], id="a", **PATIENT) as member:
        async for generation in member.generations():
            async with Running(group, id="b", reconcile_every=0.05) as other:
                assert await generation.wait(LONGEST)
                looks = other.member.stats.looks
                await other.until(lambda looks=looks: other.member.stats.looks >= looks + 3)
                assert not other.member.assignment
                await generation.commit({P5: 8})
            # `other` has left again without having had anything: it was held up by this body
            break
    found = group.offsets.fetch(P5)
    assert found is not None
    assert found.offset == 8


@in_a_loop
async def test_who_asks_late_to_be_told_of_the_end_is_told_at_once(group: Consumergroup, orders: Partitions) -> None:
    async with aio.Member(group, ["orders"]) as member:
        generation = await member.next_generation(LONGEST)
        assert generation is not None
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


@in_a_loop
async def test_a_cancelled_wait_loses_no_generation(group: Consumergroup, orders: Partitions) -> None:
    """It is cancelled at every moment there is: while it waits, when the generation stands ready, when it has it."""
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
        assert isinstance(found, aio.Generation)
        assert found.active
        assert await member.next_generation(0) is None
        assert member.stats.generations == 1


@in_a_loop
async def test_a_wait_that_is_given_up_in_time_finds_the_generation_later(
    group: Consumergroup, orders: Partitions
) -> None:
    async with aio.Member(group, ["orders"]) as member:
        for tries in itertools.count():
            with suppress(TimeoutError):
                generation = await asyncio.wait_for(member.next_generation(), 0.001 * (tries % 3))
                break
        assert generation is not None
        assert generation.active
        assert not await generation.wait(0)
        assert not await generation.wait(0.01)


@in_a_loop
async def test_several_who_wait_get_a_generation_each_and_all_hear_of_the_end(
    group: Consumergroup, orders: Partitions
) -> None:
    async with aio.Member(group, ["orders"]) as member:
        asking = {asyncio.create_task(member.next_generation()) for _ in range(3)}
        for _ in range(2):
            done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            [generation] = [task.result() for task in done]
            assert generation is not None
            generation.start(lambda _: asyncio.sleep(0))
    [last] = asking
    with suppress(MemberClosedError):  # else it has had the third
        assert (await last) is not None
    for _ in range(2):
        with pytest.raises(MemberClosedError):
            await member.next_generation()


@in_a_loop
async def test_stop_ends_the_iteration(group: Consumergroup, orders: Partitions) -> None:
    async with aio.Member(group, ["orders"]) as member:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, member.stop)
        async for generation in member.generations():
            generation.start(mark_ten_more)
            signal.raise_signal(signal.SIGUSR1)
            await generation.wait()
    assert not group.instances()


@in_a_loop
async def test_a_lost_session_ends_the_tasks_and_is_told_in_the_loop(
    registry: Registry, group: Consumergroup, orders: Partitions
) -> None:
    lost: list[Partitions] = []
    async with Running(group, work=mark_ten_more, on_lost=lost.append, **PATIENT) as one:
        await one.until_holding(orders)
        await asyncio.to_thread(expire_session, registry.client)
        await one.until(lambda: len(one.generations) == 2)
        await one.until_holding(orders)
    assert lost == [orders]
    assert not one.generations[0].active


# The loop


@in_a_loop
async def test_callbacks_run_in_the_loop_and_nobody_can_claim_before_they_have_ended(
    group: Consumergroup, orders: Partitions
) -> None:
    moving = ats("orders", 3, 4, 5)
    called: list[tuple[str, Partitions]] = []
    threads: set[threading.Thread] = set()
    gate, at_gate = asyncio.Event(), asyncio.Event()

    async def assigned(partitions: Partitions) -> None:
        threads.add(threading.current_thread())
        await asyncio.sleep(0)
        called.append(("a has", partitions))

    async def revoked(partitions: Partitions) -> None:
        threads.add(threading.current_thread())
        at_gate.set()
        await gate.wait()
        called.append(("a gives", partitions))

    def assigned_to_b(partitions: Partitions) -> None:
        threads.add(threading.current_thread())
        called.append(("b has", partitions))

    async with Running(group, id="a", on_assigned=assigned, on_revoked=revoked) as a:
        await a.until_holding(orders)
        async with Running(group, id="b", on_assigned=assigned_to_b) as b:
            await at_gate.wait()
            await b.until(lambda: b.told(EventKind.WAITING))
            owners = await asyncio.to_thread(list, group.owners())
            assert {owner.id for owner in owners if isinstance(owner, Owner)} == {"a-0"}
            assert len(owners) == len(orders)
            gate.set()
            await b.until_holding(moving)
            assert called == [("a has", orders), ("a gives", moving), ("b has", moving)]
    assert threads == {threading.current_thread()}


@in_a_loop
async def test_what_is_marked_until_revoked_has_ended_is_committed(group: Consumergroup, orders: Partitions) -> None:
    async def revoked(partitions: Partitions) -> None:
        one.generations[-1].mark(P0, 7)
        await one.generations[-1].commit({P1: 8})

    async with Running(group, on_revoked=revoked) as one:
        await one.until_holding(orders)
    assert {offset.at: offset.offset for offset in group.offsets} == {P0: 7, P1: 8}  # type: ignore[union-attr]


@in_a_loop
async def test_a_callback_that_fails_is_logged_and_stops_nothing(
    group: Consumergroup, orders: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(partitions: Partitions) -> None:
        raise ZeroDivisionError

    async with Running(group, on_assigned=fail) as one:
        await one.until_holding(orders)
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "of group 'billing' failed, called with frozenset" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


@in_a_loop
async def test_a_callback_that_never_ends_is_cancelled_and_stops_nothing(
    group: Consumergroup, orders: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = asyncio.Event()

    async def hang(partitions: Partitions) -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with Running(group, on_assigned=hang, release_timeout=0.1, rebalance_timeout=0.2) as one:
        await cancelled.wait()
        await one.until_holding(orders)
    assert "the callback did not end within 0.2 s and was cancelled" in caplog.text


@in_a_loop
async def test_a_callback_may_commit_whatever_it_is_called_for(group: Consumergroup, orders: Partitions) -> None:
    """Also where it is told of a commit: the next must not wait for the one that is told of."""
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
        generation.mark(P0, 5)  # the member's own thread tells of this one
        await enough.wait()
        enough.clear()
        del told[:]
        await generation.commit({P5: 6})
        await enough.wait()


@in_a_loop
async def test_the_loop_goes_on_while_the_server_does_not_answer() -> None:
    with ZooKeeperServer() as server:
        registry = await asyncio.to_thread(Registry.connect, server.address)
        plant_topic(registry.client, "orders", 6)
        async with aio.Member(registry.group("billing"), ["orders"]) as member:
            generation = await member.next_generation(LONGEST)
            assert generation is not None
            server.suspend()
            try:
                commit = asyncio.create_task(generation.commit({P0: 5}))
                asking = asyncio.create_task(member.next_generation())
                for _ in range(1000):
                    await asyncio.sleep(0)
                assert not commit.done()
                assert not asking.done()
                commit.cancel()
                for _ in range(1000):
                    await asyncio.sleep(0)
                assert not commit.done()  # it will say what has become of it
            finally:
                server.resume()
            with pytest.raises(asyncio.CancelledError):
                await commit
            asking.cancel()
            found = await asyncio.to_thread(registry.group("billing").offsets.fetch, P0)
            assert found is not None
            assert found.offset == 5
        await asyncio.to_thread(registry.close)


@in_a_loop
async def test_a_commit_does_not_wait_for_the_threads_that_are_busy_with_other_things(
    group: Consumergroup, orders: Partitions
) -> None:
    free = threading.Event()
    async with Running(group) as one:
        await one.until_holding(orders)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.create_task(asyncio.to_thread(free.wait, LONGEST))
        await one.generations[-1].commit({P0: 5})
        free.set()
        assert await busy


@in_a_loop
async def test_the_loop_goes_on_while_a_member_waits_for_another(run: Run, group: Consumergroup) -> None:
    """And while it waits to leave."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0)
            beats += 1

    plant_topic(group._context.session.client, "orders", 6)
    free = threading.Event()
    a = await asyncio.to_thread(run, id="a", work=lambda _: free.wait(LONGEST), **PATIENT)
    await asyncio.to_thread(a.until_holding, ats("orders", *range(6)))
    heart = asyncio.create_task(beat())
    async with Running(group, id="b") as b:
        await b.until(lambda: b.told(EventKind.WAITING))
        before = beats
        while beats < before + 1000:
            await asyncio.sleep(0)
        assert not b.member.assignment
        free.set()
        await b.until_holding(ats("orders", 3, 4, 5))
    heart.cancel()


# The end


@in_a_loop
async def test_an_exception_ends_everything_in_order(group: Consumergroup, orders: Partitions) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with aio.Member(group, ["orders"], **PATIENT) as member:
            async for generation in member.generations():
                generation.start(mark_ten_more)
                await asyncio.sleep(0)
                raise ZeroDivisionError
    assert not group.instances()
    assert not list(group.owners())
    assert {offset.offset for offset in group.offsets} == {10}  # type: ignore[union-attr]


@in_a_loop
async def test_cancelling_whoever_runs_it_ends_everything_in_order(group: Consumergroup, orders: Partitions) -> None:
    began = asyncio.Event()

    async def work(generation: aio.Generation) -> None:
        began.set()
        await mark_ten_more(generation)

    async def consume() -> None:
        async with aio.Member(group, ["orders"], **PATIENT) as member:
            await work_on_all(member, work)

    task = asyncio.create_task(consume())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not group.instances()
    assert {offset.offset for offset in group.offsets} == {10}  # type: ignore[union-attr]


def test_ctrl_c_ends_everything_in_order(group: Consumergroup, orders: Partitions) -> None:
    async def work(generation: aio.Generation) -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        await mark_ten_more(generation)

    async def main() -> None:
        async with aio.Member(group, ["orders"], **PATIENT) as member:
            await work_on_all(member, work)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert not group.instances()
    assert {offset.offset for offset in group.offsets} == {10}  # type: ignore[union-attr]


@pytest.mark.parametrize("who", ["a task", "the body", "a callback"])
def test_whoever_closes_it_from_inside_does_not_wait_for_itself(
    group: Consumergroup, orders: Partitions, who: str
) -> None:
    closed: list[str] = []

    async def close(_: object) -> None:
        await member.close()
        closed.append(who)

    async def main() -> None:
        nonlocal member
        on_assigned = close if who == "a callback" else None
        member = aio.Member(group, ["orders"], on_assigned=on_assigned, **PATIENT)
        async for generation in member.generations():
            generation.start(close if who == "a task" else mark_ten_more)
            if who == "the body":
                await close(None)
            await generation.wait()
        await member.close()

    member: aio.Member
    asyncio.run(main())
    assert closed == [who]
    assert not group.instances()


@in_a_loop
async def test_a_task_that_closes_the_member_in_its_grace_is_not_cancelled_any_more(
    group: Consumergroup, orders: Partitions
) -> None:
    grace, over, ended = 0.05, asyncio.Event(), asyncio.Event()

    async def close(generation: aio.Generation) -> None:
        await generation.wait()
        await member.close()
        asyncio.get_running_loop().call_later(grace, over.set)
        await over.wait()
        ended.set()

    async with aio.Member(group, ["orders"], **PATIENT) as member:
        generation = await member.next_generation(LONGEST)
        assert generation is not None
        generation.start(close, grace=grace)
        generation.start(lambda _: asyncio.sleep(0))
        await asyncio.wait_for(ended.wait(), LONGEST)


@in_a_loop
async def test_closing_in_the_midst_of_a_hand_over_ends_both(group: Consumergroup, orders: Partitions) -> None:
    gate, at_gate = asyncio.Event(), asyncio.Event()

    async def revoked(partitions: Partitions) -> None:
        at_gate.set()
        await gate.wait()

    async with Running(group, id="a", on_revoked=revoked, work=mark_ten_more, **PATIENT) as a:
        await a.until_holding(orders)
        async with Running(group, id="b", work=mark_ten_more) as b:
            await at_gate.wait()
            closing = asyncio.create_task(a.member.close())
            again = asyncio.create_task(a.member.close())
            await asyncio.sleep(0)
            closing.cancel()  # it goes on all the same
            gate.set()
            await again
            with pytest.raises(asyncio.CancelledError):
                await closing
            await b.until_holding(orders)
            assert dict(b.generations[-1].partitions)[P0] >= 10  # type: ignore[operator]
    await a.member.close()


@in_a_loop
async def test_closing_at_any_moment_of_joining_ends(group: Consumergroup, orders: Partitions) -> None:
    async with Running(group, id="a", work=mark_ten_more, **PATIENT):
        for steps in range(12):
            async with Running(group, id="b", work=mark_ten_more, **PATIENT) as b:
                with suppress(TimeoutError):
                    await asyncio.wait_for(for_ever(), 0.002 * steps)
            assert not b.member.assignment
    assert not group.instances()


@in_a_loop
async def test_a_member_that_does_not_leave_keeps_its_place(group: Consumergroup, orders: Partitions) -> None:
    member = await aio.Member(group, ["orders"], id="a").start()
    assert await member.next_generation(LONGEST)
    await member.close(leave=False)
    assert [instance.id for instance in group.instances()] == ["a"]
    assert {owner.at for owner in group.owners() if isinstance(owner, Owner)} == orders


@in_a_loop
async def test_it_keeps_its_place_also_if_it_is_closed_by_a_callback(group: Consumergroup, orders: Partitions) -> None:
    async def close(_: Partitions) -> None:
        await member.close(leave=False)

    member = aio.Member(group, ["orders"], id="a", on_assigned=close)
    async for generation in member.generations():
        await generation.wait()
    await member.close()
    assert {owner.at for owner in group.owners() if isinstance(owner, Owner)} == orders


@pytest.mark.parametrize("working", [True, False])
def test_a_loop_that_shuts_down_before_its_member_is_closed_lets_others_have_everything(
    group: Consumergroup, orders: Partitions, caplog: pytest.LogCaptureFixture, working: bool
) -> None:
    async def main() -> None:
        member = await aio.Member(group, ["orders"], on_revoked=lambda _: None, on_event=lambda _: None).start()
        generation = await member.next_generation(LONGEST)
        assert generation is not None
        if working:
            generation.start(mark_ten_more)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert eventually(lambda: not group.instances())
    assert not list(group.owners())
    assert_no_more_than_a_word(caplog)


def test_a_loop_that_shuts_down_in_the_midst_of_a_callback_waits_for_nobody(
    group: Consumergroup, orders: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[Partitions] = []

    async def main() -> None:
        began = asyncio.Event()

        async def hang(partitions: Partitions) -> None:
            called.append(partitions)
            began.set()
            await for_ever()

        await aio.Member(group, ["orders"], on_assigned=hang, on_revoked=hang, **PATIENT).start()
        await began.wait()

    asyncio.run(main())
    assert eventually(lambda: not group.instances())
    assert called == [orders]
    assert_no_more_than_a_word(caplog)


def test_a_loop_that_is_closed_without_a_word_lets_others_have_everything_when_that_is_noticed(
    run: Run, group: Consumergroup, orders: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    async def begin() -> aio.Member:
        member = await aio.Member(group, ["orders"], id="a", on_revoked=lambda _: None).start()
        assert await member.next_generation(LONGEST)
        return member

    loop = asyncio.new_event_loop()
    abandoned = loop.run_until_complete(begin())
    loop.close()
    assert abandoned.assignment == orders
    run(id="b").until_holding(orders)
    assert_no_more_than_a_word(caplog)


def assert_no_more_than_a_word(caplog: pytest.LogCaptureFixture) -> None:
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert all(record.exc_info is None for record in records), caplog.text
    ended = "has ended; the member leaves the group"
    assert [record.getMessage()[-len(ended) :] for record in records] in ([], [ended])


# The example


def test_the_example_does_what_it_says(registry: Registry, zookeeper_hosts: str, group: Consumergroup) -> None:
    plant_topic(registry.client, "orders", 2)
    processed: list[str] = []

    class Enough(Exception):
        pass

    async def consume(offsets: Mapping[TopicPartition, int]) -> AsyncIterator[tuple[TopicPartition, str]]:
        for number in itertools.count():
            for at, offset in list(offsets.items()):
                yield at, f"{at} at {offset}, in round {number}"

    async def process(message: str) -> None:
        await asyncio.sleep(0)
        processed.append(message)
        if len(processed) == 7:
            raise Enough

    example = re.search(r"\n\n(    import asyncio\n.*?asyncio\.run\(main\(\)\)\n)", aio.__doc__ or "", re.DOTALL)
    assert example is not None
    code = textwrap.dedent(example[1]).replace("zk1:2181,zk2:2181/kafka", zookeeper_hosts)
    with pytest.raises(Enough):
        exec(compile(code, "the example", "exec"), {"consume": consume, "process": process})
    assert processed[-1] == "orders/0 at 3, in round 3"
    assert {offset.at: offset.offset for offset in group.offsets} == {P0: 3, P1: 3}  # type: ignore[union-attr]
    assert not group.instances()
