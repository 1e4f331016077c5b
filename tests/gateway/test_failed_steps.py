"""What a gateway has noticed is not forgotten if its next step fails, everything happens once if the connection is lost
at any write, and work that nobody waits for is left out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.world import World
from tests.waiting import eventually
from tests.zookeeper.tree import Tree, dump
from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.coordinator import CommittedValue, KafkaError, RebalanceNeeded, Subscription, WorkFinished
from zkgroups.coordinator.storage import (
    ListStored,
    OffsetsStored,
    PerformAssignment,
    ReleaseMembers,
    StoreGeneration,
    StoreOffsets,
    WorkFailed,
)
from zkgroups.core.znodes.own_nodes import RouteState
from zkgroups.exceptions import NotConnectedError
from zkgroups.gateway.zookeeper_storage import GroupSettings, group
from zkgroups.zookeeper.admin.migration_marks import change_route, read_route
from zkgroups.zookeeper.reading.observers import GroupObserver
from zkgroups.zookeeper.requests.transaction import Create
from zkgroups.zookeeper.session.session import context_of

from .conftest import Connect, Join, LoseReplies, Serve
from .old_members import ALL, claim, register
from .old_members import orders as at
from .served import PLANNED, Script

OTHER = "billing_~other"
FIRST = TopicPartition("orders", 0)


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
    world: World, connect: Connect, orders: None, join: Join, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """The gateway hears of the change, and cannot read the group."""
    caplog.set_level(logging.INFO, "zkgroups.gateway")
    other, own = connect(), connect("gateway", timeout=4.0, session_timeout=60.0)
    register(other.client, "billing", OTHER, {"orders": 1})
    claim(other.client, "billing", f"{OTHER}-0", "orders", 1, 3, 4, 5)
    member = join(served=serve(own, settings=GroupSettings(claim_patience=0.5, reconcile_every=1.0)))
    assert eventually(lambda: member.assigned == at(0, 2))
    world.cut("gateway")
    other.client.delete("/consumers/billing/owners/orders/1")
    assert eventually(lambda: "could not check group billing" in caplog.text)
    world.heal("gateway")
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
    assert script.generation(1, "a") == {"a": sorted(at(0, 2))}
    assert eventually(lambda: asks_to_rebalance(script))


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


# Lost requests and replies


def work_of_every_kind(script: Script) -> Iterator[Any]:
    """Carry out work of every kind that writes. Yield the results after each part."""
    shares = script.generation(1, "a-1", "b-1")
    for offset in (3, 4):
        offsets = dict.fromkeys(shares["a-1"], CommittedValue(offset, "text", 7))
        stored = script.do(StoreOffsets("billing", "a-1", 1, offsets))
    yield shares, stored
    shares = script.generation(2, "a-1", "c-1", "d-1")
    stored = script.do(StoreOffsets("billing", "d-1", 2, dict.fromkeys(shares["d-1"], CommittedValue(9))))
    script.do(ReleaseMembers("billing", ("c-1", "d-1")))
    yield shares, stored, script.generation(3, "a-1")
    script.do(ReleaseMembers("billing", ("a-1",)))
    script.do(StoreGeneration("billing", 4, "consumer", "", "", {}))
    yield script.do(StoreOffsets("billing", "", -1, {FIRST: CommittedValue(1, "back")}))


@pytest.mark.parametrize("what", ["request", "reply"])
def test_everything_happens_once_although_the_connection_is_lost_at_any_write(
    what: str, world: World, registry: Registry, connect: Connect, orders: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the end the nodes must equal those of an undisturbed run."""
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    monkeypatch.setattr(world.machine, "wall", 1_800_000_000.0 - world.machine.now)
    script = Script(connect("gateway", session_timeout=300.0))

    def run() -> list[tuple[Any, Tree]]:
        found = [(result, dump(registry.client)) for result in work_of_every_kind(script)]
        registry.client.delete("/consumers", recursive=True)
        return found

    undisturbed = run()
    number = 1
    while True:
        # The simulator takes the last of these at each write: a loss at the write with this number.
        losses = world._losses["gateway"] = [what] + (number - 1) * [""]
        assert run() == undisturbed, f"{what} {number}"
        if losses:
            break
        number += 1
    assert number > 15


def test_a_claim_with_an_unknown_outcome_blocks_no_other_member(
    script: Script, lose_replies: LoseReplies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of the first member was carried out without a reply. Then the second member gets the partitions."""

    def claims(operations: Any) -> bool:
        return any(isinstance(each, Create) and "/owners/orders/" in each.path for each in operations)

    with lose_replies(claims), monkeypatch.context() as patched:
        patched.setattr(group, "may_try_again", lambda *_: False)
        assert script.ask(PerformAssignment("billing", 1, "range", {"a-1": PLANNED})) == WorkFailed(
            KafkaError.COORDINATOR_NOT_AVAILABLE
        )
    without_topics = replace(PLANNED, subscription=Subscription(frozenset()))
    shares = script.assign(2, {"a-1": without_topics, "b-1": PLANNED})
    assert {id: len(share) for id, share in shares.items()} == {"a-1": 0, "b-1": 6}


# Work that nobody waits for


def test_a_list_that_begins_too_late_is_left_out_and_lists_do_not_delay_routes(
    world: World, registry: Registry, connect: Connect, orders: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, go_on = Script(connect(timeout=4.0)), threading.Event()
    carried_out: list[object] = []
    storage = script.storage
    script.generation(1, "a")
    for number in range(2):
        storage._read_queues.put(f"a long list {number}", go_on.wait)
    monkeypatch.setattr(storage, "_carry_out", lambda _id, work: carried_out.append(work))
    assert storage.start(99, ListStored()) is None
    context = context_of(registry)
    change_route(context, read_route(context, "billing"), RouteState.MOVING_TO_KAFKA, plan="p1", since_ms=1)
    assert eventually(lambda: storage._routes.state("billing") is RouteState.MOVING_TO_KAFKA)
    world.machine.sleep(5)
    go_on.set()
    failed = WorkFinished(99, WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE))
    assert eventually(lambda: script.received(failed))
    assert carried_out == []


def test_groups_without_members_are_forgotten(world: World, script: Script) -> None:
    script.generation(1, "a")
    for number in range(5):
        script.do(StoreOffsets(f"simple-{number}", "", -1, {FIRST: CommittedValue(5)}))
    assert script.storage._groups.keys() == {"billing"}
    world.expire(script.storage._registry)
    assert eventually(lambda: not script.storage._groups)
