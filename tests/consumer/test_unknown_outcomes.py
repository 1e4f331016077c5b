"""A member whose claim, release or registration has an unknown outcome: the reply was lost with the connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from zkgroups import Consumergroup, EventKind, Generation, Registry, TopicPartition
from zkgroups.consumer.membership import Membership
from zkgroups.core.rebalance.members import Assignment, Members, Stream
from zkgroups.exceptions import GenerationEndedError, NotClaimedError, UnavailableError
from zkgroups.testing import TcpProxy, expire_session
from zkgroups.zookeeper.requests.transaction import Create, Delete
from zkgroups.zookeeper.session.registry_context import context_of
from zkgroups.zookeeper.session.session import Session

from .conftest import Run, Running, plant_topic

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Far:
    """A group whose connection can lose a reply and be cut off."""

    def __init__(self, registry: Registry, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.group: Consumergroup = registry.group("billing")
        self._session, self._proxy, self._monkeypatch = context_of(registry).session, proxy, monkeypatch

    def lose_the_reply(self, kind: type[Create | Delete], path: str) -> threading.Event:
        """Drop the reply to the next request that creates or deletes a node, and all after it. The returned event is
        set before the request is sent."""
        transact, lost = Session.transact, threading.Event()

        def transact_and_lose(session: Session, operations: Any, **options: Any) -> Any:
            is_meant = any(isinstance(each, kind) and each.path == path for each in operations)
            if session is self._session and is_meant and not lost.is_set():
                self._proxy.drop(direction="replies")
                lost.set()
            return transact(session, operations, **options)

        self._monkeypatch.setattr(Session, "transact", transact_and_lose)
        return lost

    def silence(self, fault: str) -> None:
        """Answer nothing: requests are held back, or the replies are dropped."""
        if fault == "held":
            self._proxy.hold()
        else:
            self._proxy.drop(direction="replies")

    def cut_off(self) -> None:
        self._proxy.refuse()
        self._proxy.cut()

    def come_back(self) -> None:
        self._proxy.heal()
        self._proxy.accept()


@pytest.fixture
def far(
    zookeeper: Any, zookeeper_hosts: str, connect: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Far]:
    """Its session lives longer than it is cut off. Ask for it before `run`: then it is closed after the members."""
    with TcpProxy(zookeeper.address) as proxy:
        registry = connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}", session_timeout=30.0)
        yield Far(registry, proxy, monkeypatch)


@pytest.mark.parametrize("fault", ["held", "dropped"])
def test_the_last_commit_before_a_release_is_tried_again_without_an_answer(
    far: Far, run: Run, orders: frozenset[TopicPartition], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Otherwise the next owner would read again what is finished, although the claims have not ended."""
    a = run(on=far.group, id="a").until_holding(orders)
    attempts: list[bool] = []

    def commit_marked(membership: Membership, generation: Generation, among: frozenset[TopicPartition]) -> None:
        attempts.append(False)
        if len(attempts) == 1:
            far.silence(fault)
        try:
            commit(membership, generation, among)
            attempts[-1] = True
        finally:
            far.come_back()

    commit = Membership.commit_marked
    for at in orders:
        a.generations[-1].mark(at, 5)
    monkeypatch.setattr(Membership, "commit_marked", commit_marked)
    b = run(id="b")
    b.until(lambda: b.generations and b.generations[-1].partitions, "its partitions")
    assert attempts[:2] == [False, True]
    assert set(b.generations[-1].partitions.values()) == {5}
    assert EventKind.FAILED not in {event.kind for event in a.events}


