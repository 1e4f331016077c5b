"""Fixed bugs of members: each test once failed."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.protocol.states import Callback
from kazoo.security import make_acl

from zkgroups import CommittedOffset, Consumergroup, EventKind, Generation, Member, Registry, TopicPartition
from zkgroups.consumer.membership import Membership
from zkgroups.core.rebalance.members import Assignment, Members, Stream
from zkgroups.core.znodes.states import InstanceState
from zkgroups.exceptions import (
    AlreadyRegisteredError,
    InvalidOptionError,
    NoPermissionError,
    NotConnectedError,
    OffsetWouldGoBackError,
)
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.member_instance import MemberInstance
from zkgroups.zookeeper.session.registry_context import context_of

from .conftest import LONGEST, Run, Running, ats, plant_topic

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
Partitions = frozenset[TopicPartition]
Connect = Callable[..., Registry]


ODD: dict[str, Any] = {}


def odd(members: Members) -> Assignment:
    """Assign everything to a stream with an invalid number."""
    return {at: Stream("a", ODD["number"]) for topic in members.topics for at in members.in_order(topic)}


def leaving(_members: Members) -> Assignment:
    """A strategy that ends the program, as a script might."""
    sys.exit(3)


# Planning


def test_a_member_that_waits_for_a_newer_plan_reads_the_group_again(run: Run) -> None:
    known = {"a": 6, "b": 6}
    options: dict[str, Any] = {"assignors": ["sticky"], "reconcile_every": 0.5}
    a = run(id="a", partitions=lambda _topic: range(known["a"]), **options).until_holding(ats("orders", *range(6)))
    b = run(id="b", partitions=lambda _topic: range(known["b"]), **options)
    b.until(lambda: len(b.member.assignment) == 3)
    known["a"] = 8  # the member that plans for all sees it first
    looks = b.member.stats.looks
    b.until(lambda: b.member.stats.looks > looks + 2)
    known["b"] = 8
    b.until(lambda: len(a.member.assignment) == len(b.member.assignment) == 4)


def test_members_of_one_session_ignore_events_that_only_another_member_waits_for(run: Run, orders: Partitions) -> None:
    """When one member watches a node, the session delivers the event to all members."""
    options: dict[str, Any] = {"assignors": ["range"], "reconcile_every": 60.0}
    members = [run(id=f"m{number}", **options) for number in range(6)]
    for number, one in enumerate(members):
        one.until_holding(ats("orders", number))
    until_all_is_heard(members)
    before = [one.member.stats.looks for one in members]
    members[5].close()
    for one, numbers in zip(members, [(0, 1), (2,), (3,), (4,), (5,)], strict=False):
        one.until_holding(ats("orders", *numbers))
    assert [one.member.stats.looks - looks for one, looks in zip(members, before, strict=True)] == [1, 1, 1, 1, 1, 0]


def until_all_is_heard(members: list[Running]) -> None:
    """Wait until the events so far are delivered, and have caused their looks. kazoo's threads deliver them one after
    the other, but perhaps after the answer to a later request."""
    delivered = threading.Event()
    client = context_of(members[0].member.group).session.client
    client.handler.dispatch_callback(Callback("watch", delivered.set, ()))
    assert delivered.wait(LONGEST)
    for one in members:
        one.until(lambda one=one: not one.member._loop._changes._changed, "its last look")
        one.until(lambda one=one: one.member.state is InstanceState.STABLE, "the end of its last look")


@pytest.mark.parametrize("number", [-1, "x", 1.5])
def test_an_invalid_result_of_a_strategy_is_an_error_and_is_not_retried_at_once(
    group: Consumergroup, orders: Partitions, number: Any
) -> None:
    ODD["number"] = number
    with Member(group, ["orders"], id="a", assignors=[odd], join_backoff=60.0) as member:
        with pytest.raises(InvalidOptionError, match=r"odd.*not a stream that reads orders"):
            member.next_generation(LONGEST)
        assert member.stats.looks < 5
        assert not member.assignment


def test_a_generation_that_ends_while_it_is_held_back_is_not_handed_out_again(
    run: Run, registry: Registry, orders: Partitions
) -> None:
    """It was held back because the connection was lost. After the reconnect, another one may have begun at once."""
    a = run(id="a").until_holding(orders)
    plant_topic(registry.client, "orders", 7)
    a.until_holding(ats("orders", *range(7)))
    ended, current = a.generations[0], a.generations[-1]
    loop, handed_out = a.member._loop, []
    loop._hand_out = handed_out.append
    loop.hold_back(ended)
    a.until(lambda: loop._held_back is None)
    loop.hold_back(current)
    a.until(lambda: handed_out)
    assert handed_out == [current]


# Registrations


def test_two_members_of_one_session_with_one_id_never_work_on_the_same_partitions(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    a = run(id="a").until_holding(orders)
    b = run(id="a")
    b.until(lambda: any(event.kind is EventKind.FAILED and "already registered" in event.detail for event in b.events))
    assert not b.member.assignment
    a.close()
    b.until_holding(orders)


def test_a_registration_that_was_deleted_while_the_member_was_cut_off_is_created_again(
    registry: Registry, group: Consumergroup
) -> None:
    """The session and the claims have outlived it: otherwise the member would wait for itself, and nobody could claim
    its partitions."""
    instance = MemberInstance(group.paths, context_of(group), "a")
    instance.register(["orders"])
    instance.claim(P0)
    registry.client.delete(group.paths.instance("a"))
    assert not instance.resume()
    instance.register(["orders"])
    assert [each.session for each in group.instances()] == [registry.session_id]
    assert instance.find_owners([P0], ["a"]) == ({P0: 0}, {})


def test_an_owner_node_with_a_stream_of_thousands_of_digits_stops_nobody(
    run: Run, registry: Registry, group: Consumergroup, orders: Partitions
) -> None:
    a = run(id="a", reconcile_every=60.0).until_holding(orders)
    registry.client.set(group.paths.owner(P0), b"a-" + b"9" * 5_000)
    b = run(id="b")
    b.until_holding(ats("orders", 3, 4, 5))
    a.until_holding(ats("orders", 0, 1, 2))
    assert not a.errors


@pytest.mark.parametrize("together", [True, False], ids=["one session", "two sessions"])
def test_an_id_that_looks_like_a_stream_of_another_id_is_not_confused_with_it(
    run: Run, connect: Connect, orders: Partitions, together: bool
) -> None:
    a = run(id="a").until_holding(orders)
    b = run(id="a-0", **({} if together else {"on": connect().group("billing")}))
    a.until_holding(ats("orders", 0, 1, 2))
    b.until_holding(ats("orders", 3, 4, 5))
    b.close()
    a.until_holding(orders)


def test_an_overwritten_registration_is_restored(run: Run, registry: Registry, orders: Partitions) -> None:
    a = run(id="a", reconcile_every=0.5).until_holding(orders)
    registry.client.set("/consumers/billing/ids/a", b"garbage{")
    a.until(lambda: registry.client.get("/consumers/billing/ids/a")[0].startswith(b"{"))
    a.until_holding(orders)
    assert len(a.generations) == 1


@pytest.mark.parametrize("data", [b"somebody else", b"a"])
def test_a_partition_whose_owner_node_was_overwritten_is_lost_and_claimed_again(
    run: Run, group: Consumergroup, registry: Registry, orders: Partitions, data: bytes
) -> None:
    a = run(id="a", reconcile_every=0.5).until_holding(orders)
    path = "/consumers/billing/owners/orders/0"
    registry.client.set(path, data)
    a.until(lambda: any(event.kind is EventKind.LOST and event.at == {P0} for event in a.events), "the loss")
    a.until_holding(orders)
    assert registry.client.get(path)[0] == b"a-0"
    a.generations[-1].commit({P0: 5})


def test_a_member_whose_id_another_session_registers_releases_everything_and_returns_after_it(
    run: Run, connect: Connect, registry: Registry, orders: Partitions
) -> None:
    a = run(id="a", reconcile_every=0.5).until_holding(orders)
    registry.client.delete("/consumers/billing/ids/a")
    a.until(lambda: registry.client.exists("/consumers/billing/ids/a"))
    a.until_holding(orders)
    other = connect()
    transaction = other.client.transaction()
    transaction.delete("/consumers/billing/ids/a")
    transaction.create("/consumers/billing/ids/a", registry.client.get("/consumers/billing/ids/a")[0], ephemeral=True)
    transaction.commit()
    a.until(lambda: not a.member.assignment, "letting go")
    other.close()
    a.until_holding(orders)


# Leaving


def test_a_member_closed_while_disconnected_leaves_after_the_reconnect(
    run: Run, connect: Connect, zookeeper_hosts: str, orders: Partitions
) -> None:
    server, _, chroot = zookeeper_hosts.partition("/")
    with TcpProxy(server) as proxy:
        far = connect(f"{proxy.address}/{chroot}", session_timeout=20.0)
        a = run(id="a", on=far.group("billing")).until_holding(orders)
        b = run(id="b").until_holding(ats("orders", 3, 4, 5))
        proxy.refuse()
        proxy.cut()
        a.close()
        proxy.accept()
        b.until_holding(orders)


def test_a_worker_that_closes_its_member_while_its_generation_ends_does_not_wait_for_itself(
    group: Consumergroup, registry: Registry, orders: Partitions
) -> None:
    member = Member(group, ["orders"], release_timeout=60.0, rebalance_timeout=100.0)

    def work(generation: Generation) -> None:
        generation.wait()
        member.close()

    member.start()
    generation = member.next_generation(LONGEST)
    assert generation is not None
    generation.start(work)
    plant_topic(registry.client, "orders", 8)
    assert generation.wait(30)
    assert member._left.wait(30)
    member.close()
    assert not group.instances()


def test_a_stuck_member_releases_after_the_reconnect_if_it_could_not_before(
    run: Run, connect: Connect, zookeeper_hosts: str, orders: Partitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _, chroot = zookeeper_hosts.partition("/")
    begun, stuck, deregister = threading.Event(), threading.Event(), Membership.deregister
    with TcpProxy(server) as proxy:

        def work(_generation: Generation) -> None:
            begun.set()
            stuck.wait(60)

        def cut_and_deregister(membership: Membership) -> None:
            if begun.is_set():
                monkeypatch.undo()
                proxy.refuse()
                proxy.cut()
            deregister(membership)

        far = connect(f"{proxy.address}/{chroot}", session_timeout=20.0)
        options: dict[str, Any] = {"max_idle": 0.5, "release_timeout": 0.1}
        monkeypatch.setattr(Membership, "deregister", cut_and_deregister)
        a = run(id="a", on=far.group("billing"), work=work, **options)
        a.until(lambda: any(event.kind is EventKind.FAILED for event in a.events))
        a.until(lambda: a.member.state is InstanceState.LEAVING)
        proxy.accept()
        run(id="b").until_holding(orders)
        stuck.set()


def test_the_iteration_raises_an_error_if_the_connection_was_closed(connect: Connect, orders: Partitions) -> None:
    registry = connect()
    member = Member(registry.group("billing"), ["orders"], join_backoff=0.5)
    member.start()
    generation = member.next_generation(LONGEST)
    registry.close()
    assert generation is not None
    assert generation.wait(30)
    with pytest.raises(NotConnectedError, match="is closed"):
        member.next_generation(LONGEST)
    member.close()


# Exceptions of callbacks, strategies and workers


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError()], ids=["SystemExit", "CancelledError"])
@pytest.mark.parametrize("option", ["on_assigned", "on_revoked"])
def test_a_member_continues_after_any_exception_of_a_callback(
    run: Run, orders: Partitions, error: BaseException, option: str
) -> None:
    async def fail(_partitions: Partitions) -> None:
        raise error

    a = run(id="a", **{option: fail}).until_holding(orders)
    run(id="b").until_holding(ats("orders", 3, 4, 5))
    a.until_holding(ats("orders", 0, 1, 2))


def test_a_strategy_that_exits_ends_the_member_and_releases_everything(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    with Member(group, ["orders"], id="a", assignors=[leaving]) as member:
        with pytest.raises(RuntimeError, match="SystemExit"):
            member.next_generation(LONGEST)
        assert not group.instances()
    run(id="b").until_holding(orders)


@pytest.mark.parametrize(("error", "most"), [(None, 40), (ValueError("no"), 12)], ids=["returns", "fails"])
def test_workers_that_end_at_once_do_not_cause_many_generations(
    run: Run, orders: Partitions, error: Exception | None, most: int
) -> None:
    def work(_generation: Generation) -> None:
        if error is not None:
            raise error

    began = time.monotonic()
    a = run(work=work)
    a.expect(ValueError)
    a.until(lambda: len(a.generations) > 2)
    threading.Event().wait(1.0)
    count, seconds = len(a.generations), time.monotonic() - began
    assert count < most * seconds


# Offsets


@pytest.mark.parametrize(("written", "then"), [(b"10", 20), (b"5", 20), (b"30", 30)])
def test_a_foreign_write_of_one_offset_does_not_prevent_the_commit_of_others_before_a_handover(
    run: Run, group: Consumergroup, registry: Registry, orders: Partitions, written: bytes, then: int
) -> None:
    marked = threading.Event()

    def work(generation: Generation) -> None:
        generation.commit(dict.fromkeys(generation.partitions, 10))
        for at in generation.partitions:
            generation.mark(at, 20)
        marked.set()
        generation.wait()

    a = run(work=work)
    assert marked.wait(30)
    registry.client.set("/consumers/billing/offsets/orders/0", written)
    if then != 20:
        a.expect(OffsetWouldGoBackError)
    a.close()
    found = {at: offset.offset for at, offset in group.offsets.fetch_many(sorted(orders)).items()}  # type: ignore[union-attr]
    assert found == {**dict.fromkeys(orders, 20), P0: then}


@pytest.mark.parametrize("denied", ["/consumers/billing/offsets/refunds/0", "/consumers/billing/offsets/refunds"])
def test_a_forbidden_offset_does_not_prevent_the_commit_of_others(
    run: Run, group: Consumergroup, registry: Registry, caplog: pytest.LogCaptureFixture, denied: str
) -> None:
    refunds = TopicPartition("refunds", int(denied.endswith("refunds")))  # of the directory
    plant_topic(registry.client, "orders", 2)
    plant_topic(registry.client, "refunds", [refunds.partition])
    registry.client.create("/consumers/billing/offsets/refunds/0", b"3", makepath=True)
    registry.client.set_acls(denied, [make_acl("world", "anyone", read=True, admin=True)])

    def work(generation: Generation) -> None:
        for at in generation.partitions:
            generation.mark(at, 5)
        generation.wait()

    member = run(topics=["orders", "refunds"], work=work, auto_commit_every=0.1)
    member.until(lambda: {P0, P1} <= {each.at for each in group.offsets if isinstance(each, CommittedOffset)})
    failures = [event for event in member.events if event.kind is EventKind.FAILED]
    member.until(lambda: sum(event.kind is EventKind.FAILED for event in member.events) > len(failures) + 3)
    member.expect(NoPermissionError)  # raised between two generations
    member.close()
    assert group.offsets.fetch(P0) is not None
    assert caplog.text.count(f"could not commit an offset: no permission on {denied}") == 1
    assert len(member.errors) == 1, "the same error is raised once"


def test_a_persistent_registration_of_the_id_is_an_error_that_names_the_repair(
    run: Run, registry: Registry, orders: Partitions
) -> None:
    """Tools that copy a ZooKeeper write registrations as persistent nodes."""
    registration = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1795255170109"}'
    registry.client.create("/consumers/billing/ids/anna", registration, makepath=True)
    member = run(id="anna", join_backoff=0.2)
    error = member.until_error(AlreadyRegisteredError)
    assert "belongs to no session" in str(error)
    assert "doctor" in str(error)
    [checkup] = registry.check(["billing"])
    registry.repair(next(found for found in checkup.findings if found.code == "persistent-registration"))
    member.until_holding(orders)


@pytest.mark.parametrize("option", ["auto_commit_every", "reconcile_every"])
def test_a_member_with_a_tiny_period_can_be_closed(group: Consumergroup, orders: Partitions, option: str) -> None:
    member = Member(group, ["orders"], **{option: 5e-324})
    generation = next(member.generations())
    assert set(generation.partitions) == orders
    closing = threading.Thread(target=member.close)
    closing.start()
    assert member._left.wait(LONGEST)
    closing.join(LONGEST)
    assert not closing.is_alive()
