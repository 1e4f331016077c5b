"""Offsets of members: outside of the log, refused by the server, moved by others, and back after a restore."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.security import make_acl

from tests.simulation.world import World
from zkgroups import (
    CommittedOffset,
    Consumergroup,
    EventKind,
    Generation,
    MalformedNode,
    Member,
    Registry,
    StartAt,
    TopicPartition,
)
from zkgroups.consumer.generation_lifecycle import SeenOffsets
from zkgroups.exceptions import (
    CommittedOutOfRangeError,
    InvalidOptionError,
    NoPermissionError,
    NotClaimedError,
    OffsetWouldGoBackError,
    PastLogEndError,
)

from .conftest import Connect, Partitions, Run, Running, ats, committed, plant_topic

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def offset_path(at: TopicPartition) -> str:
    return f"/consumers/billing/offsets/{at}"


@pytest.fixture
def two(client: Any, group: Consumergroup) -> None:
    """Two partitions with committed offsets: the first is outside of logs that are shorter."""
    plant_topic(client, "orders", 2)
    group.offsets.set_many({P0: 5_000, P1: 7})


def only_generation(one: Running) -> Generation:
    return one.until_holding(P0, P1).generation


def start_of(generation: Generation, log_start: int, log_end: int) -> int:
    """Return where to start if a later reading shows the same log."""
    with pytest.raises(PastLogEndError):
        generation.start_offset(P0, log_start=log_start, log_end=log_end)
    time.sleep(2)
    return generation.start_offset(P0, log_start=log_start, log_end=log_end)


# A committed offset outside of the log


@pytest.mark.parametrize(("policy", "chosen"), [("earliest", 3), ("latest", 20)])
@pytest.mark.usefixtures("two")
def test_out_of_range_moves_an_offset_past_the_end_of_the_log_once_and_reports_it_once(
    run: Run, group: Consumergroup, caplog: pytest.LogCaptureFixture, policy: str, chosen: int
) -> None:
    one = run(out_of_range=policy)
    generation = only_generation(one)
    assert start_of(generation, 3, 20) == generation.start_offset(P0, log_start=3, log_end=20) == chosen
    assert generation.start_offset(P1, log_start=3, log_end=20) == 7
    assert generation.marked == {P0: chosen}  # it is committed even if there is nothing to read
    for call in (lambda: generation.commit({P0: chosen - 1}), lambda: generation.mark(P0, chosen - 1)):
        with pytest.raises(OffsetWouldGoBackError):
            call()
    generation.mark(P0, chosen + 1)
    generation.commit()
    assert committed(group) == {P0: chosen + 1, P1: 7}
    for offsets in ({P0: chosen}, {P1: 6}):
        with pytest.raises(OffsetWouldGoBackError):
            generation.commit(offsets)
    one.close()
    [event] = one.told(EventKind.RESET)
    assert event.at == {P0}
    assert event.detail == f"committed offset 5000 is outside of the log (3 to 20); starting at {chosen}"
    [logged] = [record for record in caplog.records if "5000" in record.getMessage()]
    assert (logged.levelname, logged.name) == ("WARNING", "zkgroups.member")


@pytest.mark.usefixtures("two")
def test_an_offset_moves_back_only_from_a_value_outside_of_the_log(run: Run, group: Consumergroup, client: Any) -> None:
    one = run(out_of_range="earliest")
    one.expect(OffsetWouldGoBackError)
    generation = only_generation(one)
    start_of(generation, 0, 20)
    client.set(offset_path(P0), b"6000")  # by another client, since then
    with pytest.raises(OffsetWouldGoBackError):
        generation.commit()
    assert committed(group)[P0] == 6_000


@pytest.mark.usefixtures("two")
def test_without_a_policy_an_offset_outside_of_the_log_is_an_error_that_names_the_option(
    run: Run, group: Consumergroup
) -> None:
    error = run(work=lambda generation: generation.start_offset(P0, log_start=0, log_end=20)).until_error(
        CommittedOutOfRangeError
    )
    assert (error.group, error.at, error.committed, error.start, error.end) == ("billing", P0, 5_000, 0, 20)
    assert 'pass out_of_range="earliest" or "latest"' in str(error)
    assert "`zkgroups offsets reset billing`" in str(error)
    assert committed(group)[P0] == 5_000


@pytest.mark.parametrize(("start_at", "expected"), [(StartAt.EARLIEST, [0, 0, 600]), (StartAt.LATEST, [100, 100, 600])])
def test_without_a_committed_offset_start_at_chooses_an_offset_of_the_log_once(
    run: Run, client: Any, start_at: StartAt, expected: list[int]
) -> None:
    plant_topic(client, "orders", 2)
    generation = only_generation(run(start_at=start_at))
    logs = [(0, 100), (0, 900), (600, 900)]
    assert [generation.start_offset(P0, log_start=start, log_end=end) for start, end in logs] == expected
    assert generation.marked == {}
    generation.mark(P0, 650)
    assert generation.start_offset(P0, log_start=600, log_end=900) == 650


@pytest.mark.parametrize(("log_start", "log_end"), [(5, 4), (-1001, 4), ("0", 4)])
def test_an_impossible_log_range_is_refused(run: Run, orders: Partitions, log_start: Any, log_end: Any) -> None:
    generation = run().until_holding(orders).generation
    with pytest.raises(InvalidOptionError):
        generation.start_offset(P0, log_start=log_start, log_end=log_end)
    with pytest.raises(NotClaimedError):
        generation.start_offset(TopicPartition("refunds", 0), log_start=0, log_end=1)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.usefixtures("two")
def test_start_offset_returns_the_position_of_the_generation_at_every_call(
    run: Run, group: Consumergroup, commits: bool
) -> None:
    generation = only_generation(run(out_of_range="latest"))
    assert generation.start_offset(P0, log_start=4_000, log_end=9_000) == 5_000
    generation.mark(P0, 7_000)
    if commits:
        generation.commit()
    assert generation.start_offset(P0, log_start=6_000, log_end=10_000) == 7_000
    generation.commit()
    assert committed(group)[P0] == 7_000


@pytest.mark.parametrize(("policy", "chosen"), [("earliest", 8_000), ("latest", 10_000)])
@pytest.mark.usefixtures("two")
def test_a_mark_below_the_log_start_only_moves_forward(run: Run, policy: str, chosen: int) -> None:
    one = run(out_of_range=policy)
    generation = only_generation(one)
    generation.mark(P0, 7_000)
    assert generation.start_offset(P0, log_start=8_000, log_end=10_000) == chosen
    generation.mark(P0, 7_100)  # of a message that was fetched before
    assert generation.marked == {P0: chosen}
    with pytest.raises(OffsetWouldGoBackError):
        generation.commit({P0: 100})
    one.close()
    [event] = one.told(EventKind.RESET)
    assert event.detail == f"marked offset 7000 is outside of the log (8000 to 10000); starting at {chosen}"


# A log end that may be stale


@pytest.mark.usefixtures("two")
def test_a_log_end_read_before_the_last_commit_moves_nothing(run: Run) -> None:
    generation = only_generation(run(out_of_range="earliest"))
    with pytest.raises(PastLogEndError, match="read the log end from a broker again") as caught:
        generation.start_offset(P0, log_start=0, log_end=4_999)
    error = caught.value
    assert (error.group, error.at, error.position, error.end) == ("billing", P0, 5_000, 4_999)
    assert generation.start_offset(P0, log_start=0, log_end=5_000) == 5_000
    assert generation.marked == {}


@pytest.mark.usefixtures("two")
def test_a_worker_that_fails_on_a_stale_log_end_starts_again_and_moves_once_the_end_is_confirmed(run: Run) -> None:
    def work(generation: Generation) -> None:
        generation.start_offset(P0, log_start=0, log_end=20)
        generation.wait()

    one = run(work=work, out_of_range="earliest")
    one.until_told(EventKind.RESET)
    assert len(one.generations) > 1
    assert one.errors == []


# Commits that are refused

MANY = 1_100
"""More partitions than Python allows nested calls."""


@pytest.mark.parametrize("by_others", ["moved ahead", "owners deleted"])
def test_a_member_with_many_refused_offsets_leaves_or_continues(
    registry: Registry, group: Consumergroup, by_others: str
) -> None:
    client, everything = registry.client, ats("orders", *range(MANY))
    plant_topic(client, "orders", MANY)
    with Member(group, ["orders"], id="a", reconcile_every=60.0) as member:
        generation = member.next_generation(40)
        assert generation is not None
        generation.commit(dict.fromkeys(everything, 5))
        for at in everything:
            generation.mark(at, 10)
        transaction = client.transaction()
        for at in everything:
            if by_others == "moved ahead":
                transaction.set_data(offset_path(at), b"100")
            else:
                transaction.delete(f"/consumers/billing/owners/{at}")
        assert not [each for each in transaction.commit() if isinstance(each, Exception)]
        if by_others == "owners deleted":
            assert generation.wait(60)
            following = member.next_generation(40)
            assert following is not None
            assert following.partitions.keys() == everything
            return
        member.close()
        with pytest.raises(OffsetWouldGoBackError, match=rf"and {MANY - 1} more") as refused:
            member.next_generation(0)
    assert {refused.value.at, *refused.value.also} == everything
    assert (group.instances(), list(group.owners())) == ([], [])
    assert set(committed(group).values()) == {100}


@pytest.mark.usefixtures("two")
def test_a_member_continues_if_another_client_has_committed_further(run: Run, client: Any) -> None:
    """As a suspended Scala member does when it continues."""
    one = run(auto_commit_every=1.0)
    generation = only_generation(one)
    generation.commit({P1: 8})
    client.set(offset_path(P1), b"10")
    generation.mark(P1, 9)
    one.until(lambda: any("would go back" in event.detail for event in one.events), "the refused commit")
    generation.mark(P1, 12)
    one.until(lambda: client.get(offset_path(P1))[0] == b"12", "the commit")
    plant_topic(client, "orders", 3)
    one.until_holding(ats("orders", 0, 1, 2))  # errors are raised between two generations
    assert one.errors == []


@pytest.mark.parametrize(("written", "then"), [(b"10", 20), (b"5", 20), (b"30", 30)])
def test_a_foreign_write_of_one_offset_does_not_prevent_the_commit_of_others_before_a_handover(
    run: Run, group: Consumergroup, client: Any, orders: Partitions, written: bytes, then: int
) -> None:
    a = run().until_holding(orders)
    a.generation.commit(dict.fromkeys(orders, 10))
    for at in orders:
        a.generation.mark(at, 20)
    client.set(offset_path(P0), written)
    if then != 20:
        a.expect(OffsetWouldGoBackError)
    a.close()
    assert committed(group) == {**dict.fromkeys(orders, 20), P0: then}


@pytest.mark.usefixtures("two")
def test_an_offset_that_is_always_overwritten_is_reported_and_blocks_no_other_commit(
    world: World, run: Run, group: Consumergroup, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member tries twice. Here another client writes just before each of its transactions."""
    one = run(auto_commit_every=3600.0)
    generation = only_generation(one)
    generation.commit({P0: 5_001, P1: 8})
    node, handle, offsets = world.server.nodes[offset_path(P0)], world.server._multi, iter(range(5_002, 5_100))

    def overwrite_first(connection: Any, reader: Any, now_ms: int) -> bytes:
        if b"offsets/orders/0" in reader._data:
            node.data, node.version = b"%d" % next(offsets), node.version + 1
        return handle(connection, reader, now_ms)

    monkeypatch.setattr(world.server, "_multi", overwrite_first)
    generation.mark(P0, 5_500)
    generation.mark(P1, 50)
    one.member.close()
    [failed] = [event.detail for event in one.told(EventKind.FAILED)]
    assert f"offset of {P0} was changed by another client and is now 5003" in failed
    assert committed(group) == {P0: 5_003, P1: 50}


