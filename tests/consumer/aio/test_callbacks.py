"""Callbacks run in the event loop, and never hold it up."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.simulation.loop import in_a_loop
from zkgroups import Consumergroup, EventKind, MemberEvent, Owner, TopicPartition, aio

from ..conftest import LONGEST, Partitions, Run, ats, plant_topic
from .conftest import PATIENT, Running, for_ever

P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))


@in_a_loop
async def test_callbacks_run_in_the_loop_and_partitions_are_released_after_on_revoked(
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
async def test_offsets_marked_during_on_revoked_are_committed(group: Consumergroup, orders: Partitions) -> None:
    async def revoked(partitions: Partitions) -> None:
        one.generations[-1].mark(P0, 7)
        await one.generations[-1].commit({P1: 8})

    async with Running(group, on_revoked=revoked) as one:
        await one.until_holding(orders)
    assert {offset.at: offset.offset for offset in group.offsets} == {P0: 7, P1: 8}  # type: ignore[union-attr]


@in_a_loop
async def test_a_failing_callback_is_logged_and_the_member_continues(
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
async def test_a_callback_that_never_ends_is_cancelled_and_the_member_continues(
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


@in_a_loop
async def test_a_commit_does_not_wait_for_a_busy_default_executor(group: Consumergroup, orders: Partitions) -> None:
    free = threading.Event()
    async with Running(group) as one:
        await one.until_holding(orders)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.create_task(asyncio.to_thread(free.wait, LONGEST))
        await one.generations[-1].commit({P0: 5})
        free.set()
        assert await busy


@in_a_loop
async def test_the_loop_continues_while_a_member_waits_for_another(run: Run, group: Consumergroup) -> None:
    """And while the member waits to leave."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
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
            await asyncio.sleep(0.01)
        assert not b.member.assignment
        free.set()
        await b.until_holding(ats("orders", 3, 4, 5))
    heart.cancel()
