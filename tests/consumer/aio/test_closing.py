"""Members for asyncio are closed: by exceptions, by cancellation, by Ctrl-C, and with their loop."""

from __future__ import annotations

import asyncio
import logging
import signal

import pytest

from tests.simulation.loop import Loop, Network, in_a_loop, run_in_a_loop
from tests.simulation.world import World
from tests.waiting import eventually
from zkgroups import Consumergroup, Owner, TopicPartition, aio

from ..conftest import LONGEST, Partitions, Run, committed
from .conftest import PATIENT, Running, for_ever, mark_ten_more

P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError, KeyboardInterrupt])
def test_an_exception_a_cancellation_and_ctrl_c_close_the_member_after_a_commit(
    world: World, group: Consumergroup, orders: Partitions, error: type[BaseException]
) -> None:
    async def main() -> None:
        async with aio.Member(group, ["orders"], **PATIENT) as member:
            async for generation in member.generations():
                generation.start(mark_ten_more)
                await asyncio.sleep(0)
                if error is ZeroDivisionError:
                    raise ZeroDivisionError
                if error is KeyboardInterrupt:
                    signal.raise_signal(signal.SIGINT)
                else:
                    asyncio.current_task().cancel()
                await generation.wait()

    with pytest.raises(error):
        run_in_a_loop(world, main())
    assert (group.instances(), list(group.owners())) == ([], [])
    assert set(committed(group).values()) == {10}


@pytest.mark.parametrize("who", ["a task", "the body", "a callback"])
def test_a_task_a_callback_and_the_body_may_close_their_member(
    world: World, group: Consumergroup, orders: Partitions, who: str
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
    run_in_a_loop(world, main())
    assert closed == [who]
    assert not group.instances()


@in_a_loop
async def test_a_task_that_closes_the_member_during_its_grace_is_not_cancelled(
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
async def test_closing_during_a_handover_ends_both(group: Consumergroup, orders: Partitions) -> None:
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
            closing.cancel()  # the close continues
            gate.set()
            await again
            with pytest.raises(asyncio.CancelledError):
                await closing
            await b.until_holding(orders)
            assert dict(b.generations[-1].partitions)[P0] >= 10  # type: ignore[operator]
    await a.member.close()


@in_a_loop
async def test_closing_without_leaving_keeps_registration_and_claims_for_asyncio(
    group: Consumergroup, orders: Partitions
) -> None:
    member = await aio.Member(group, ["orders"], id="a").start()
    assert await member.next_generation(LONGEST)
    await member.close(leave=False)
    assert [instance.id for instance in group.instances()] == ["a"]
    assert {owner.at for owner in group.owners() if isinstance(owner, Owner)} == orders


@pytest.mark.parametrize("working", [True, False])
def test_a_member_leaves_when_its_loop_shuts_down(
    world: World, group: Consumergroup, orders: Partitions, caplog: pytest.LogCaptureFixture, working: bool
) -> None:
    async def main() -> None:
        member = await aio.Member(group, ["orders"], on_revoked=lambda _: None, on_event=lambda _: None).start()
        generation = await member.next_generation(LONGEST)
        assert generation is not None
        if working:
            generation.start(mark_ten_more)
        await asyncio.sleep(0)

    run_in_a_loop(world, main())
    assert eventually(lambda: not group.instances())
    assert not list(group.owners())
    assert_no_more_than_a_word(caplog)


def test_a_loop_that_shuts_down_during_a_callback_does_not_wait_for_it(
    world: World, group: Consumergroup, orders: Partitions, caplog: pytest.LogCaptureFixture
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

    run_in_a_loop(world, main())
    assert eventually(lambda: not group.instances())
    assert called == [orders]
    assert_no_more_than_a_word(caplog)


def test_a_member_leaves_once_it_detects_that_its_loop_was_closed(
    world: World, run: Run, group: Consumergroup, orders: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    async def begin() -> aio.Member:
        member = await aio.Member(group, ["orders"], id="a", on_revoked=lambda _: None).start()
        assert await member.next_generation(LONGEST)
        return member

    loop = Loop(Network(world.machine))
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
