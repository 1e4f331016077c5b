"""Partitions that other clients do not release: members and observers report the owner and the time of its claim.

No test waits for `reconcile_every`, which is an hour: releases are noticed by watch events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from zkgroups import (
    BlockedPartition,
    Consumergroup,
    EventKind,
    GroupState,
    InstanceState,
    MalformedNode,
    Member,
    MemberEvent,
    Obstacle,
    Owner,
    Registry,
    TopicPartition,
)
from zkgroups.core.times import to_ms, utc
from zkgroups.testing import TcpProxy

from ..releases import needs_multiread
from .conftest import Run, Running, ats, plant_topic

pytestmark = pytest.mark.zookeeper

P0, P2, P4, P5 = (TopicPartition("orders", number) for number in (0, 2, 4, 5))
Partitions = frozenset[TopicPartition]
OPTIONS: dict[str, Any] = {
    "id": "a",
    "reconcile_every": 3600.0,
    "release_timeout": 0.1,
    "rebalance_timeout": 1.0,
}


@pytest.fixture
def raw(connect: Callable[..., Registry]) -> Any:
    """A plain kazoo client."""
    return connect().client


def sit(raw: Any, at: TopicPartition, data: bytes = b"somebody-0", group: str = "billing") -> None:
    """Own a partition without a registration."""
    raw.create(f"/consumers/{group}/owners/{at}", data, ephemeral=True, makepath=True)


def leave(raw: Any, at: TopicPartition, group: str = "billing") -> None:
    raw.delete(f"/consumers/{group}/owners/{at}")


def told(running: Running, kind: EventKind) -> list[MemberEvent]:
    return [event for event in running.events if event.kind is kind]


def until_working_on(running: Running, partitions: Partitions) -> None:
    """Even if that is not yet its whole share."""

    def works() -> bool:
        return bool(running.generations) and frozenset(running.generations[-1].partitions) == partitions

    running.until(works, f"a generation of {len(partitions)}")


def test_a_foreign_owner_is_reported_once_after_the_rebalance_timeout_and_other_partitions_are_worked_on(
    run: Run, group: Consumergroup, orders: Partitions, raw: Any
) -> None:
    sit(raw, P2)
    holder = group.owner(P2)
    assert isinstance(holder, Owner)
    who = f"orders/2: 'somebody-0' of session {holder.session:#x} since {utc(to_ms(holder.claimed_at))}"
    a = run(**OPTIONS)
    until_working_on(a, orders - {P2})
    [waiting] = told(a, EventKind.WAITING)
    assert (waiting.at, waiting.detail) == ({P2}, who)
    a.until(lambda: told(a, EventKind.STUCK), "the word")
    [stuck] = told(a, EventKind.STUCK)
    assert (stuck.at, stuck.detail) == ({P2}, who)
    kinds = [event.kind for event in a.events]
    assert kinds.index(EventKind.WAITING) < kinds.index(EventKind.ASSIGNED) < kinds.index(EventKind.STUCK)
    assert a.member.state is InstanceState.AWAITING_SYNC
    assert a.generations[-1].active
    assert a.member.assignment == orders - {P2}


def test_the_description_of_a_group_names_the_owner_that_blocks_a_partition_and_the_time(
    run: Run, group: Consumergroup, orders: Partitions, raw: Any
) -> None:
    sit(raw, P2)
    holder = group.owner(P2)
    assert isinstance(holder, Owner)
    until_working_on(run(**OPTIONS), orders - {P2})
    description = group.describe()
    assert description.blocked == (BlockedPartition(P2, holder, Obstacle.NOT_REGISTERED),)
    assert description.blocked[0].since == holder.claimed_at
    assert description.state is GroupState.COMPLETING_REBALANCE
    leave(raw, P2)
    run(**{**OPTIONS, "id": "b"}).until_holding(ats("orders", 3, 4, 5))
    assert group.describe().blocked == ()


def test_a_released_partition_is_claimed_once_after_its_watch_event(
    run: Run, group: Consumergroup, orders: Partitions, raw: Any
) -> None:
    sit(raw, P2)
    a = run(**OPTIONS)
    a.until(lambda: told(a, EventKind.STUCK), "the word")
    before = a.member.stats
    leave(raw, P2)
    a.until_holding(orders)
    after = a.member.stats
    assert (after.gained, after.rebalances) == (before.gained + 1, before.rebalances + 1)
    assert (after.generations, after.interruptions) == (before.generations + 1, before.interruptions + 1)
    assert (after.conflicts, after.lost) == (0, 0)
    assert len(told(a, EventKind.STUCK)) == 1
    assert group.describe().blocked == ()


def test_waiting_for_a_foreign_owner_sends_no_requests(
    run: Run, orders: Partitions, raw: Any, zookeeper: Any, zookeeper_hosts: str, connect: Callable[..., Registry]
) -> None:
    sit(raw, P2)
    with TcpProxy(zookeeper.address) as proxy:
        hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        registry = connect(hosts, session_timeout=300.0)  # it is proved seldom
        with Running(registry.group("billing"), **OPTIONS) as a:
            until_working_on(a, orders - {P2})
            looks, requests = a.member.stats.looks, proxy.requests
            a.until(lambda: told(a, EventKind.STUCK), "the word")
            assert a.member.stats.looks == looks
            assert proxy.requests == requests
            leave(raw, P2)
            a.until_holding(orders)


def test_another_foreign_owner_is_waited_for_and_reported_again(run: Run, orders: Partitions, raw: Any) -> None:
    sit(raw, P2)
    a = run(**OPTIONS)
    a.until(lambda: len(told(a, EventKind.STUCK)) == 1, "the word")
    transaction = raw.transaction()  # deleted and recreated before any member can claim it
    transaction.delete(f"/consumers/billing/owners/{P2}")
    transaction.create(f"/consumers/billing/owners/{P2}", b"another-0", ephemeral=True)
    transaction.commit()
    a.until(lambda: len(told(a, EventKind.STUCK)) == 2, "the word about the other")
    assert told(a, EventKind.STUCK)[1].detail.startswith("orders/2: 'another-0' of session ")
    leave(raw, P2)
    a.until_holding(orders)


def test_the_time_waited_for_one_partition_does_not_count_for_another(run: Run, orders: Partitions, raw: Any) -> None:
    sit(raw, P2)
    a = run(**OPTIONS)
    a.until(lambda: told(a, EventKind.STUCK), "the word")
    plant_topic(raw, "orders", 7)
    sit(raw, TopicPartition("orders", 7))
    plant_topic(raw, "orders", 8)
    a.until(lambda: len(told(a, EventKind.STUCK)) == 2, "the word about the other")
    assert [event.at for event in told(a, EventKind.STUCK)] == [{P2}, ats("orders", 7)]


def test_several_blocked_partitions_are_reported_together_and_each_is_claimed_once_released(
    run: Run, orders: Partitions, raw: Any
) -> None:
    for at in (P0, P4, P5):
        sit(raw, at)
    a = run(**OPTIONS)
    a.until(lambda: told(a, EventKind.STUCK), "the word")
    [stuck] = told(a, EventKind.STUCK)
    assert stuck.at == {P0, P4, P5}
    leave(raw, P0)
    until_working_on(a, orders - {P4, P5})
    leave(raw, P4)
    until_working_on(a, orders - {P5})
    leave(raw, P5)
    a.until_holding(orders)


def test_a_member_waits_for_a_live_instance_without_a_subscription_and_names_it(
    run: Run, group: Consumergroup, orders: Partitions, connect: Callable[..., Registry]
) -> None:
    with connect().group("billing").instance("cron") as cron:
        cron.register()
        cron.claim(P2)
        a = run(**OPTIONS)
        until_working_on(a, orders - {P2})
        a.until(lambda: told(a, EventKind.STUCK), "the word")
        assert told(a, EventKind.STUCK)[0].detail.startswith("orders/2: 'cron' of session ")
        [blocked] = group.describe().blocked
        assert (blocked.at, blocked.obstacle) == (P2, Obstacle.NOT_SUBSCRIBED)
    a.until_holding(orders)


def test_partitions_that_a_foreign_instance_releases_one_by_one_are_claimed_one_by_one(
    run: Run, orders: Partitions, connect: Callable[..., Registry]
) -> None:
    with connect().group("billing").instance("cron") as cron:
        cron.register(["payments"])
        cron.claim_many([P2, P4, P5])
        a = run(**OPTIONS)
        until_working_on(a, orders - {P2, P4, P5})
        cron.release(P2)
        until_working_on(a, orders - {P4, P5})
        cron.release(P5)
        until_working_on(a, orders - {P4})
    a.until_holding(orders)


@needs_multiread
def test_waiting_for_many_partitions_of_another_member_takes_few_requests(
    run: Run, connect: Callable[..., Registry], registry: Registry, zookeeper_hosts: str
) -> None:
    plant_topic(registry.client, "orders", 200)
    everything = ats("orders", *range(200))
    stays = threading.Event()
    patient: dict[str, Any] = {"release_timeout": 60.0, "rebalance_timeout": 100.0}
    a = run(id="a", reconcile_every=3600.0, work=lambda _: stays.wait(), **patient).until_holding(everything)
    address, _, chroot = zookeeper_hosts.partition("/")
    with TcpProxy(address) as proxy:
        far = connect(f"{proxy.address}/{chroot}", session_timeout=300.0)  # it is proved seldom
        b = run(id="b", reconcile_every=3600.0, on=far.group("billing"))
        b.until(lambda: told(b, EventKind.WAITING), "the word that it waits")
        stays.set()
        b.until_holding(ats("orders", *range(100, 200)))
        assert b.member.stats.waits == 100
        assert b.member.stats.conflicts == 0
        assert proxy.requests < 50
        a.until_holding(ats("orders", *range(100)))
        b.close()


@pytest.mark.parametrize("living", [True, False])
def test_a_member_waits_for_an_unreadable_owner_node_like_for_any_other(
    run: Run, group: Consumergroup, orders: Partitions, raw: Any, living: bool
) -> None:
    raw.create(f"/consumers/billing/owners/{P2}", b"a/b" if living else b"gone-0", ephemeral=living, makepath=True)
    stat = raw.exists(f"/consumers/billing/owners/{P2}")
    a = run(**OPTIONS)
    until_working_on(a, orders - {P2})
    a.until(lambda: told(a, EventKind.STUCK), "the word")
    [stuck] = told(a, EventKind.STUCK)
    path = f"/consumers/billing/owners/{P2} of session {stat.ephemeralOwner:#x} since {utc(stat.ctime)}"
    assert stuck.detail.startswith(f"orders/2: a malformed node, {path} (")
    [blocked] = group.describe().blocked
    assert isinstance(blocked.holder, MalformedNode)
    assert (blocked.at, blocked.obstacle, to_ms(blocked.since)) == (P2, Obstacle.OWNER_UNREADABLE, stat.ctime)
    leave(raw, P2)
    a.until_holding(orders)


def test_a_partition_released_while_disconnected_is_claimed_after_the_reconnect(
    orders: Partitions, raw: Any, zookeeper: Any, zookeeper_hosts: str, connect: Callable[..., Registry]
) -> None:
    sit(raw, P2)
    with TcpProxy(zookeeper.address) as proxy:
        registry = connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}")
        with Running(registry.group("billing"), **OPTIONS) as a:
            until_working_on(a, orders - {P2})
            proxy.refuse()
            proxy.cut()
            leave(raw, P2)
            proxy.accept()
            a.until_holding(orders)


def test_a_member_that_still_waits_after_a_reconnect_notices_a_release(
    orders: Partitions, raw: Any, zookeeper: Any, zookeeper_hosts: str, connect: Callable[..., Registry]
) -> None:
    sit(raw, P2)
    with TcpProxy(zookeeper.address) as proxy:
        registry = connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}")
        with Running(registry.group("billing"), **OPTIONS) as a:
            until_working_on(a, orders - {P2})
            looks = a.member.stats.looks
            proxy.cut()
            a.until(lambda: a.member.stats.looks > looks, "a look over the next connection")
            leave(raw, P2)
            a.until_holding(orders)


def test_a_waiting_member_can_be_closed_at_once(run: Run, orders: Partitions, raw: Any) -> None:
    sit(raw, P2)
    a = run(**{**OPTIONS, "rebalance_timeout": 3600.0})
    until_working_on(a, orders - {P2})
    closed = threading.Thread(target=a.close)
    closed.start()
    closed.join(30)
    assert not closed.is_alive()
    assert told(a, EventKind.STUCK) == []


def cannot_plan(_members: Any) -> Any:
    raise LookupError("no plan")


def test_a_missing_plan_is_reported_and_waiting_members_are_not_stable(
    group: Consumergroup, orders: frozenset[TopicPartition]
) -> None:
    options: dict[str, Any] = {"assignors": [cannot_plan], "release_timeout": 0.1, "rebalance_timeout": 0.3}
    with (
        Member(group, ["orders"], id="a", join_backoff=0.1, **options),
        Running(group, id="b", reconcile_every=0.1, **options) as b,
    ):
        b.expect(LookupError)
        b.until(lambda: any(event.kind is EventKind.STUCK for event in b.events))
        assert b.member.state is InstanceState.JOINING
    # Each member tries to plan in turn.
    assert {event.detail for event in told(b, EventKind.STUCK)} <= {f"{id!r} has not written a plan" for id in "ab"}