def test_the_last_commit_is_not_tried_again_after_the_session_has_ended(
    connect: Callable[..., Registry], run: Run, orders: frozenset[TopicPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = connect()
    a = run(on=registry.group("billing"), id="a").until_holding(orders)
    attempts: list[int] = []

    def commit_marked(membership: Membership, generation: Generation, among: frozenset[TopicPartition]) -> None:
        attempts.append(generation.number)
        if len(attempts) == 1:
            expire_session(registry.client)
        commit(membership, generation, among)

    commit = Membership.commit_marked
    a.generations[-1].mark(P0, 5)
    monkeypatch.setattr(Membership, "commit_marked", commit_marked)
    run(id="b")
    a.until(lambda: EventKind.LOST in {event.kind for event in a.events}, "the loss")
    assert attempts.count(attempts[0]) == 1


MAY_PLAN = threading.Event()


def gated(members: Members) -> Assignment:
    """Assign the last partition to "z", all others to "m"."""
    MAY_PLAN.wait(60)
    second = "z" if "z" in members.streams else "m"
    return {at: Stream(second if at == P1 else "m", 0) for at in members.in_order("orders")}


def outcome_is_unknown(running: Running) -> bool:
    """The connection was lost, or the request has timed out before."""
    details = [event.detail for event in running.events]
    return any("not restored in time" in told or "no reply to" in told for told in details)


def committed(running: Running, at: TopicPartition, offset: int) -> bool:
    """Try to commit in the latest generation."""
    try:
        running.generations[-1].commit({at: offset})
    except (GenerationEndedError, NotClaimedError, UnavailableError):
        return False
    return True


def test_a_claim_with_an_unknown_outcome_is_released_if_the_plan_has_changed_since(
    far: Far, run: Run, registry: Registry
) -> None:
    client, owners = registry.client, "/consumers/billing/owners/orders"
    plant_topic(client, "orders", 0)
    a = run(on=far.group, id="a").until_holding()
    client.ensure_path(owners)
    claimed = threading.Event()
    client.get_children(owners, watch=lambda _event: claimed.set())
    lost = far.lose_the_reply(Create, f"{owners}/1")
    plant_topic(client, "orders", 2)
    assert claimed.wait(40)
    assert lost.is_set()
    far.cut_off()
    b = run(id="b")
    a.until(lambda: outcome_is_unknown(a), "the unknown outcome")
    far.come_back()
    a.until_holding(P0)
    b.until_holding(P1)


def test_a_member_does_not_work_on_a_partition_whose_release_had_an_unknown_outcome_while_it_waits_for_a_plan(
    far: Far, run: Run, registry: Registry
) -> None:
    client, owned = registry.client, "/consumers/billing/owners/orders/1"
    plant_topic(client, "orders", 2)
    options: dict[str, Any] = {"assignors": [gated], "rebalance_timeout": 300.0, "reconcile_every": 300.0}
    MAY_PLAN.set()
    m = run(on=far.group, id="m", **options)
    m.until(lambda: client.exists("/consumers/billing/ids/m"), "its registration")
    run(id="a", **options)  # the planner
    m.until_holding(P0, P1)
    released = threading.Event()
    client.exists(owned, watch=lambda _event: released.set())
    lost = far.lose_the_reply(Delete, owned)
    z = run(id="z", **options)
    assert released.wait(40)
    assert lost.is_set()
    far.cut_off()
    z.until_holding(P1)
    m.until(lambda: outcome_is_unknown(m), "the unknown outcome")
    MAY_PLAN.clear()
    run(id="w", **options)
    m.until(lambda: client.exists("/consumers/billing/ids/w"), "the next rebalance")
    count = len(m.generations)
    far.come_back()
    m.until(lambda: len(m.generations) > count, "a generation")
    MAY_PLAN.set()
    m.until_holding(P0)
    assert [set(generation.partitions) for generation in m.generations[count:]] == [{P0}]
    assert z.generations[-1].active


def test_a_registration_that_was_deleted_and_recreated_with_an_unknown_outcome_is_used(
    far: Far, run: Run, registry: Registry, orders: frozenset[TopicPartition]
) -> None:
    client, path = registry.client, "/consumers/billing/ids/a"
    a = run(on=far.group, id="a").until_holding(orders)
    lost = far.lose_the_reply(Create, path)
    client.delete(path)
    a.until(lambda: lost.is_set() and client.exists(path), "the registration")
    far.cut_off()
    a.until(lambda: outcome_is_unknown(a), "the unknown outcome")
    far.come_back()
    a.until(lambda: committed(a, P0, 5), "a commit")
