"""Members on a real server: how they share, what they hear of others, and how they come to an end."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from zkgroups import Consumergroup, EventKind, Generation, Member, Registry, TopicPartition
from zkgroups.core.znodes.states import GroupState, InstanceState
from zkgroups.core.znodes.values import Dialect, Registration
from zkgroups.exceptions import (
    GenerationEndedError,
    InvalidNameError,
    InvalidOptionError,
    MemberClosedError,
    OffsetWouldGoBackError,
)
from zkgroups.testing import TcpProxy, expire_session

from .conftest import Run, Running, ats, plant_topic

pytestmark = pytest.mark.zookeeper

P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))
Partitions = frozenset[TopicPartition]


# Options


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"release_timeout": 0}, "release_timeout is 0, but it must be a number of seconds above 0"),
        ({"release_timeout": float("nan")}, "release_timeout is nan"),
        ({"join_backoff": True}, "join_backoff is True"),
        ({"reconcile_every": 90_000}, "at most 86400"),
        ({"rebalance_timeout": 4.0}, r"rebalance_timeout is 4.0, but it must be more than release_timeout \(4\)"),
        ({"auto_commit_every": -1}, "auto_commit_every is -1"),
        ({"max_idle": "soon"}, "max_idle is 'soon'"),
        ({"start_at": "begin"}, "start_at is 'begin', but it must be one of earliest, latest"),
        ({"out_of_range": "skip"}, "out_of_range is 'skip', but it must be one of error, earliest, latest"),
        ({"assignors": []}, r"assignors is \[\]"),
        ({"assignors": "range"}, "assignors is 'range'"),
        ({"assignors": ["cooperative"]}, "assignors is 'cooperative', but it must be a function, or one of range"),
        ({"foreign_assignor": "sticky"}, "foreign_assignor is 'sticky'"),
        ({"on_lost": 3}, "on_lost is 3, but it must be a function"),
        ({"pattern": "o.*"}, "pattern is 'o.*', but give either topics or a pattern"),
        ({"streams": 0}, "streams of 'orders' is 0, but it must be a whole number between 1 and 10000"),
        ({"streams": 2_000_000_000}, "streams of 'orders' is 2000000000"),
        ({"assignors": [lambda _: {}]}, "it must be a function with a unique name"),
        ({"topics": (), "pattern": ""}, "pattern is '', but it must not be empty"),
        ({"topics": "orders,refunds"}, "topic is 'orders,refunds', but names of topics consist of letters"),
        ({"topics": ()}, "topics is {}, but a member needs at least one topic, or a pattern"),
        ({"topics": 7}, "topics is 7"),
        ({"topics": {"orders": 1.5}}, "streams of 'orders' is 1.5"),
    ],
)
def test_an_option_out_of_bounds_is_refused_at_once_by_name_value_and_bound(
    group: Consumergroup, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidOptionError, match=told):
        Member(group, **{"topics": ["orders"], **options})
    assert not group.exists()


def test_a_member_without_a_group_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="group is not given"):
        Member(None, ["orders"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a/b", ""])
def test_names_are_checked_before_anything_is_sent(group: Consumergroup, name: str) -> None:
    with pytest.raises(InvalidNameError):
        Member(group, [name])
    with pytest.raises(InvalidNameError):
        Member(group, ["orders"], id=name)
    assert not group.exists()


def test_nothing_is_registered_before_it_is_started(group: Consumergroup, orders: Partitions) -> None:
    member = Member(group, ["orders"])
    assert not group.exists()
    member.close()
    assert not group.exists()


# Sharing


def test_one_member_has_everything_and_tells_in_its_registration_who_it_is(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    one = run(id="a").until_holding(orders)
    [instance] = group.instances()
    assert isinstance(instance.registration, Registration)
    assert instance.registration.dialect is Dialect.ZKGROUPS
    assert instance.registration.assignors == ("range", "roundrobin", "sticky")
    assert {owner.id for owner in group.owners()} == {"a-0"}  # type: ignore[union-attr]
    assert group.describe().state is GroupState.STABLE
    assert one.member.state is InstanceState.STABLE


def test_who_joins_gets_its_share_and_who_leaves_gives_it_back(run: Run, orders: Partitions) -> None:
    a = run(id="a").until_holding(orders)
    b = run(id="b").until_holding(ats("orders", 3, 4, 5))
    a.until_holding(ats("orders", 0, 1, 2))
    b.close()
    a.until_holding(orders)
    assert [len(generation.partitions) for generation in a.generations] == [6, 3, 6]


def test_a_registration_without_a_session_gets_no_partition_of_a_group_of_ours(
    run: Run, orders: Partitions, group: Consumergroup, registry: Registry
) -> None:
    """Also with a strategy that the lowest id plans for all."""
    group.create()
    gone = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":1795255543}'
    registry.client.create(group.paths.instance("0-gone"), gone)
    a = run(id="a", assignors=["sticky"]).until_holding(orders)
    run(id="b", assignors=["sticky"])
    a.until(lambda: len(a.member.assignment) == 3)


def test_streams_are_shares(run: Run, orders: Partitions) -> None:
    a = run({"orders": 2}, id="a")
    b = run({"orders": 1}, id="b").until_holding(ats("orders", 4, 5))
    a.until_holding(ats("orders", 0, 1, 2, 3))
    assert set(a.generations[-1].streams.values()) == {0, 1}
    assert {owner.id for owner in b.member.group.owners()} == {"a-0", "a-1", "b-0"}  # type: ignore[union-attr]


def test_members_with_one_number_follow_one_plan(run: Run, orders: Partitions) -> None:
    members = [run(id=id) for id in "abc"]
    for number, one in enumerate(members):
        one.until_holding(ats("orders", 2 * number, 2 * number + 1))
    assert len({one.generations[-1].number for one in members}) == 1


def test_plan_numbers_never_decrease(run: Run, orders: Partitions) -> None:
    a = run(id="a", assignors=["sticky", "range"])
    for _ in range(2):
        with Running(a.member.group, id="b", assignors=["sticky", "range"]) as b:
            b.until(lambda: len(b.member.assignment) == 3)
        with Running(a.member.group, id="c", assignors=["range"]) as c:
            c.until_holding(ats("orders", 3, 4, 5))
        a.until_holding(orders)
    numbers = [generation.number for generation in a.generations]
    assert numbers == sorted(numbers)
    assert len(numbers) >= 4


def test_who_keeps_what_it_has_is_not_interrupted(run: Run, orders: Partitions) -> None:
    """Range gives the first of three the same two partitions as the first of four."""
    a, b, c = (run(id=id) for id in "abc")
    for number, one in enumerate((a, b, c)):
        one.until_holding(ats("orders", 2 * number, 2 * number + 1))
    generation, stats = a.generations[-1], a.member.stats
    with Running(a.member.group, id="zzz") as late:
        late.until_holding(P5)
        c.until_holding(TopicPartition("orders", 4))
    c.until_holding(ats("orders", 4, 5))
    a.until(lambda: a.member.stats.looks >= stats.looks + 2)
    assert a.generations[-1] is generation
    assert generation.active
    assert a.member.stats.interruptions == stats.interruptions


def test_sticky_moves_no_more_than_it_must(run: Run, orders: Partitions) -> None:
    options = {"assignors": ["sticky"]}
    a = run(id="a", **options).until_holding(orders)
    b = run(id="b", **options)
    b.until(lambda: len(b.member.assignment) == 3)
    a.until(lambda: len(a.member.assignment) == 3)
    c = run(id="c", **options)
    c.until(lambda: len(c.member.assignment) == 2)
    a.until(lambda: len(a.member.assignment) == 2)
    b.until(lambda: len(b.member.assignment) == 2)
    of_a, of_b = a.member.assignment, b.member.assignment
    c.close()
    for one in (a, b):
        one.until(lambda one=one: len(one.member.assignment) == 3)
    assert of_a <= a.member.assignment
    assert of_b <= b.member.assignment


def test_a_member_that_keeps_its_share_under_sticky_keeps_its_generation(run: Run, orders: Partitions) -> None:
    """Of three with two each, one gives one to a fourth: the others go on."""
    options = {"assignors": ["sticky"]}
    members = [run(id=id, **options) for id in "abc"]
    for one in members:
        one.until(lambda one=one: len(one.member.assignment) == 2)
        one.until_holding(one.member.assignment)
    before = [(one.generations[-1], one.member.assignment, one.member.stats.interruptions) for one in members]
    late = run(id="d", **options)
    late.until(lambda: len(late.member.assignment) == 1)
    kept = [(one, was) for one, was in zip(members, before, strict=True) if one.member.assignment == was[1]]
    assert len(kept) == 2
    for one, (generation, _assignment, interruptions) in kept:
        assert one.generations[-1] is generation
        assert generation.active
        assert one.member.stats.interruptions == interruptions


def test_members_that_like_different_strategies_agree_on_what_the_lowest_id_likes_best(
    run: Run, registry: Registry, orders: Partitions
) -> None:
    plant_topic(registry.client, "refunds", 3)
    both = ["orders", "refunds"]
    a = run(both, id="a", assignors=["roundrobin", "range"])
    b = run(both, id="b", assignors=["range", "roundrobin"])
    b.until(lambda: len(b.member.assignment) == 4)
    a.until(lambda: len(a.member.assignment) == 5)  # range would give five to a as well, but others
    assert a.member.assignment != ats("orders", 0, 1, 2) | ats("refunds", 0, 1)


def test_any_function_shares_when_all_know_it(run: Run, orders: Partitions) -> None:
    a = run(id="a", assignors=[everything_to_the_last])
    b = run(id="b", assignors=[everything_to_the_last]).until_holding(orders)
    a.until_holding()
    b.close()
    a.until_holding(orders)


def everything_to_the_last(members: Any) -> Any:
    from zkgroups import Stream

    last = max(members.streams)
    return {at: Stream(last, 0) for topic in members.topics for at in members.in_order(topic)}


def test_more_members_than_partitions_leave_some_waiting_and_ready(run: Run, registry: Registry) -> None:
    plant_topic(registry.client, "orders", 1)
    a = run(id="a").until_holding(P0)
    b = run(id="b").until_holding()
    a.close()
    b.until_holding(P0)


def test_members_of_many_sessions_and_of_one_share_alike(
    run: Run, group: Consumergroup, connect: Callable[..., Registry], orders: Partitions
) -> None:
    members = [run(id="a"), run(id="b"), run(id="c", on=connect().group("billing"))]
    for number, one in enumerate(members):
        one.until_holding(ats("orders", 2 * number, 2 * number + 1))


# Callbacks


def test_callbacks_hear_what_comes_and_goes_and_may_be_coroutines(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    heard: list[tuple[str, Partitions]] = []
    held: list[int] = []

    async def assigned(partitions: Partitions) -> None:
        heard.append(("assigned", partitions))

    def revoked(partitions: Partitions) -> None:
        held.append(sum(owner.id == "a-0" for owner in group.owners()))  # type: ignore[union-attr]
        heard.append(("revoked", partitions))

    a = run(id="a", on_assigned=assigned, on_revoked=revoked).until_holding(orders)
    b = run(id="b").until_holding(ats("orders", 3, 4, 5))
    b.close()
    a.until_holding(orders)
    later = ats("orders", 3, 4, 5)
    assert heard == [("assigned", orders), ("revoked", later), ("assigned", later)]
    assert held == [6]


def test_a_callback_that_fails_is_logged_with_group_and_partitions_and_stops_nothing(
    run: Run, orders: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(partitions: Partitions) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        run(on_assigned=fail).until_holding(orders)
    [record] = [record for record in caplog.records if "callback" in record.getMessage()]
    assert "billing" in record.getMessage()
    assert "orders" in record.getMessage()
    assert record.exc_info is not None


def test_a_lost_session_is_told_once_and_everything_comes_back_in_a_new_one(
    connect: Callable[..., Registry], orders: Partitions
) -> None:
    lost: list[Partitions] = []
    revoked: list[Partitions] = []
    registry = connect()
    with Running(registry.group("billing"), id="a", on_lost=lost.append, on_revoked=revoked.append) as one:
        one.until_holding(orders)
        before, session = one.generations[-1], registry.session_id
        expire_session(registry.client)
        one.until(lambda: lost)
        one.until(lambda: one.generations[-1] is not before)
        one.until_holding(orders)
        assert lost == [orders]
        assert revoked == []
        assert not before.active
        assert registry.session_id != session
        with pytest.raises(GenerationEndedError):
            before.commit({P0: 5})


# Somebody else's hand


def test_a_partition_that_an_administrator_takes_away_is_lost_and_claimed_anew(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    lost: list[Partitions] = []
    one = run(id="a", reconcile_every=0.2, on_lost=lost.append).until_holding(orders)
    group.release(P0, expected_owner="a")
    one.until(lambda: lost)
    one.until_holding(orders)
    assert lost == [frozenset({P0})]


def test_a_registration_that_was_deleted_is_made_anew(
    run: Run, group: Consumergroup, registry: Registry, orders: Partitions
) -> None:
    one = run(id="a").until_holding(orders)
    registry.client.delete("/consumers/billing/ids/a")
    one.until(lambda: registry.client.exists("/consumers/billing/ids/a"))
    one.until_holding(orders)
    one.generations[-1].commit({P0: 1})
    assert group.offsets.fetch(P0).offset == 1  # type: ignore[union-attr]


def test_an_offset_that_would_go_back_is_an_error_of_the_worker(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    group.offsets.set(P0, 100)
    one = run(work=lambda generation: generation.commit({P0: 50}))
    one.until(lambda: one.errors)
    assert isinstance(one.errors[0], OffsetWouldGoBackError)
    assert group.offsets.fetch(P0).offset == 100  # type: ignore[union-attr]


# Coming to an end


def test_closing_twice_and_iterating_after_it_says_so(group: Consumergroup, orders: Partitions) -> None:
    member = Member(group, ["orders"]).start()
    assert member.next_generation(20) is not None
    member.close()
    member.close()
    with pytest.raises(MemberClosedError, match="of group 'billing' is closed"):
        next(member.generations())
    with pytest.raises(MemberClosedError):
        member.next_generation()
    with pytest.raises(MemberClosedError):
        member.start()
    assert group.instances() == []
    assert list(group.owners()) == []


@pytest.mark.parametrize("where", ["worker", "body", "callback"])
def test_closing_from_within_does_not_wait_for_itself(group: Consumergroup, orders: Partitions, where: str) -> None:
    member = Member(group, ["orders"], release_timeout=10, on_assigned=lambda _: where == "callback" and member.close())

    def work(generation: Generation) -> None:
        if where == "worker":
            member.close()

    with member:
        for generation in member.generations():
            if where == "body":
                member.close()
            generation.start(work)
            generation.wait(20)
    assert member.stats.interruptions <= 1
    assert group.instances() == []


PROGRAM = """
import signal, sys
from zkgroups import Member, Registry

