"""Members whose sessions, connections, clocks and processes fail: failures 1 and 4 to 8, and unknown outcomes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.simulation.world import World
from tests.simulation.zookeeper import WRITES
from zkgroups import Consumergroup, EventKind, Generation, LoneMember, Member, Registry, TopicPartition
from zkgroups.consumer.membership import Membership
from zkgroups.core.rebalance.members import Assignment, Members, Stream
from zkgroups.exceptions import (
    GenerationEndedError,
    InvalidOptionError,
    NotClaimedError,
    NotConnectedError,
    SessionLostError,
    UnavailableError,
)

from .conftest import LONGEST, Connect, Partitions, Run, Running, ats, committed, plant_topic

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
FIRST, SECOND = ats("orders", 0, 1, 2), ats("orders", 3, 4, 5)
PATIENT: dict[str, Any] = {"release_timeout": 60.0, "rebalance_timeout": 100.0}


# 1: the session of an owner expires


def test_failure_1_an_expired_session_is_reported_once_and_the_member_registers_and_claims_again(
    world: World, run: Run, connect: Connect, group: Consumergroup, orders: Partitions
) -> None:
    far = connect("far")
    anne, bert = run(id="anne", on=far), run(id="bert")
    for turn in range(1, 4):
        anne.until_holding(FIRST)
        bert.until_holding(SECOND)
        world.expire(far)
        anne.until(lambda turn=turn: len(anne.told(EventKind.LOST)) == turn, "the loss")
        assert anne.told(EventKind.LOST)[-1].at == FIRST
        anne.until(lambda: anne.member.assignment)
    anne.until_holding(FIRST)
    owners = {(owner.id, owner.session) for owner in group.owners() if owner.id == "anne-0"}  # type: ignore[union-attr]
    assert owners == {("anne-0", far.session_id)}
    assert bert.told(EventKind.LOST) == []


@pytest.mark.parametrize("fault", ["cut", "suspended", "asleep"])
def test_failure_1_and_6_and_7_a_member_stops_before_another_owns_its_partitions_and_its_late_commits_are_refused(
    world: World, run: Run, connect: Connect, group: Consumergroup, orders: Partitions, fault: str
) -> None:
    """A machine that sleeps is suspended, and its wall clock jumps."""
    begun, refused = list[float](), list[bool]()

    def work(generation: Generation) -> None:
        while generation.active:
            begun.append(time.monotonic())
            time.sleep(0.1)
        if not late:
            return
        try:
            generation.commit(dict.fromkeys(generation.partitions, 99))
        except (GenerationEndedError, NotClaimedError, SessionLostError, UnavailableError):
            refused.append(True)

    far, late = connect("far", session_timeout=10.0), list[bool]()
    bert = run(id="bert").until_holding(orders)
    with world.machine.process("far"):
        anne = run(id="anne", on=far, work=work)
    anne.until_holding(FIRST)
    late.append(True)
    world.cut("far") if fault == "cut" else world.machine.stall("far")
    bert.until_holding(orders)
    taken = time.monotonic()
    bert.generation.commit(dict.fromkeys(orders, 5))
    time.sleep(30)
    if fault == "asleep":
        world.machine.wall += 3600.0
    world.heal("far")
    world.machine.resume("far")
    anne.until_holding(FIRST)
    assert [moment for moment in begun if taken < moment < taken + 30] == []
    assert refused == [True]
    assert anne.told(EventKind.LOST)[0].at == FIRST
    assert set(committed(group).values()) == {5}


def test_failure_1_partitions_lost_during_a_release_are_reported_as_lost_and_not_as_revoked(
    world: World, run: Run, connect: Connect, orders: Partitions
) -> None:
    told: list[tuple[str, Partitions]] = []
    go_on, far = threading.Event(), connect("far")

    def work(generation: Generation) -> None:
        generation.wait()
        go_on.wait()

    callbacks: dict[str, Any] = {
        f"on_{name}": lambda at, name=name: told.append((name, at)) for name in ("lost", "revoked")
    }
    anne = run(id="anne", on=far, work=work, **PATIENT, **callbacks).until_holding(orders)
    run(id="bert")
    assert anne.generation.wait(LONGEST)
    world.expire(far)
    go_on.set()
    anne.until(lambda: told)
    assert told == [("lost", orders)]


# 4: servers restart


def test_failure_4_sessions_and_claims_survive_a_restart_of_the_server_without_a_rebalance(
    world: World, run: Run, connect: Connect, group: Consumergroup, orders: Partitions
) -> None:
    registries = [connect(name, session_timeout=20.0) for name in "abc"]
    members = [run(id=registry.process, on=registry) for registry in registries]  # type: ignore[attr-defined]
    for one in members:
        one.until_holding_some(2)
    held, sessions = list(group.owners()), [registry.session_id for registry in registries]
    generations = [one.generation for one in members]
    counted = ("rebalances", "generations", "interruptions", "gained", "lost", "conflicts", "waits")
    before = [[getattr(one.member.stats, name) for name in counted] for one in members]
    for seconds in (2, 8, 3):
        world.stop()
        time.sleep(seconds)
        world.start()
        time.sleep(30)
        for generation in generations:
            assert generation.active
            generation.commit(dict.fromkeys(generation.partitions, 5))
    assert ([registry.session_id for registry in registries], list(group.owners())) == (sessions, held)
    assert [[getattr(one.member.stats, name) for name in counted] for one in members] == before


# 5: an old registration of the same id


def test_failure_5_a_restarted_member_gets_its_partitions_once_its_old_session_has_expired(
    world: World, connect: Connect, run: Run, orders: Partitions
) -> None:
    killed = run(id="a", on=world.connect("old", session_timeout=10.0)).until_holding(orders)
    at = time.monotonic()
    world.kill("old")
    again = run(id="a", on=connect("new")).until_holding(orders)
    assert 6.0 < time.monotonic() - at < 20.0, "in simulated time"
    assert again.member.stats.lost == 0
    killed.member._closed = True  # its threads stand still, so that nobody can close it
    killed.close = lambda: None  # type: ignore[method-assign]


def test_failure_5_a_member_waits_for_a_foreign_registration_of_its_id_and_never_touches_it(
    connect: Connect, run: Run, orders: Partitions
) -> None:
    raw, path = connect().client, "/consumers/billing/ids/anne"
    data = b'{"version":1,"subscription":{},"pattern":"static"}'
    raw.create(path, data, ephemeral=True, makepath=True)
    before, anne = raw.get(path), run(id="anne")
    time.sleep(100)
    assert (anne.member.assignment, raw.get(path)) == (frozenset(), before)
    raw.delete(path)
    anne.until_holding(orders)


# 7: the wall clock


def test_failure_7_members_continue_while_the_wall_clock_jumps_by_a_day(
    world: World, run: Run, orders: Partitions
) -> None:
    first, second = run(reconcile_every=5.0), run(reconcile_every=5.0)
    generations = [one.until_holding_some(3).generation for one in (first, second)]
    for jump in (86_400.0, -2 * 86_400.0, 86_400.0):
        world.machine.wall += jump
        time.sleep(30)
        for generation in generations:
            assert generation.active
            generation.commit(dict.fromkeys(generation.partitions, 10))
    assert first.told(EventKind.LOST) == second.told(EventKind.LOST) == []


# Starts without a server


@pytest.mark.parametrize("make", [Member, LoneMember])
def test_a_member_that_starts_while_disconnected_joins_after_the_reconnect(
    world: World, connect: Connect, orders: Partitions, make: Any
) -> None:
    registry = connect("far", session_timeout=10.0)
    world.cut("far")
    with Running(registry if make is LoneMember else registry.group("billing"), make=make) as a:
        a.until_told(EventKind.FAILED)
        world.heal("far")
        a.until_holding(orders)
    assert a.errors == []


def test_a_member_that_never_joined_has_nothing_to_leave(
    world: World, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    registry = connect("far", session_timeout=10.0)
    world.cut("far")
    with Running(registry.group("billing")) as a:
        a.until_told(EventKind.FAILED)
    assert "could not leave" not in caplog.text
    assert a.events[-1].kind is EventKind.LEFT
    world.heal("far")


# Unknown outcomes


def cut_after(world: World, process: str, *parts: bytes) -> threading.Event:
    """Let the next write of a process with these bytes arrive, and cut the process off before the reply."""
    deliver, arrived = world.deliver, threading.Event()

    def deliver_and_cut(socket: Any, request: bytes) -> None:
        deliver(socket, request)
        is_write = int.from_bytes(request[4:8], "big", signed=True) in WRITES
        if socket.process == process and is_write and not arrived.is_set() and all(part in request for part in parts):
            arrived.set()
            world.cut(process)

    world.deliver = deliver_and_cut  # type: ignore[method-assign]
    return arrived


@pytest.fixture
def far(connect: Connect) -> Registry:
    """Its session outlives that it is cut off."""
    return connect("far", session_timeout=60.0)


def until_outcome_is_unknown(running: Running) -> None:
    """The connection was lost, or the request has timed out before."""
    words = ("not restored in time", "no reply to")
    running.until(
        lambda: any(word in event.detail for event in running.events for word in words), "the unknown outcome"
    )


@pytest.mark.parametrize("session_ends", [False, True])
def test_the_last_commit_before_a_release_is_tried_again_without_an_answer_unless_the_session_has_ended(
    world: World, far: Registry, run: Run, orders: Partitions, monkeypatch: pytest.MonkeyPatch, session_ends: bool
) -> None:
    """Otherwise the next owner would read again what is finished, although the claims have not ended."""
    a = run(on=far, id="a").until_holding(orders)
    attempts: list[int] = []
    commit = Membership.commit_marked

    def commit_marked(membership: Membership, generation: Generation, among: Partitions) -> None:
        attempts.append(generation.number)
        if len(attempts) == 1 and not session_ends:
            raise NotConnectedError("no answer")
        if len(attempts) == 1:
            world.server.expire(world.server.sessions[far.session_id or 0])
        commit(membership, generation, among)

    monkeypatch.setattr(Membership, "commit_marked", commit_marked)
    for at in orders:
        a.generation.mark(at, 5)
    b = run(id="b")
    if session_ends:
        a.until_told(EventKind.LOST)
        assert attempts.count(attempts[0]) == 1
    else:
        b.until_holding(SECOND)
        assert set(b.generation.partitions.values()) == {5}


MAY_PLAN = [True]


def gated(members: Members) -> Assignment:
    """Assign the last partition to "z", all others to "m"."""
    while not MAY_PLAN[0]:
        time.sleep(0.1)
    second = "z" if "z" in members.streams else "m"
    return {at: Stream(second if at == P1 else "m", 0) for at in members.in_order("orders")}


def test_a_member_does_not_work_on_a_partition_whose_release_had_an_unknown_outcome_while_it_waits_for_a_plan(
    world: World, far: Registry, run: Run, client: Any
) -> None:
    plant_topic(client, "orders", 2)
    options: dict[str, Any] = {"assignors": [gated], "rebalance_timeout": 300.0, "reconcile_every": 300.0}
    m = run(on=far, id="m", **options)
    m.until(lambda: client.exists("/consumers/billing/ids/m"), "its registration")
    planner = run(id="a", **options)
    planner.expect(InvalidOptionError)  # when the others have left
    m.until_holding(P0, P1)
    released = cut_after(world, "far", b"/owners/orders/1")
    z = run(id="z", **options)
    z.expect(InvalidOptionError)
    assert released.wait(LONGEST)
    z.until_holding(P1)
    until_outcome_is_unknown(m)
    MAY_PLAN[0] = False
    run(id="w", **options).expect(InvalidOptionError)
    m.until(lambda: client.exists("/consumers/billing/ids/w"), "the next rebalance")
    count = len(m.generations)
    world.heal("far")
    m.until(lambda: len(m.generations) > count, "a generation")
    MAY_PLAN[0] = True
    m.until_holding(P0)
    assert [set(generation.partitions) for generation in m.generations[count:]] == [{P0}]
    assert z.generation.active