@pytest.mark.parametrize("denied", ["refunds/0", "refunds"])
@pytest.mark.usefixtures("two")
def test_a_forbidden_offset_does_not_prevent_the_commit_of_others_and_is_reported_once(
    run: Run, group: Consumergroup, client: Any, caplog: pytest.LogCaptureFixture, denied: str
) -> None:
    denied = f"/consumers/billing/offsets/{denied}"
    plant_topic(client, "refunds", [int(denied.endswith("refunds"))])  # of the directory
    client.create("/consumers/billing/offsets/refunds/0", b"3", makepath=True)
    client.set_acls(denied, [make_acl("world", "anyone", read=True, admin=True)])

    def work(generation: Generation) -> None:
        for at in generation.partitions:
            generation.mark(at, 5_500)
        generation.wait()

    member = run(["orders", "refunds"], work=work, auto_commit_every=0.1)
    member.until(lambda: committed(group).get(P0) == committed(group).get(P1) == 5_500)
    member.until(lambda: len(member.told(EventKind.FAILED)) > 3)
    member.expect(NoPermissionError)  # raised between two generations
    member.close()
    assert caplog.text.count(f"could not commit an offset: no permission on {denied}") == 1
    assert len(member.errors) == 1, "the same error is raised once"


@pytest.mark.usefixtures("two")
def test_a_commit_after_the_registration_was_deleted_is_refused_like_one_without_a_claim(run: Run, client: Any) -> None:
    """The worker deletes it until a commit comes before the member has registered again."""
    worked = threading.Event()

    def work(generation: Generation) -> None:
        for offset in range(6_000, 6_000 if worked.is_set() else 7_000):
            worked.set()
            with suppress(NoNodeError):
                client.delete("/consumers/billing/ids/a")
            generation.commit(dict.fromkeys(generation.partitions, offset))
        generation.wait()

    a = run(id="a", work=work)
    a.until(lambda: len(a.generations) > 1, "another generation")
    a.until_holding(P0, P1)
    assert a.errors == []