with Registry.connect(sys.argv[1]) as registry, Member(registry.group("billing"), ["orders"]) as member:
    signal.signal(signal.SIGTERM, lambda *_: member.stop())
    for generation in member.generations():
        generation.mark(next(iter(generation.partitions)), 7)
        print("working", flush=True)
        generation.wait()
print("left", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM to stop()", "Ctrl-C"])
def test_a_signal_makes_it_commit_and_leave(
    group: Consumergroup, zookeeper_hosts: str, orders: Partitions, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", PROGRAM, zookeeper_hosts]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(number)
        rest = process.stdout.read()
    assert group.instances() == []
    assert list(group.owners()) == []
    assert group.offsets.fetch(P0).offset == 7  # type: ignore[union-attr]
    assert rest == ("left\n" if number is signal.SIGTERM else "")


def test_a_partition_that_stays_keeps_the_stream_that_its_owner_node_names(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    a = run({"orders": 2}, id="a").until_holding(orders)
    assert a.generations[-1].streams[TopicPartition("orders", 2)] == 0
    run({"orders": 1}, id="b").until_holding(ats("orders", 4, 5))
    a.until_holding(ats("orders", 0, 1, 2, 3))  # now range gives the third to the second stream
    streams = {at: f"a-{stream}" for at, stream in a.generations[-1].streams.items()}
    assert {owner.at: owner.id for owner in group.owners() if owner.id.startswith("a")} == streams  # type: ignore[union-attr]


def test_no_work_is_handed_out_while_there_is_no_connection(
    connect: Callable[..., Registry], zookeeper: Any, zookeeper_hosts: str, orders: Partitions
) -> None:
    chroot = zookeeper_hosts.partition("/")[2]
    with TcpProxy(zookeeper.address) as proxy:
        registry = connect(f"{proxy.address}/{chroot}")
        assigned, suspended = threading.Event(), threading.Event()
        registry.client.add_listener(lambda _state: suspended.set())
        with Member(registry.group("billing"), ["orders"], on_assigned=lambda _: assigned.set()) as member:
            assert assigned.wait(20)
            proxy.refuse()
            proxy.cut()
            assert suspended.wait(20)
            assert member.next_generation(0.2) is None
            proxy.accept()
            generation = member.next_generation(20)
            assert generation is not None
            assert generation.active
            assert not generation.paused
            assert member.stats.generations == 1


def test_trouble_that_is_over_is_not_told_any_more(group: Consumergroup) -> None:
    """A function that knows the partitions fails for a while, and works again, while nobody asks."""
    answers: list[Any] = [[0], LookupError("no broker"), LookupError("no broker"), [0], [0, 1]]

    def partitions(_topic: str) -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Member(group, ["orders"], partitions=partitions, reconcile_every=0.05, join_backoff=0.05) as member:
        first = member.next_generation(20)
        assert first is not None
        assert first.wait(20)
        second = member.next_generation(20)
        assert second is not None
        assert second.partitions.keys() == ats("orders", 0, 1)
        assert member.stats.failures == 2


def test_trouble_that_goes_on_is_told_each_time_one_asks(group: Consumergroup) -> None:
    def partitions(_topic: str) -> Any:
        raise LookupError("no broker")

    with Member(group, ["orders"], partitions=partitions, join_backoff=0.05) as member:
        for _ in range(3):
            with pytest.raises(LookupError, match="no broker"):
                member.next_generation(20)


def test_a_member_that_was_told_to_stop_before_anybody_iterates_has_no_generations(group: Consumergroup) -> None:
    with Member(group, ["orders"]) as member:
        member.stop()
        assert list(member.generations()) == []


@pytest.mark.parametrize(("topics", "pattern"), [(["orders", "nope"], None), ((), "nope.*")])
def test_a_topic_that_is_not_there_is_told_once(
    run: Run, orders: Partitions, topics: Any, pattern: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        one = run(topics, pattern=pattern, reconcile_every=0.05)
        one.until(lambda: one.member.stats.looks > 3)
    [event] = [event for event in one.events if event.kind is EventKind.MISSING]
    assert "nope" in event.detail
    assert "is the chroot right?" in event.detail
    assert sum("is the chroot right?" in record.getMessage() for record in caplog.records) == 1


def test_members_that_have_nothing_in_common_share_by_range(run: Run, orders: Partitions) -> None:
    a = run(id="a", assignors=["sticky"])
    b = run(id="b", assignors=["roundrobin"]).until_holding(ats("orders", 3, 4, 5))
    a.until_holding(ats("orders", 0, 1, 2))
    assert a.errors == b.errors == []
