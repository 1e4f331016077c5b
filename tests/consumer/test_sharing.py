"""How members share partitions."""

from __future__ import annotations

import time
from typing import Any

from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.core.znodes.states import GroupState, InstanceState
from zkgroups.core.znodes.values import Dialect, Registration

from .conftest import Partitions, Run, Running, ats

P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))


def test_a_single_member_gets_all_partitions_and_its_registration_describes_it(
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


def test_a_registration_without_a_session_gets_no_partition_among_zkgroups_members(
    run: Run, orders: Partitions, group: Consumergroup, registry: Registry
) -> None:
    """Also with a strategy for which the lowest id plans for all."""
    group.create()
    gone = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":1795255543}'
    registry.client.create(group.paths.instance("0-gone"), gone)
    a = run(id="a", assignors=["sticky"]).until_holding(orders)
    run(id="b", assignors=["sticky"])
    a.until_holding_some(3)


def test_a_member_gets_a_share_for_each_of_its_streams(run: Run, orders: Partitions) -> None:
    a = run({"orders": 2}, id="a")
    b = run({"orders": 1}, id="b").until_holding(ats("orders", 4, 5))
    a.until_holding(ats("orders", 0, 1, 2, 3))
    assert set(a.generations[-1].streams.values()) == {0, 1}
    assert {owner.id for owner in b.member.group.owners()} == {"a-0", "a-1", "b-0"}  # type: ignore[union-attr]


def test_plan_numbers_never_decrease(run: Run, orders: Partitions) -> None:
    a = run(id="a", assignors=["sticky", "range"])
    for _ in range(2):
        with Running(a.member.group, id="b", assignors=["sticky", "range"]) as b:
            b.until_holding_some(3)
            a.until_holding_some(3)
        with Running(a.member.group, id="c", assignors=["range"]) as c:
            c.until_holding(ats("orders", 3, 4, 5))
        a.until_holding(orders)
    numbers = [generation.number for generation in a.generations]
    assert numbers == sorted(numbers)
    assert len(numbers) >= 4


def test_a_member_whose_share_does_not_change_is_not_interrupted(run: Run, orders: Partitions) -> None:
    """Range assigns the same two partitions to the first of three members as to the first of four."""
    a, b, c = (run(id=id) for id in "abc")
    for number, one in enumerate((a, b, c)):
        one.until_holding(ats("orders", 2 * number, 2 * number + 1))
    generation, stats = a.generations[-1], a.member.stats
    with Running(a.member.group, id="zzz") as late:
        late.until_holding(P5)
        c.until_holding(TopicPartition("orders", 4))
        a.until(lambda: a.member.stats.looks > stats.looks, "a look at the fourth member")
        looks = a.member.stats.looks
    c.until_holding(ats("orders", 4, 5))
    a.until(lambda: a.member.stats.looks > looks, "a look without the fourth member")
    assert a.generations[-1] is generation
    assert generation.active
    assert a.member.stats.interruptions == stats.interruptions


def test_a_member_that_keeps_its_share_under_sticky_keeps_its_generation(run: Run, orders: Partitions) -> None:
    """Of three members with two partitions each, one gives a partition to the fourth: the other two continue."""
    options = {"assignors": ["sticky"]}
    members = [run(id=id, **options) for id in "abc"]
    for one in members:
        one.until_holding_some(2)
    before = [(one.generations[-1], one.member.assignment, one.member.stats.interruptions) for one in members]
    late = run(id="d", **options)
    late.until_holding_some(1)
    kept = [(one, was) for one, was in zip(members, before, strict=True) if one.member.assignment == was[1]]
    assert len(kept) == 2
    for one, (generation, _assignment, interruptions) in kept:
        assert one.generations[-1] is generation
        assert generation.active
        assert one.member.stats.interruptions == interruptions


def test_a_custom_function_is_used_if_all_members_know_it(run: Run, orders: Partitions) -> None:
    a = run(id="a", assignors=[everything_to_the_last])
    b = run(id="b", assignors=[everything_to_the_last]).until_holding(orders)
    a.until_holding()
    b.close()
    a.until_holding(orders)


def everything_to_the_last(members: Any) -> Any:
    from zkgroups import Stream

    last = max(members.streams)
    return {at: Stream(last, 0) for topic in members.topics for at in members.in_order(topic)}


def test_a_kept_partition_keeps_the_stream_in_its_owner_node(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    a = run({"orders": 2}, id="a").until_holding(orders)
    assert a.generations[-1].streams[TopicPartition("orders", 2)] == 0
    run({"orders": 1}, id="b").until_holding(ats("orders", 4, 5))
    a.until_holding(ats("orders", 0, 1, 2, 3))  # now range assigns the third partition to the second stream
    streams = {at: f"a-{stream}" for at, stream in a.generations[-1].streams.items()}
    assert {owner.at: owner.id for owner in group.owners() if owner.id.startswith("a")} == streams  # type: ignore[union-attr]


def test_a_member_that_waits_for_a_newer_plan_reads_the_group_again(run: Run) -> None:
    known = {"a": 6, "b": 6}
    options: dict[str, Any] = {"assignors": ["sticky"], "reconcile_every": 5.0}
    a = run(id="a", partitions=lambda _topic: range(known["a"]), **options).until_holding(ats("orders", *range(6)))
    b = run(id="b", partitions=lambda _topic: range(known["b"]), **options)
    b.until(lambda: len(b.member.assignment) == 3)
    known["a"] = 8  # the member that plans for all sees it first
    time.sleep(10)
    known["b"] = 8
    b.until(lambda: len(a.member.assignment) == len(b.member.assignment) == 4)


def test_members_of_one_session_ignore_events_that_only_another_member_waits_for(run: Run, orders: Partitions) -> None:
    """When one member watches a node, the session delivers the event to all members."""
    options: dict[str, Any] = {"assignors": ["range"], "reconcile_every": 60.0}
    members = [run(id=f"m{number}", **options) for number in range(6)]
    for number, one in enumerate(members):
        one.until_holding(ats("orders", number))
    time.sleep(30)
    before = [one.member.stats.looks for one in members]
    members[5].close()
    for one, numbers in zip(members, [(0, 1), (2,), (3,), (4,), (5,)], strict=False):
        one.until_holding(ats("orders", *numbers))
    assert [one.member.stats.looks - looks for one, looks in zip(members, before, strict=True)] == [1, 1, 1, 1, 1, 0]
