"""Failure 24: members are closed at any moment, from anywhere, and whatever the server does."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.seeds import seed
from tests.simulation.world import World
from zkgroups import Consumergroup, Generation, Member, Registry, TopicPartition
from zkgroups.exceptions import MemberClosedError, NotConnectedError

from .conftest import LONGEST, Connect, Partitions, Run, ats, committed, plant_topic

P0 = TopicPartition("orders", 0)
PATIENT: dict[str, Any] = {"release_timeout": 60.0, "rebalance_timeout": 100.0}


def closes_within(seconds: float, close: Callable[[], object]) -> None:
    """Assert that the call returns within simulated seconds, and raises nothing."""
    began = time.monotonic()
    close()
    assert time.monotonic() - began <= seconds


def test_failure_24_members_that_close_at_any_moment_of_a_rebalance_leave_in_time(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    chance = random.Random(seed())
    always = run(id="always").until_holding(orders)
    for turn in range(10):
        ones = []
        for number in range(chance.randint(1, 4)):
            ones.append(run(id=f"w{turn}.{number}"))
            time.sleep(chance.choice([0.0, chance.random() * 0.3]))
        for one in chance.sample(ones, len(ones)):
            closes_within(25.0, one.close)  # `close` itself gives up after 28 s
    always.until_holding(orders)
    assert {owner.id for owner in group.owners()} == {"always-0"}  # type: ignore[union-attr]
    assert [instance.id for instance in group.instances()] == ["always"]


def test_failure_24_closing_twice_or_from_several_threads_closes_once(group: Consumergroup, orders: Partitions) -> None:
    member = Member(group, ["orders"]).start()
    assert member.next_generation(LONGEST) is not None
    threads = [threading.Thread(target=member.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    closes_within(10.0, member.close)
    for thread in threads:
        thread.join()
    closes_within(1.0, member.close)
    member.stop()
    assert list(member.generations()) == []
    for call in (member.next_generation, member.start):
        with pytest.raises(MemberClosedError, match="of group 'billing' is closed"):
            call()
    assert (group.instances(), list(group.owners())) == ([], [])


@pytest.mark.parametrize("where", ["worker", "waiting worker", "body", "callback"])
def test_failure_24_a_worker_and_a_callback_that_close_their_member_do_not_wait_for_themselves(
    group: Consumergroup, client: Any, orders: Partitions, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    def work(generation: Generation) -> None:
        if where == "waiting worker":
            generation.wait()
        if "worker" in where:
            member.close()

    member = Member(group, ["orders"], **PATIENT, on_assigned=lambda _: where == "callback" and member.close())

    def live() -> None:
        for generation in member.generations():
            if where == "body":
                member.close()
            generation.start(work)
            if where == "waiting worker":
                plant_topic(client, "orders", 8)
            generation.wait()

    closes_within(10.0, live)
    assert eventually_left(group)
    assert [record for record in caplog.records if record.name.startswith("zkgroups")] == []


def eventually_left(group: Consumergroup) -> bool:
    time.sleep(5)
    return (group.instances(), list(group.owners())) == ([], [])


def test_failure_24_closing_does_not_wait_for_the_pause_after_a_failure(group: Consumergroup) -> None:
    def partitions(_topic: str) -> list[int]:
        raise LookupError("planted")

    member = Member(group, "orders", partitions=partitions, join_backoff=60.0).start()
    time.sleep(10)
    closes_within(1.0, member.close)
    assert group.instances() == []


# Without a connection


def test_failure_24_closing_while_no_server_answers_ends_in_time(
    world: World, connect: Connect, orders: Partitions
) -> None:
    member = Member(connect("far", session_timeout=10.0).group("billing"), "orders", release_timeout=1.0)
    assert member.next_generation(LONGEST)
    world.cut("far")
    closes_within(2 * 1.0 + 3 * 10.0, member.close)
    world.heal("far")


@pytest.mark.parametrize("claims_end", [True, False])
def test_failure_24_a_member_that_was_closed_during_an_outage_deregisters_after_it_and_frees_its_id(
    world: World, connect: Connect, group: Consumergroup, orders: Partitions, run: Run, claims_end: bool
) -> None:
    """The registry stays open. Its session may live on although its claims have ended."""
    registry = connect("far", session_timeout=40.0)
    a = run(id="a", on=registry, release_timeout=0.5).until_holding(orders)
    a.generation.mark(P0, 5)
    world.server.sessions[registry.session_id or 0].timeout = 300.0  # by the clock of the server
    world.cut("far")
    if claims_end:
        time.sleep(38)
    closes_within(100.0, a.close)
    assert [each.id for each in group.instances()] == ["a"]
    world.heal("far")
    time.sleep(30)
    assert (group.instances(), list(group.owners())) == ([], [])
    run(id="a", on=registry).until_holding(orders)


def test_a_stuck_member_releases_after_the_reconnect_if_it_could_not_before(
    world: World, run: Run, connect: Connect, orders: Partitions
) -> None:
    stuck = threading.Event()
    a = run(id="a", on=connect("far", session_timeout=60.0), work=lambda _: stuck.wait(), max_idle=10.0)
    a.until_holding(orders)
    time.sleep(9)
    world.cut("far")
    time.sleep(15)
    world.heal("far")
    run(id="b").until_holding(orders)
    stuck.set()


def test_the_iteration_raises_an_error_if_the_connection_was_closed(connect: Connect, orders: Partitions) -> None:
    registry: Registry = connect()
    member = Member(registry.group("billing"), ["orders"]).start()
    generation = member.next_generation(LONGEST)
    registry.close()
    assert generation is not None
    assert generation.wait(30)
    with pytest.raises(NotConnectedError, match="is closed"):
        member.next_generation(LONGEST)
    member.close()


def test_a_member_closed_while_disconnected_commits_nothing_later_and_leaves_after_the_reconnect(
    world: World, run: Run, connect: Connect, group: Consumergroup, orders: Partitions
) -> None:
    a = run(id="a", on=connect("far", session_timeout=20.0)).until_holding(orders)
    b = run(id="b").until_holding(ats("orders", 3, 4, 5))
    world.cut("far")
    a.close()
    world.heal("far")
    b.until_holding(orders)
    assert committed(group) == {}
