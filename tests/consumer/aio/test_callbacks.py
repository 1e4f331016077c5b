"""Callbacks run in the event loop, and never hold it up."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading

import pytest

from tests.simulation.loop import in_a_loop, run_in_a_loop
from tests.simulation.world import World
from zkgroups import Consumergroup, EventKind, MemberEvent, Owner, TopicPartition, aio

from ..conftest import LONGEST, Partitions, ats, committed
from .conftest import PATIENT, Running, for_ever

P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))


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
