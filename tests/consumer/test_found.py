"""What somebody found who tried to break members: each of these went wrong once."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.security import make_acl

from zkgroups import CommittedOffset, Consumergroup, EventKind, Generation, Member, Registry, TopicPartition
from zkgroups.core.rebalance.members import Assignment, Members, Stream
from zkgroups.core.znodes.states import InstanceState
from zkgroups.exceptions import AlreadyRegisteredError, InvalidOptionError, NotConnectedError
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.member_instance import MemberInstance
from zkgroups.zookeeper.session.registry_context import context_of

from .conftest import Run, ats, plant_topic

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
Partitions = frozenset[TopicPartition]
Connect = Callable[..., Registry]


ODD: dict[str, Any] = {}


def odd(members: Members) -> Assignment:
    """Gives everything to a stream with a number that is none."""
    return {at: Stream("a", ODD["number"]) for topic in members.topics for at in members.in_order(topic)}


def leaving(_members: Members) -> Assignment:
    """What a script does that has lost heart."""
    sys.exit(3)


# Planning


def test_who_waits_for_a_plan_of_something_newer_looks_anew(run: Run) -> None:
    known = {"a": 6, "b": 6}
    options: dict[str, Any] = {"assignors": ["sticky"], "reconcile_every": 0.5}
    a = run(id="a", partitions=lambda _topic: range(known["a"]), **options).until_holding(ats("orders", *range(6)))
    b = run(id="b", partitions=lambda _topic: range(known["b"]), **options)
    b.until(lambda: len(b.member.assignment) == 3)
    known["a"] = 8  # the one that plans for all sees it first
    looks = b.member.stats.looks
    b.until(lambda: b.member.stats.looks > looks + 2)
    known["b"] = 8
    b.until(lambda: len(a.member.assignment) == len(b.member.assignment) == 4)


def test_members_of_one_session_do_not_look_because_of_what_only_another_waits_for(
    run: Run, orders: Partitions
) -> None:
    """Whatever one of them has asked to be told, the session tells all of them."""
    options: dict[str, Any] = {"assignors": ["range"], "reconcile_every": 60.0}
    members = [run(id=f"m{number}", **options) for number in range(6)]
    for number, one in enumerate(members):
        one.until_holding(ats("orders", number))
    before = [one.member.stats.looks for one in members]
    members[5].close()
    for one, numbers in zip(members, [(0, 1), (2,), (3,), (4,), (5,)], strict=False):
        one.until_holding(ats("orders", *numbers))
    assert [one.member.stats.looks - looks for one, looks in zip(members, before, strict=True)] == [1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("number", [-1, "x", 1.5])
def test_a_strategy_that_returns_something_else_is_told_so_and_does_not_plan_again_and_again(
    group: Consumergroup, orders: Partitions, number: Any
) -> None:
    ODD["number"] = number
    with Member(group, ["orders"], id="a", assignors=[odd], join_backoff=60.0) as member:
        with pytest.raises(InvalidOptionError, match=r"odd.*not a stream that reads orders"):
            member.next_generation(10)
        assert member.stats.looks < 5
        assert not member.assignment


# Registrations


def test_two_members_of_one_session_and_one_id_do_not_work_on_the_same(
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
def test_an_id_that_looks_like_a_stream_of_another_is_not_taken_for_it(
    run: Run, connect: Connect, orders: Partitions, together: bool
) -> None:
    a = run(id="a").until_holding(orders)
    b = run(id="a-0", **({} if together else {"on": connect().group("billing")}))
    a.until_holding(ats("orders", 0, 1, 2))
    b.until_holding(ats("orders", 3, 4, 5))
    b.close()
    a.until_holding(orders)


def test_a_registration_that_was_written_over_is_made_anew(run: Run, registry: Registry, orders: Partitions) -> None:
    a = run(id="a", reconcile_every=0.5).until_holding(orders)
    registry.client.set("/consumers/billing/ids/a", b"garbage{")
    a.until(lambda: registry.client.get("/consumers/billing/ids/a")[0].startswith(b"{"))
    a.until_holding(orders)
    assert len(a.generations) <= 2


def test_who_finds_its_id_registered_by_another_gives_everything_up_and_comes_back_after_it(
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


def test_who_could_not_leave_while_there_was_no_connection_leaves_when_there_is_one(
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


def test_a_worker_that_closes_the_member_while_its_generation_is_stopped_does_not_wait_for_itself(
    group: Consumergroup, registry: Registry, orders: Partitions
) -> None:
    member = Member(group, ["orders"], release_timeout=10.0)

    def work(generation: Generation) -> None:
        generation.wait()
        member.close()

    member.start()
    generation = member.next_generation(10)
    assert generation is not None
    generation.start(work)
    plant_topic(registry.client, "orders", 8)
    assert generation.wait(30)
    assert member._left.wait(5)
    member.close()
    assert not group.instances()


def test_what_a_stuck_member_could_not_give_up_at_once_it_gives_up_later(
    run: Run, connect: Connect, zookeeper_hosts: str, orders: Partitions
) -> None:
    server, _, chroot = zookeeper_hosts.partition("/")
    stuck = threading.Event()
    with TcpProxy(server) as proxy:
        far = connect(f"{proxy.address}/{chroot}", session_timeout=20.0)
        options: dict[str, Any] = {"max_idle": 0.5, "release_timeout": 2.0}
        a = run(id="a", on=far.group("billing"), work=lambda _generation: stuck.wait(60), **options)
        a.until(lambda: any(event.kind is EventKind.IDLE for event in a.events))
        proxy.refuse()
        proxy.cut()
        a.until(lambda: any(event.kind is EventKind.FAILED for event in a.events))
        a.until(lambda: a.member.state is InstanceState.LEAVING)
        proxy.accept()
        run(id="b").until_holding(orders)
        stuck.set()


def test_whoever_iterates_is_told_that_the_connection_was_closed(connect: Connect, orders: Partitions) -> None:
    registry = connect()
    member = Member(registry.group("billing"), ["orders"], join_backoff=0.5)
    member.start()
    generation = member.next_generation(10)
    registry.close()
    assert generation is not None
    assert generation.wait(30)
    with pytest.raises(NotConnectedError, match="is closed"):
        member.next_generation(10)
    member.close()


# What others raise


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError()], ids=["SystemExit", "CancelledError"])
@pytest.mark.parametrize("option", ["on_assigned", "on_revoked"])
def test_whatever_a_callback_raises_the_member_goes_on(
    run: Run, orders: Partitions, error: BaseException, option: str
) -> None:
    async def fail(_partitions: Partitions) -> None:
        raise error

    a = run(id="a", **{option: fail}).until_holding(orders)
    run(id="b").until_holding(ats("orders", 3, 4, 5))
    a.until_holding(ats("orders", 0, 1, 2))


def test_a_strategy_that_exits_ends_the_member_and_lets_others_have_everything(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    with Member(group, ["orders"], id="a", assignors=[leaving]) as member:
        with pytest.raises(RuntimeError, match="SystemExit"):
            member.next_generation(10)
        assert not group.instances()
    run(id="b").until_holding(orders)


@pytest.mark.parametrize(("error", "most"), [(None, 40), (ValueError("no"), 12)], ids=["returns", "fails"])
def test_workers_that_end_as_soon_as_they_begin_do_not_keep_the_server_busy(
    run: Run, orders: Partitions, error: Exception | None, most: int
) -> None:
    def work(_generation: Generation) -> None:
        if error is not None:
            raise error

    a = run(work=work)
    a.until(lambda: len(a.generations) > 2)
    threading.Event().wait(1.0)
    assert len(a.generations) < most


# Offsets


@pytest.mark.parametrize(("written", "then"), [(b"10", 20), (b"5", 20), (b"30", 30)])
def test_an_offset_that_somebody_else_writes_keeps_no_other_from_being_committed_before_the_hand_over(
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
    a.close()
    found = {at: offset.offset for at, offset in group.offsets.fetch_many(sorted(orders)).items()}  # type: ignore[union-attr]
    assert found == {**dict.fromkeys(orders, 20), P0: then}


@pytest.mark.parametrize("denied", ["/consumers/billing/offsets/refunds/0", "/consumers/billing/offsets/refunds"])
def test_an_offset_that_may_not_be_written_keeps_no_other_from_being_committed(
    run: Run, group: Consumergroup, registry: Registry, caplog: pytest.LogCaptureFixture, denied: str
) -> None:
    refunds = TopicPartition("refunds", int(denied.endswith("refunds")))  # in the directory, a node that is not there
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
    member.close()
    assert group.offsets.fetch(P0) is not None
    assert caplog.text.count(f"could not commit an offset: no permission on {denied}") == 1
    assert len(member.errors) <= 1, "the same error is raised once"


def test_an_id_whose_registration_never_goes_away_is_an_error_that_names_the_cure(
    run: Run, registry: Registry, orders: Partitions
) -> None:
    """Tools that copy a ZooKeeper make such nodes of registrations."""
    registration = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1795255170109"}'
    registry.client.create("/consumers/billing/ids/anna", registration, makepath=True)
    member = run(id="anna", join_backoff=0.2)
    member.until(lambda: member.errors)
    assert isinstance(member.errors[0], AlreadyRegisteredError)
    assert "belongs to no session" in str(member.errors[0])
    assert "doctor" in str(member.errors[0])
    [checkup] = registry.check(["billing"])
    registry.repair(next(found for found in checkup.findings if found.code == "persistent-registration"))
    member.until_holding(orders)


@pytest.mark.parametrize("option", ["auto_commit_every", "reconcile_every"])
def test_a_period_shorter_than_any_clock_shows_does_not_keep_a_member_from_leaving(
    group: Consumergroup, orders: Partitions, option: str
) -> None:
    member = Member(group, ["orders"], **{option: 5e-324})
    generation = next(member.generations())
    assert set(generation.partitions) == orders
    began = time.monotonic()
    member.close()
    assert time.monotonic() - began < 5
