"""How members agree on a plan: the roster, the strategy, the planner election and the plan. How that is explained."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import Dialect, MalformedNode, Pattern, RegisteredInstance, Registration, TopicPartition
from zkgroups.core.doctor.findings import CheckCode
from zkgroups.core.rebalance.assignors import sticky_assignor
from zkgroups.core.rebalance.explanation import GroupExplanation, Placement, StrategyReason, explain
from zkgroups.core.rebalance.members import Members, Stream
from zkgroups.core.rebalance.shared_plan import (
    LARGEST_DECOMPRESSED,
    PlannerElection,
    ReleaseSignals,
    Roster,
    SharedPlan,
    agreed_strategy,
    decode_plan,
    encode_plan,
    has_patterns,
    invalid_reason,
    topics_named,
)
from zkgroups.core.znodes.group_description import Obstacle
from zkgroups.core.znodes.values import UnreadableNode

from ..groups import SCALA, member, owner, view

ALL = ("range", "roundrobin", "sticky")


def ours(*assignors: str, **streams: int) -> Registration:
    return Registration(streams or {"orders": 1}, assignors=assignors or ALL)


def scala(**streams: int) -> Registration:
    return Registration(streams or {"orders": 1}, dialect=Dialect.SCALA)


def roster(**registrations: Registration | UnreadableNode) -> Roster:
    instances = [RegisteredInstance(id, 1, one) for id, one in registrations.items()]
    return Roster(20, 17, instances, {"orders": (0, 1, 2), "refunds": (0,)})


def test_participants_have_a_readable_subscription() -> None:
    broken = MalformedNode("/consumers/g/ids/b", b"x", "no JSON")
    seen = roster(c=ours(), a=scala(), b=broken, d=Registration({}))
    assert list(seen.participants) == ["a", "c"]
    assert seen.unreadable_registrations == [broken]
    assert seen.dialects == {Dialect.SCALA: ["a"], Dialect.ZKGROUPS: ["c"]}


def test_a_registration_without_a_session_participates_only_beside_old_clients() -> None:
    gone = RegisteredInstance("0-gone", 0, ours())
    alone = replace(roster(a=ours(), b=ours()), instances=[gone, *roster(a=ours(), b=ours()).instances])
    assert list(alone.participants) == ["a", "b"]
    beside = replace(alone, instances=[gone, *roster(a=ours(), b=scala()).instances])
    assert list(beside.participants) == ["0-gone", "a", "b"]
    nobody_else = replace(alone, instances=[replace(gone, registration=scala()), *roster(a=ours()).instances])
    assert list(nobody_else.participants) == ["a"]


def test_a_pattern_chooses_from_existing_topics() -> None:
    white = Registration({"re.*": 2}, Pattern.WHITE_LIST)
    instances = roster(a=white, b=ours(orders=1)).instances
    assert topics_named(instances, ["refunds", "returns", "orders", "__consumer_offsets"]) == [
        "orders",
        "refunds",
        "returns",
    ]
    assert has_patterns(instances)
    assert roster(a=white, b=ours(orders=1)).members().streams == {"a": {"refunds": 2}, "b": {"orders": 1}}


def test_internal_topics_are_chosen_only_on_request() -> None:
    everything = Registration({".*": 1}, Pattern.WHITE_LIST)
    names = ["__consumer_offsets", "orders"]
    assert topics_named(roster(a=everything).instances, names) == ["orders"]
    assert topics_named(roster(a=replace(everything, include_internal=True)).instances, names) == names


@pytest.mark.parametrize(
    ("members", "agreed"),
    [
        ({"a": ours("sticky", "range"), "b": ours("range", "sticky")}, "sticky"),
        ({"b": ours("sticky", "range"), "a": ours("range", "sticky")}, "range"),
        ({"a": ours("sticky", "range"), "b": ours("roundrobin", "range")}, "range"),
        ({"a": ours("sticky"), "b": ours("roundrobin")}, "range"),
        ({"a": ours("mine.share"), "b": ours("mine.share", "range")}, "mine.share"),
        ({"a": scala(), "b": ours("sticky", "range")}, "range"),
        ({"b": scala(), "a": ours("sticky", "range")}, "range"),
        ({}, "range"),
    ],
)
def test_the_strategy_is_the_first_one_of_the_lowest_id_that_all_support(
    members: dict[str, Registration], agreed: str
) -> None:
    assert agreed_strategy(members) == agreed
    assert agreed_strategy(dict(reversed(members.items()))) == agreed


def test_other_clients_use_the_given_foreign_strategy() -> None:
    members = {"a": ours("range", "roundrobin"), "scala": scala()}
    assert agreed_strategy(members, foreign="roundrobin") == "roundrobin"
    assert agreed_strategy({"a": ours("sticky"), "scala": scala()}, foreign="roundrobin") == "roundrobin"


def test_a_plan_matches_only_the_roster_it_was_made_from() -> None:
    seen = roster(a=ours(), b=ours())
    plan = SharedPlan(seen.fingerprint, "sticky", sticky_assignor(seen.members()))
    assert plan.matches(seen.fingerprint, "sticky")
    assert plan.matches(replace(seen, number=99, instances=list(reversed(seen.instances))).fingerprint, "sticky")
    assert not plan.matches(seen.fingerprint, "mine.share")
    others = [
        replace(seen, ids_zxid=18),
        replace(seen, partitions={**seen.partitions, "orders": (0, 1, 2, 3)}),
        replace(seen, instances=seen.instances[:1]),
        roster(a=ours(), b=ours(orders=2)),
        roster(a=ours(), c=ours()),
    ]
    assert not any(plan.matches(other.fingerprint, "sticky") for other in others)


NAMES = st.text("abé-:0", min_size=1, max_size=6)


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.sampled_from(["t", "a.b", "ü"]), st.integers(0, 2**31 - 1)),
        st.builds(Stream, NAMES, st.integers(0, 3)),
        max_size=30,
    )
)
def test_a_plan_survives_encoding_and_decoding(assignment: dict[TopicPartition, Stream]) -> None:
    plan = SharedPlan("f" * 32, "sticky", assignment)
    assert decode_plan(encode_plan(plan)) == plan


def test_planners_are_skipped_one_by_one_and_then_all_start_again() -> None:
    planners, seen = PlannerElection("b"), []
    for _ in range(4):
        awaited = planners.awaited({"c", "a", "b"}, version=7)
        seen.append(awaited.planner)
        planners.skip(awaited)
    assert seen == ["a", "b", "c", "a"]


def test_hanging_planners_are_skipped_in_growing_steps_except_oneself() -> None:
    ids, planners, rounds = [f"{n:02}" for n in range(40)], PlannerElection("20"), []
    while (awaited := planners.awaited(ids, version=7)).planner != "20":
        rounds.append(planners.skip(awaited))
    assert [len(skipped) for skipped in rounds] == [1, 2, 4, 8, 16]
    assert "20" not in {id for skipped in rounds for id in skipped}
    assert planners.skip(awaited) == ["20"]  # its own plan has failed
    assert len(planners.skip(planners.awaited(ids, version=8))) == 1


MEMBERS = Members({"a": {"t": 2}, "b": {"t": 1, "u": 1}}, {"t": [0, 1], "u": [5]})
FITTING = {
    TopicPartition("t", 0): Stream("a", 1),
    TopicPartition("t", 1): Stream("a", 0),
    TopicPartition("u", 5): Stream("b", 0),
}
T0, T1, U5 = FITTING


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        (None, "not a mapping but NoneType"),
        ([T0], "not a mapping but list"),
        ({}, "gives 0 of 3 partitions"),
        ({T0: Stream("a", 0), T1: Stream("b", 0)}, "gives 2 of 3 partitions"),
        (FITTING | {T0: Stream("ghost", 0)}, "not a stream that reads t"),
        (FITTING | {T0: Stream("\ud800", 0)}, "not a stream that reads t"),
        (FITTING | {T0: Stream("b", 1)}, "not a stream that reads t"),
        (FITTING | {T0: Stream("a", -1)}, "not a stream that reads t"),
        (FITTING | {T0: Stream("a", True)}, "not a stream that reads t"),
        (FITTING | {T0: Stream("a", "0")}, "not a stream that reads t"),
        (FITTING | {U5: Stream("a", 0)}, "not a stream that reads u"),
        (FITTING | {TopicPartition("x", 0): Stream("a", 0)}, "not a partition that a member subscribes to"),
        (FITTING | {TopicPartition("t", 2): Stream("a", 0)}, "not a partition that a member subscribes to"),
        (FITTING | {T0: ("a", 0)}, "not a TopicPartition with a Stream"),
        ({("t", 0): Stream("a", 0)} | FITTING, "not a TopicPartition with a Stream"),
    ],
)
def test_an_incomplete_or_invented_assignment_is_invalid(assignment: object, reason: str) -> None:
    assert invalid_reason(FITTING, MEMBERS) is None
    found = invalid_reason(assignment, MEMBERS)
    assert found is not None
    assert reason in found
    assert found.isprintable()
    assert len(found) < 400


def test_a_plan_of_another_member_restarts_the_election() -> None:
    planners = PlannerElection("b")
    late = planners.awaited("ab", version=7)
    planners.skip(late)
    planners.wrote(7)
    assert planners.awaited("ab", version=8).planner == "b"
    assert planners.awaited("ab", version=9).planner == "a"
    planners.skip(late)  # its time was over before the other plan was seen
    assert planners.awaited("ab", version=9).planner == "a"


def test_malformed_plans_decode_to_none() -> None:
    data = encode_plan(SharedPlan("f", "sticky", {TopicPartition("orders", 3): Stream("a", 0)}))
    assert decode_plan(data) is not None
    for end in range(len(data)):
        assert decode_plan(data[:end]) is None
    for other in (b"", b"null", b"[]", b"{}", b'{"zkgroups":2}', b"\xff", b"[" * 100_000, b'{"zkgroups":1,"of":1}'):
        assert decode_plan(other) is None


def test_a_plan_of_ten_thousand_partitions_is_small() -> None:
    streams = [Stream(f"some-host.example:{n:032x}", 0) for n in range(100)]
    assignment = {TopicPartition("orders", n): streams[n % 100] for n in range(10_000)}
    plan = SharedPlan("f" * 32, "sticky", assignment)
    data = encode_plan(plan)
    assert len(data) < 40_000
    assert decode_plan(data) == plan
    assert decode_plan(data[:-1]) is None


def test_a_small_plan_is_plain_json_and_a_compression_bomb_is_none() -> None:
    plan = SharedPlan("f", "sticky", FITTING)
    assert b'"t":{"0":1' in encode_plan(plan)
    assert decode_plan(zlib.compress(encode_plan(plan))) == plan
    assert decode_plan(zlib.compress(encode_plan(plan) + b" " * LARGEST_DECOMPRESSED)) is None


# The explanation

FOUR = {"orders": (0, 1, 2, 3)}


def announcing(
    id: str, *strategies: str, topics: tuple[str, ...] = ("orders",), session: int = 1
) -> RegisteredInstance:
    return member(id, Registration(dict.fromkeys(topics, 1), assignors=strategies), session=session)


A, B = announcing("a", "range"), announcing("b", "range")


def explained(*instances: RegisteredInstance, owners: dict[int, str] | None = None, **more: Any) -> GroupExplanation:
    """Explain a group of these instances. `owners` has the owners of the partitions of orders."""
    sessions = {each.id: each.session for each in instances}
    found = [owner(f"orders/{n}", id, sessions.get(id.removesuffix("-0"), 99)) for n, id in (owners or {}).items()]
    return explain(view(*instances, *found, partitions=more.pop("partitions", FOUR)), **more)


def placements(found: GroupExplanation) -> list[Placement]:
    return [each.placement for each in found.partitions]


def planned(found: GroupExplanation, *, without: bool = False) -> list[str | None]:
    streams = [each.planned_without if without else each.planned for each in found.partitions]
    return [stream and stream.instance for stream in streams]


def test_partitions_of_a_settled_group_are_as_planned() -> None:
    found = explained(A, B, owners={0: "a-0", 1: "a-0", 2: "b-0", 3: "b"})
    assert placements(found) == [Placement.AS_PLANNED] * 4
    assert (found.strategy, found.reason, found.planner) == ("range", StrategyReason.AGREED, None)
    assert [(each.topics, each.partitions, each.streams) for each in found.divisions] == [(("orders",), 4, 2)]
    assert found.findings == ()


def test_a_partition_may_be_held_by_another_member_or_by_nobody_or_blocked_or_not_subscribed() -> None:
    found = explained(A, B, owners={0: "a", 1: "a", 2: "a"})
    assert placements(found)[2:] == [Placement.HELD, Placement.UNOWNED]
    assert planned(found) == ["a", "a", "b", "b"]
    found = explained(A, owners={0: "gone", 1: "a", 2: "a", 3: "a"})
    assert (found.partitions[0].placement, found.partitions[0].obstacle) == (Placement.BLOCKED, Obstacle.NOT_REGISTERED)
    assert [each.code for each in found.findings] == [CheckCode.ORPHAN_OWNER]
    elsewhere = announcing("a", "range", topics=("refunds",))
    found = explained(elsewhere, owners={0: "a"}, partitions={**FOUR, "refunds": (0,)})
    assert placements(found) == [Placement.NOT_SUBSCRIBED, Placement.UNOWNED]


def test_an_unreadable_registration_gets_no_share_and_a_missing_topic_has_no_partitions() -> None:
    found = explained(member("scala", SCALA), member("x", b"not json", session=2))
    assert (set(planned(found)), found.idle) == ({"scala"}, ("x",))
    assert CheckCode.SCALA_CANNOT_READ in {each.code for each in found.findings}
    found = explained(announcing("a", "range", topics=("orders", "nowhere")))
    assert (found.missing, {each.at.topic for each in found.partitions}) == (("nowhere",), {"orders"})


def test_the_strategy_has_a_reason() -> None:
    members = member("a", SCALA, session=1), member("b", SCALA, session=2)
    dealt = explained(*members, foreign="roundrobin")
    owners = {each.at.partition: f"{each.planned}" for each in dealt.partitions}
    inferred = explained(*members, owners=owners)
    assert set(placements(inferred)) == {Placement.AS_PLANNED}
    assumed = ("range", StrategyReason.ASSUMED)
    for found, expected in (
        (explained(announcing("a", "sticky"), announcing("b", "roundrobin")), ("range", StrategyReason.NOT_COMMON)),
        (explained(announcing("a", "sticky"), member("s", SCALA)), ("range", StrategyReason.NOT_COMMON)),
        (explained(*members, owners={0: "a-0", 1: "a-0", 2: "b-0", 3: "b-0"}), assumed),
        (dealt, ("roundrobin", StrategyReason.GIVEN)),
        (inferred, ("roundrobin", StrategyReason.INFERRED)),
        (explained(members[0], owners=dict.fromkeys(range(4), "a-0")), assumed),  # both fit
        (explained(*members, owners={0: owners[0]}), assumed),
    ):
        assert (found.strategy, found.reason) == expected


def test_the_written_plan_counts_only_for_these_members_and_this_strategy() -> None:
    members = announcing("a", "sticky"), announcing("b", "sticky")
    plan = {TopicPartition("orders", n): Stream("b" if n else "a", 0) for n in range(4)}
    written = SharedPlan(Roster(0, 7, members, FOUR).fingerprint, "sticky", plan)
    follows = explained(*members, written=written, ids_zxid=7)
    assert (follows.plan_is_written, follows.planner, planned(follows)) == (True, "a", ["a", "b", "b", "b"])
    for other in (
        explained(*members, written=written, ids_zxid=8),  # an instance has left or registered since
        explained(*members, written=replace(written, strategy="mine"), ids_zxid=7),
        explained(*members, written=replace(written, assignment={}), ids_zxid=7),
    ):
        assert not other.plan_is_written
        assert sorted(map(str, planned(other))) == ["a", "a", "b", "b"]


def test_the_plan_of_an_unknown_strategy_is_unknown_unless_it_is_written() -> None:
    mine = announcing("a", "mine")
    unknown = explained(mine, owners={0: "a"})
    assert (unknown.plan_is_known, set(placements(unknown))) == (False, {Placement.UNKNOWN})
    plan = {TopicPartition("orders", n): Stream("a", 0) for n in range(4)}
    fingerprint = Roster(0, 0, (mine,), FOUR).fingerprint
    assert explained(mine, written=SharedPlan(fingerprint, "mine", plan)).plan_is_known


def test_without_a_member_the_others_get_its_partitions() -> None:
    found = explained(A, B, announcing("c", "range"), without=("a",))
    assert (planned(found), planned(found, without=True)) == (["a", "a", "b", "c"], ["b", "b", "c", "c"])
    sticky = (announcing(id, "sticky", session=number) for number, id in enumerate("abc", 1))
    found = explained(*sticky, owners={0: "a", 1: "b", 2: "b", 3: "c"}, without=("a",))
    assert planned(found, without=True) == ["c", "b", "b", "c"]
    found = explained(announcing("a", "sticky", "range"), member("s", SCALA), without=("s",))
    assert (found.strategy, found.strategy_without) == ("range", "sticky")
    assert set(planned(explained(A, without=("a",)), without=True)) == {None}


# Release signals: one partition signals the release of all partitions that are released with it

R0, R1, R2, R3 = (TopicPartition("orders", number) for number in range(4))


def signals_of(*chosen: dict[TopicPartition, str]) -> ReleaseSignals:
    signals = ReleaseSignals()
    for each in chosen:
        signals.choose(each)
    return signals


def test_the_last_partition_signals_all_that_are_released_together_once() -> None:
    signals = ReleaseSignals()
    assert signals.choose({R0: "x", R2: "x", R1: "y"}) == {R1, R2}
    assert [signals.released_with(at) for at in (R2, R1, R2)] == [{R0, R2}, {R1}, {R2}]
    again = signals_of({R0: "x", R2: "x"}, {R1: "x", R2: "x"})
    assert again.released_with(R2) == {R0, R1, R2}


def test_partitions_without_a_signal_are_returned_once() -> None:
    signals = signals_of({R0: "x", R1: "x", R3: "x", R2: "y"})
    assert signals.without_signal({R0, R1, R2}) == {R0, R1}
    assert signals.without_signal({R0, R1, R2}) == frozenset()
    assert signals.released_with(R2) == {R2}
    waited = signals_of({R0: "x", R1: "x"})
    assert waited.without_signal({R1}) == frozenset()
    assert waited.released_with(R1) == {R0, R1}


def test_a_signal_may_come_while_partitions_without_a_signal_are_looked_for() -> None:
    """Kazoo's threads report releases at any moment."""

    class Meanwhile(set[TopicPartition]):
        def __contains__(self, at: object) -> bool:
            signals.released_with(R1)
            return super().__contains__(at)

    signals = signals_of({R0: "x", R1: "y", R2: "z"})
    assert signals.without_signal(Meanwhile({R0, R2})) == frozenset()
    assert signals.released_with(R1) == {R1}