# Offsets that went back


def found(at: TopicPartition, offset: int) -> CommittedOffset:
    return CommittedOffset("billing", at, offset)


def test_only_lower_or_missing_offsets_of_the_same_topic_are_reported_each_once() -> None:
    """Not those of other members, nor own commits, nor unreadable ones. The report of a member comes later."""
    zxids = {"orders": 5}
    seen = SeenOffsets(zxids.get)
    nothing = (frozenset[TopicPartition](), "")
    assert seen.read({P0: found(P0, 10), P1: None}) == nothing
    seen.committed({P0: 20, P1: 3})
    assert seen.read({P0: found(P0, 19), P1: None}) == ({P0, P1}, "orders/0 from 20 to 19, orders/1 from 3 to nothing")
    assert seen.read({P0: found(P0, 19), P1: None}) == nothing
    assert seen.read({P0: found(P0, 30)}) == nothing
    seen.committed({P0: 7})  # `start_offset` allows a member to go back
    assert seen.read({P0: found(P0, 7)}) == nothing
    assert seen.read({P0: MalformedNode("/x", b"", "not a number")}) == nothing
    zxids["orders"] = 9
    assert seen.read({P0: None}) == nothing


def test_failure_19_a_member_of_a_restored_server_starts_over_and_reports_the_offsets_that_went_back(
    world: World, connect: Connect, client: Any, group: Consumergroup, caplog: pytest.LogCaptureFixture
) -> None:
    plant_topic(client, "orders", 2)
    group.offsets.set(P0, 10)
    backup = world.server.back_up()
    with Running(connect("far", session_timeout=20.0).group("billing"), id="anna") as anna:
        first = only_generation(anna)
        first.commit({P0: 100, P1: 7})
        world.stop()
        world.server.restore(backup)
        world.start()
        time.sleep(100)
        assert not first.active
        assert len(anna.generations) == 1, "the server is older than what the member has seen"
        world.server.zxid += 1_000
        anna.until(lambda: anna.generation is not first, "another generation")
        assert only_generation(anna).partitions == {P0: 10, P1: "earliest"}
        kinds = [event.kind for event in anna.events]
        assert kinds.index(EventKind.LOST) < kinds.index(EventKind.BACK)
        [back] = anna.told(EventKind.BACK)
        assert back.at == {P0, P1}
        assert "orders/0 from 100 to 10, orders/1 from 7 to nothing; somebody moved them" in back.detail
        assert caplog.text.count("finds that committed offsets went back: orders/0 from 100 to 10") == 1
        anna.generation.commit({P0: 11})
    assert anna.told(EventKind.BACK) == [back]
