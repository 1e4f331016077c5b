"""What a gateway has noticed is not forgotten if its next step fails, and work that nobody waits for is left out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.coordinator import CommittedValue, KafkaError, RebalanceNeeded, WorkFinished
from zkgroups.coordinator.storage.work import ListStored, OffsetsStored, StoreOffsets, WorkFailed
from zkgroups.core.znodes.group_route import RouteState
from zkgroups.deadline import uptime
from zkgroups.exceptions import NotConnectedError
from zkgroups.gateway.zookeeper_storage import GroupSettings
from zkgroups.testing import TcpProxy, expire_session
from zkgroups.zookeeper.admin.group_routes import change_route, read_route
from zkgroups.zookeeper.reading.group_observer import GroupObserver
from zkgroups.zookeeper.session.registry_context import context_of

from .conftest import Connect, Join, Serve
from .old_members import ALL, claim, register
from .old_members import orders as at
from .script import Script

pytestmark = pytest.mark.zookeeper

OTHER = "billing_~other"
FIRST = TopicPartition("orders", 0)


@pytest.fixture
def script(connect: Connect, orders: None) -> Iterator[Script]:
    script = Script(connect())
    with script.storage:
        yield script


def take_away(registry: Registry, number: int) -> None:
    """Delete an owner node, as an administrator may do."""
    registry.client.delete(f"/consumers/billing/owners/orders/{number}")


def failing_once(call: Callable[..., Any], *, after: int = 0) -> Callable[..., Any]:
    """Return a function that fails once, after so many calls that succeed."""
    outcomes = iter([*after * [True], False])

    def called(*arguments: Any, **options: Any) -> Any:
        if not next(outcomes, True):
            raise NotConnectedError("the connection was lost")
        return call(*arguments, **options)

    return called


def asks_to_rebalance(script: Script) -> bool:
    return script.received(RebalanceNeeded("billing", None))


# Noticed changes


def test_a_partition_that_becomes_free_while_requests_are_lost_is_given_to_a_member_later(
    zookeeper_hosts: str,
    proxy: TcpProxy,
    connect: Connect,
    orders: None,
    join: Join,
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The gateway hears of the change, and cannot read the group."""
    caplog.set_level(logging.INFO, "zkgroups.gateway")
    other = connect()
    register(other.client, "billing", OTHER, {"orders": 1})
    claim(other.client, "billing", f"{OTHER}-0", "orders", 1, 3, 4, 5)
    own = connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}", timeout=4.0, session_timeout=60.0)
    member = join(served=serve(own, settings=GroupSettings(claim_patience=0.5, reconcile_every=1.0)))
    assert eventually(lambda: member.assigned == at(0, 2))
    proxy.drop(direction="requests")
    other.client.delete("/consumers/billing/owners/orders/1")
    assert eventually(lambda: "could not check group billing" in caplog.text)
    proxy.heal()
    assert eventually(lambda: member.assigned == at(0, 1, 2))


def test_a_partition_that_becomes_free_right_after_a_generation_began_without_it_causes_a_rebalance(
    connect: Connect, orders: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, script = connect(), Script(connect(), settings=GroupSettings(claim_patience=1e-9))
    register(other.client, "billing", OTHER, {"orders": 1})
    claim(other.client, "billing", f"{OTHER}-0", "orders", 1, 3, 4, 5)
    watch_owners = GroupObserver.watch_owners

    def watch_late(observer: GroupObserver, missing: Any) -> None:
        if other.client.exists("/consumers/billing/owners/orders/1"):
            other.client.delete("/consumers/billing/owners/orders/1")
        watch_owners(observer, missing)

    monkeypatch.setattr(GroupObserver, "watch_owners", watch_late)
    with script.storage:
        assert script.generation(1, "a") == {"a": sorted(at(0, 2))}
        assert eventually(lambda: script.received(RebalanceNeeded("billing", None)))


def test_a_partition_that_was_taken_away_causes_a_rebalance_although_the_next_read_fails(
    registry: Registry, script: Script
) -> None:
    script.generation(1, "a", "b")
    group = script.storage._group("billing")
    _first, second = group.members
    take_away(registry, 0)
    second.instance.forget_lost_claims = failing_once(second.instance.forget_lost_claims)  # type: ignore[method-assign]
    group.reconcile()
    assert asks_to_rebalance(script)


def test_a_commit_that_notices_that_a_partition_was_taken_away_causes_a_rebalance_although_it_fails(
    registry: Registry, group: Consumergroup, script: Script
) -> None:
    [share] = script.generation(1, "a").values()
    [member] = script.storage._group("billing").members
    take_away(registry, 0)
    commit = failing_once(member.instance.commit_for_client, after=1)
    member.instance.commit_for_client = commit  # type: ignore[method-assign]
    stored = script.do(StoreOffsets("billing", "a", 1, {each: CommittedValue(5) for each in share}))
    assert isinstance(stored, OffsetsStored)
    assert stored.errors == {FIRST: KafkaError.ILLEGAL_GENERATION}
    assert {offset.at for offset in group.offsets} == ALL - {FIRST}
    assert asks_to_rebalance(script)


# Work that nobody waits for


def test_a_list_that_begins_too_late_is_left_out_and_lists_do_not_delay_routes(
    registry: Registry, connect: Connect, orders: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, go_on = Script(connect(timeout=4.0)), threading.Event()
    carried_out: list[object] = []
    with script.storage as storage:
        script.generation(1, "a")
        for number in range(2):
            storage._read_queues.put(f"a long list {number}", go_on.wait)
        monkeypatch.setattr(storage, "_carry_out", lambda _id, work: carried_out.append(work))
        began, failed = uptime(), WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE)
        assert storage.start(99, ListStored()) is None
        context = context_of(registry)
        change_route(context, read_route(context, "billing"), RouteState.MOVING_TO_KAFKA, plan="p1", since_ms=1)
        assert eventually(lambda: storage._routes.state("billing") is RouteState.MOVING_TO_KAFKA)
        assert eventually(lambda: uptime() > began + 4.0)
        go_on.set()
        assert eventually(lambda: script.received(WorkFinished(99, failed)))
    assert carried_out == []


def test_groups_without_members_are_forgotten(registry: Registry, script: Script) -> None:
    script.generation(1, "a")
    for number in range(5):
        script.do(StoreOffsets(f"simple-{number}", "", -1, {FIRST: CommittedValue(5)}))
    assert script.storage._groups.keys() == {"billing"}
    expire_session(script.storage._registry.client)
    assert eventually(lambda: not script.storage._groups)
