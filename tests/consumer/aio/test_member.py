"""Members for asyncio: options, sharing, lost sessions, and the example."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import zkgroups
from tests.simulation.loop import in_a_loop
from tests.simulation.world import World
from zkgroups import Consumergroup, Registry, StartAt, TopicPartition, aio
from zkgroups.exceptions import InvalidOptionError, MemberClosedError

from ..conftest import Partitions, ats
from .conftest import PATIENT, Running, mark_ten_more

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
async def test_a_lost_session_ends_the_tasks_and_is_reported_in_the_loop(
    world: World, registry: Registry, group: Consumergroup, orders: Partitions
) -> None:
    lost: list[Partitions] = []
    async with Running(group, work=mark_ten_more, on_lost=lost.append, **PATIENT) as one:
        await one.until_holding(orders)
        await asyncio.to_thread(world.expire, registry)
        await one.until(lambda: len(one.generations) == 2)
        await one.until_holding(orders)
    assert lost == [orders]
    assert not one.generations[0].active
