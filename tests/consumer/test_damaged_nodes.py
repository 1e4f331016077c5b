"""Failures 10, 14 and 26 for members: nodes that other clients delete, recreate, overwrite or fill with garbage."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.simulation.world import World
from zkgroups import Consumergroup, EventKind, Generation, Registry, TopicPartition
from zkgroups.exceptions import AlreadyRegisteredError
from zkgroups.zookeeper.instance import MemberInstance
from zkgroups.zookeeper.session.session import context_of

from .conftest import Connect, Partitions, Run, ats, plant_topic

P0, P2 = TopicPartition("orders", 0), TopicPartition("orders", 2)
FIRST, SECOND = ats("orders", 0, 1, 2), ats("orders", 3, 4, 5)
GROUP = "/consumers/billing"
QUICK: dict[str, Any] = {"reconcile_every": 5.0}


def commit_all(generation: Generation) -> None:
    for n in range(10**9):
        starts = generation.partitions.items()
        generation.commit({at: (start if isinstance(start, int) else 0) + n for at, start in starts})
        if generation.wait(1.0):
            return


# 10: missed watch events, recreated nodes


@pytest.mark.parametrize("made_again", [True, False], ids=["and made again", "and left so"])
@pytest.mark.parametrize("part", ["/ids", "/owners", ""], ids=["registrations", "owners", "group"])
def test_failure_10_a_group_recovers_soon_after_its_nodes_were_deleted(
    run: Run, group: Consumergroup, client: Any, orders: Partitions, part: str, made_again: bool
) -> None:
    a, b = run(id="a", **QUICK), run(id="b", **QUICK)
    a.until_holding(FIRST)
    b.until_holding(SECOND)
    paths = [f"{GROUP}{part}"]
    for path in paths:
        paths += [f"{path}/{name}" for name in client.get_children(path)]
    deletion = client.transaction()  # at once, because members recreate missing nodes soon
    for path in reversed(paths):
        deletion.delete(path)
    if made_again:
        deletion.create(paths[0])
    assert not any(isinstance(result, Exception) for result in deletion.commit())
    time.sleep(60)
    a.until_holding(FIRST)
    b.until_holding(SECOND)
    assert {instance.id for instance in group.instances()} == {"a", "b"}
    owners = {owner.at: owner.id for owner in group.owners()}  # type: ignore[union-attr]
    assert owners == {at: "a-0" if at in FIRST else "b-0" for at in orders}
    for one in (a, b):
        one.generation.commit(dict.fromkeys(one.generation.partitions, 5))


def test_failure_10_a_registration_that_a_commit_finds_missing_is_recreated_and_claims_are_kept(
    world: World, run: Run, connect: Connect, group: Consumergroup, client: Any, orders: Partitions
) -> None:
    a = run(id="a", on=connect("far"), work=commit_all, reconcile_every=3600.0).until_holding(orders)
    before = list(group.owners())
    world.deafen("far")  # a commit notices it first
    client.delete(f"{GROUP}/ids/a")
    a.until(lambda: client.exists(f"{GROUP}/ids/a"))
    a.until_holding(orders)
    assert list(group.owners()) == before


def test_failure_10_a_member_without_watch_events_releases_within_the_reconcile_period(
    world: World, run: Run, connect: Connect, orders: Partitions
) -> None:
    a = run(id="a", on=connect("far"), reconcile_every=20.0).until_holding(orders)
    world.deafen("far")
    run(id="b").until_holding(SECOND).close()
    a.until_holding(orders)


def test_a_partition_whose_owner_node_was_overwritten_is_lost_and_claimed_again(
    run: Run, client: Any, orders: Partitions
) -> None:
    a = run(id="a", **QUICK).until_holding(orders)
    client.set(f"{GROUP}/owners/orders/0", b"a")
    assert a.until_told(EventKind.LOST).at == {P0}
    a.until_holding(orders)
    assert client.get(f"{GROUP}/owners/orders/0")[0] == b"a-0"
    a.generation.commit({P0: 5})


def test_an_overwritten_registration_is_restored(run: Run, client: Any, orders: Partitions) -> None:
    a = run(id="a", **QUICK).until_holding(orders)
    client.set(f"{GROUP}/ids/a", b"garbage{")
    a.until(lambda: client.get(f"{GROUP}/ids/a")[0].startswith(b"{"))
    a.until_holding(orders)
    assert len(a.generations) == 1


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


def test_a_member_whose_id_another_session_registers_releases_everything_and_returns_after_it(
    run: Run, connect: Connect, client: Any, orders: Partitions
) -> None:
    a, path = run(id="a", **QUICK).until_holding(orders), f"{GROUP}/ids/a"
    with connect() as other:
        transaction = other.client.transaction()
        transaction.delete(path)
        transaction.create(path, client.get(path)[0], ephemeral=True)
        transaction.commit()
        a.until(lambda: not a.member.assignment, "letting go")
    a.until_holding(orders)


def test_a_persistent_registration_of_the_id_is_an_error_that_names_the_repair(
    run: Run, registry: Registry, orders: Partitions
) -> None:
    """Tools that copy a ZooKeeper write registrations as persistent nodes."""
    registration = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1795255170109"}'
    registry.client.create(f"{GROUP}/ids/anna", registration, makepath=True)
    member = run(id="anna")
    error = str(member.until_error(AlreadyRegisteredError))
    assert "belongs to no session" in error
    assert "doctor" in error
    [checkup] = registry.check(["billing"])
    registry.repair(next(found for found in checkup.findings if found.code == "persistent-registration"))
    member.until_holding(orders)


# 14: garbage

REGISTRATIONS = {
    "half": b'{"version":1,"subscr',
    "expression": b'{"version":1,"subscription":{"(":1},"pattern":"white_list"}',
    "deep": b"[" * 100_000,
    "huge": b'{"version":1,"pattern":"static","subscription":{"x":1},"more":"' + b"x" * 900_000 + b'"}',
    "nobodys-assignor": b'{"version":1,"subscription":{"other":1},"pattern":"static","assignors":[7,null]}',
    "\N{SNOWMAN} \N{GREEK SMALL LETTER ALPHA}": b"null",
}
OWNERS = {
    "orders/abc": b"x",
    "orders/99": b"\xff",
    "b'orders'/1-x": b"somebody",
    "\N{SNOWMAN}/0": b"anne-0",
    "..orders/0": b"{",
}
OFFSETS = {
    "orders/abc": b"5",
    "orders/99": b"9" * 5000,
    "\N{SNOWMAN}/0": b"x" * 900_000,
}


@pytest.mark.parametrize("assignors", [["range", "roundrobin", "sticky"], ["sticky"]], ids=["range", "sticky"])
def test_failure_14_a_group_settles_whatever_other_nodes_contain(
    run: Run, group: Consumergroup, client: Any, orders: Partitions, assignors: list[str]
) -> None:
    for part, nodes in (("ids", REGISTRATIONS), ("owners", OWNERS), ("offsets", OFFSETS)):
        for name, data in nodes.items():
            client.create(f"{GROUP}/{part}/{name}", data, ephemeral=part != "offsets", makepath=True)
    options = {"assignors": assignors, "work": commit_all, **QUICK}
    a, b = run(id="a", **options), run(id="b", **options)
    a.until_holding_some(3)
    b.until_holding_some(3)
    client.create(f"{GROUP}/ids/late", b"{", ephemeral=True)
    c = run(id="c", **options).until_holding_some(2)
    for one in (a, b):
        one.until_holding_some(2)
    assert a.member.assignment | b.member.assignment | c.member.assignment == orders
    found = group.offsets.fetch_many(orders)
    c.until(lambda: all(group.offsets.fetch(at) not in (None, found[at]) for at in orders), "commits")


@pytest.mark.parametrize("data", [b"", b"x" * 900_000])
def test_failure_14_a_partition_with_an_unreadable_offset_is_skipped_until_it_is_readable(
    run: Run, client: Any, orders: Partitions, data: bytes
) -> None:
    path = f"{GROUP}/offsets/orders/2"
    client.create(path, data, makepath=True)
    a = run(work=commit_all, **QUICK).until_holding(orders)
    assert a.generation.partitions.keys() == orders - {P2}
    assert a.generation.unreadable.keys() == {P2}
    assert client.get(path)[0] == data
    client.set(path, b"7")
    a.until(lambda: a.generation.partitions.get(P2) == 7)


# 26: hostile registrations

TOPIC = "a" * 40


def register(client: Any, id: str, subscription: dict[str, int], pattern: str) -> None:
    fields = {"version": 1, "subscription": subscription, "pattern": pattern, "timestamp": "1"}
    client.create(f"{GROUP}/ids/{id}", json.dumps(fields).encode(), ephemeral=True, makepath=True)


@pytest.mark.parametrize("expression", ["(a+)+b", r"(a)\1.*", "(a|b)*" * 133_000], ids=["slow", "java-only", "long"])
def test_a_member_beside_a_hostile_expression_settles(client: Any, run: Run, expression: str) -> None:
    plant_topic(client, TOPIC, 2)
    register(client, "m", {expression: 1}, "white_list")
    member = run([TOPIC]).until_holding(ats(TOPIC, 0, 1))
    if expression != "(a+)+b":
        assert "its subscription cannot be evaluated: " in str(member.until_told(EventKind.MALFORMED))
