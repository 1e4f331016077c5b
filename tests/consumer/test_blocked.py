"""Partitions that other clients do not release: members and observers report the owner and the time of its claim.

No test waits for `reconcile_every`, which is an hour: releases are noticed by watch events.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.simulation.world import World
from zkgroups import (
    BlockedPartition,
    Consumergroup,
    EventKind,
    GroupState,
    InstanceState,
    MalformedNode,
    Member,
    Obstacle,
    Owner,
    Registry,
    TopicPartition,
)
from zkgroups.core.times import to_ms, utc

from .conftest import Connect, Partitions, Run, Running, ats, plant_topic

P0, P2, P4, P5 = (TopicPartition("orders", number) for number in (0, 2, 4, 5))
OPTIONS: dict[str, Any] = {"id": "a", "reconcile_every": 3600.0, "release_timeout": 0.1, "rebalance_timeout": 10.0}


@pytest.fixture
def raw(connect: Connect) -> Any:
    """A plain kazoo client."""
    return connect("somebody", session_timeout=300.0).client


def sit(raw: Any, at: TopicPartition, data: bytes = b"somebody-0", *, ephemeral: bool = True) -> None:
    """Own a partition without a registration."""
    raw.create(f"/consumers/billing/owners/{at}", data, ephemeral=ephemeral, makepath=True)


def leave(raw: Any, at: TopicPartition) -> None:
    raw.delete(f"/consumers/billing/owners/{at}")


def until_working_on(running: Running, partitions: Partitions) -> None:
    """Even if that is not yet its whole share."""
    running.until(lambda: running.generations and frozenset(running.generation.partitions) == partitions, "its work")


def test_a_foreign_owner_is_reported_once_after_the_rebalance_timeout_and_its_partition_claimed_once_released(
    world: World, run: Run, group: Consumergroup, orders: Partitions, raw: Any
) -> None:
    sit(raw, P2)
    holder = group.owner(P2)
    assert isinstance(holder, Owner)
    who = f"orders/2: 'somebody-0' of session {holder.session:#x} since {utc(to_ms(holder.claimed_at))}"
    a = run(**OPTIONS)
    until_working_on(a, orders - {P2})
    [waiting] = a.told(EventKind.WAITING)
    assert (waiting.at, waiting.detail) == ({P2}, who)
    blocked = group.describe()
    assert blocked.blocked == (BlockedPartition(P2, holder, Obstacle.NOT_REGISTERED),)
    assert (blocked.blocked[0].since, blocked.state) == (holder.claimed_at, GroupState.COMPLETING_REBALANCE)

    stuck = a.until_told(EventKind.STUCK)
    assert (stuck.at, stuck.detail) == ({P2}, who)
    kinds = [event.kind for event in a.events]
    assert kinds.index(EventKind.WAITING) < kinds.index(EventKind.ASSIGNED) < kinds.index(EventKind.STUCK)
    assert (a.member.state, a.member.assignment) == (InstanceState.AWAITING_SYNC, orders - {P2})
    assert a.generation.active

    before, zxid = a.member.stats, [node.zxid for node in world.server.nodes.values()]
    time.sleep(100)
    assert a.member.stats.looks == before.looks
    assert [node.zxid for node in world.server.nodes.values()] == zxid
    leave(raw, P2)
    a.until_holding(orders)
    after = a.member.stats
    assert (after.gained, after.rebalances) == (before.gained + 1, before.rebalances + 1)
    assert (after.generations, after.interruptions) == (before.generations + 1, before.interruptions + 1)
    assert (after.conflicts, after.lost, len(a.told(EventKind.STUCK))) == (0, 0, 1)
    assert group.describe().blocked == ()


@pytest.mark.parametrize("subscribes", [False, True])
def test_a_member_waits_for_a_live_instance_that_has_no_part_in_the_plan_and_names_it(
    run: Run, group: Consumergroup, orders: Partitions, connect: Connect, subscribes: bool
) -> None:
    with connect().group("billing").instance("cron") as cron:
        cron.register(["payments"] if subscribes else ())
        cron.claim_many([P2, P4])
        a = run(**OPTIONS)
        until_working_on(a, orders - {P2, P4})
        assert a.until_told(EventKind.STUCK).detail.startswith("orders/2: 'cron' of session ")
        assert {(each.at, each.obstacle) for each in group.describe().blocked} == {
            (at, Obstacle.NOT_SUBSCRIBED) for at in (P2, P4)
        }
        cron.release(P2)
        until_working_on(a, orders - {P4})
    a.until_holding(orders)


@pytest.mark.parametrize("living", [True, False])
def test_a_member_waits_for_an_unreadable_owner_node_like_for_any_other(
    run: Run, group: Consumergroup, orders: Partitions, raw: Any, living: bool
) -> None:
    sit(raw, P2, b"a/b" if living else b"gone-0", ephemeral=living)
    stat = raw.exists(f"/consumers/billing/owners/{P2}")
    a = run(**OPTIONS)
    until_working_on(a, orders - {P2})
    path = f"/consumers/billing/owners/{P2} of session {stat.ephemeralOwner:#x} since {utc(stat.ctime)}"
    assert a.until_told(EventKind.STUCK).detail.startswith(f"orders/2: a malformed node, {path} (")
    [blocked] = group.describe().blocked
    assert isinstance(blocked.holder, MalformedNode)
    assert (blocked.at, blocked.obstacle, to_ms(blocked.since)) == (P2, Obstacle.OWNER_UNREADABLE, stat.ctime)
    leave(raw, P2)
    a.until_holding(orders)


def test_waiting_for_many_partitions_of_another_member_takes_few_requests(
    world: World, run: Run, connect: Connect, client: Any
) -> None:
    plant_topic(client, "orders", 200)
    patient: dict[str, Any] = {"release_timeout": 60.0, "rebalance_timeout": 100.0}
    stay = 30.0

    def work(generation: Any) -> None:
        generation.wait()
        time.sleep(stay)

    a = run(id="a", reconcile_every=3600.0, work=work, **patient).until_holding(ats("orders", *range(200)))
    b = run(id="b", reconcile_every=3600.0, on=connect("far", session_timeout=300.0))
    b.until_told(EventKind.WAITING)
    requests = world.requests
    time.sleep(stay / 2)
    assert world.requests - requests < 10
    b.until_holding(ats("orders", *range(100, 200)))
    assert (b.member.stats.waits, b.member.stats.conflicts) == (100, 0)
    assert world.requests - requests < 150
    stay = 0.0
    a.until_holding(ats("orders", *range(100)))


def cannot_plan(_members: Any) -> Any:
    raise LookupError("no plan")


def test_a_missing_plan_is_reported_and_waiting_members_are_not_stable(
    group: Consumergroup, orders: Partitions
) -> None:
    options: dict[str, Any] = {"assignors": [cannot_plan], "release_timeout": 0.1, "rebalance_timeout": 30.0}
    with Member(group, ["orders"], id="a", **options), Running(group, id="b", reconcile_every=1.0, **options) as b:
        b.expect(LookupError)
        b.until_told(EventKind.STUCK)
        assert b.member.state is InstanceState.JOINING
    # Each member tries to plan in turn.
    assert {event.detail for event in b.told(EventKind.STUCK)} <= {f"{id!r} has not written a plan" for id in "ab"}


# Owners whose ids are odd


@pytest.mark.parametrize("together", [True, False], ids=["one session", "two sessions"])
def test_an_id_that_looks_like_a_stream_of_another_id_is_not_confused_with_it(
    run: Run, connect: Connect, registry: Registry, orders: Partitions, together: bool
) -> None:
    a = run(id="a").until_holding(orders)
    b = run(id="a-0", on=registry if together else connect())
    a.until_holding(ats("orders", 0, 1, 2))
    b.until_holding(ats("orders", 3, 4, 5))
    b.close()
    a.until_holding(orders)
