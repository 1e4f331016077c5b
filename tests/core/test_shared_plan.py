"""How members agree on a plan: the roster, the strategy, the planner election and the plan."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.rebalance.assignors import ASSIGNORS
from zkgroups.core.rebalance.members import Members, Stream
from zkgroups.core.rebalance.planner_election import PlannerElection
from zkgroups.core.rebalance.roster import Roster, has_patterns, topics_named
from zkgroups.core.rebalance.shared_plan import (
    LARGEST_DECOMPRESSED,
    SharedPlan,
    agreed_strategy,
    decode_plan,
    encode_plan,
    invalid_reason,
)
from zkgroups.core.rebalance.sticky import sticky_assignor
from zkgroups.core.znodes.group_view import RegisteredInstance
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import Dialect, MalformedNode, Pattern, Registration, UnreadableNode

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
        (FITTING | {("t", 0): Stream("a", 0)}, "not a TopicPartition with a Stream"),
    ],
)
def test_an_incomplete_or_invented_assignment_is_invalid(assignment: object, reason: str) -> None:
    assert invalid_reason(FITTING, MEMBERS) is None
    found = invalid_reason(assignment, MEMBERS)
    assert found is not None
    assert reason in found
    assert found.isprintable()
    assert len(found) < 400


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c-1"]), st.dictionaries(st.sampled_from("tuv"), st.integers(0, 3)), max_size=3
    ),
    st.dictionaries(st.sampled_from("tu"), st.lists(st.integers(0, 9), max_size=5)),
)
def test_every_built_in_strategy_computes_a_valid_plan(
    streams: dict[str, dict[str, int]], partitions: dict[str, list[int]]
) -> None:
    members = Members(streams, partitions)
    assert [invalid_reason(assignor(members), members) for assignor in ASSIGNORS.values()] == [None] * len(ASSIGNORS)


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


def test_a_corrupted_plan_never_raises() -> None:
    rng = random.Random(20_261_121)
    data = bytearray(
        encode_plan(SharedPlan("f", "sticky", {TopicPartition("orders", n): Stream("a", n) for n in range(5)}))
    )
    for _ in range(3_000):
        torn = bytearray(data)
        torn[rng.randrange(len(torn))] = rng.randrange(256)
        decode_plan(bytes(torn))


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
