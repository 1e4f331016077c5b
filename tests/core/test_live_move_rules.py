"""What stops a live move: members that cannot follow, higher offsets on the other side, and anything that differs."""

from __future__ import annotations

from tests.migration.rows import row
from zkgroups import TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.live_move_rules import (
    apply_problem,
    offsets_to_return,
    other_members,
    plan_problem,
    return_problem,
    verify_problem,
)
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Decision, Reason
from zkgroups.core.migration.plan_rows import Match, MatchRow, MigrationStep, Outcome, ReportRow
from zkgroups.core.znodes.group_view import RegisteredInstance
from zkgroups.core.znodes.values import CommittedOffset, CurrentOffset, Dialect, MalformedNode, Registration

P0, P1, P2, P3 = (TopicPartition("orders", number) for number in range(4))
COMMIT = Decision(Action.COMMIT, Reason.UNCHANGED, 7)
AHEAD = Decision(Action.SKIP, Reason.TARGET_AHEAD)


def committed(offset: int, at: TopicPartition = P0) -> NativeOffset:
    return NativeOffset("billing", at, offset)


def found(offset: int, at: TopicPartition = P0) -> CommittedOffset:
    return CommittedOffset("billing", at, offset)


def test_members_that_cannot_move_with_their_group_are_named_with_their_clients() -> None:
    instances = [
        RegisteredInstance("through-gateway", 1, Registration({"orders": 1}, dialect=Dialect.GATEWAY)),
        RegisteredInstance("consumer", 2, Registration({"orders": 1}, moves=True)),
        RegisteredInstance("member", 2, Registration({"orders": 1})),
        RegisteredInstance("scala", 2, Registration({"orders": 1}, dialect=Dialect.SCALA)),
        RegisteredInstance("odd", 3, MalformedNode("/consumers/billing/ids/odd", b"?", "not JSON")),
    ]
    assert other_members(instances) == [
        f"member ({Dialect.ZKGROUPS})",
        f"scala ({Dialect.SCALA})",
        "odd (unknown client)",
    ]


def test_a_move_to_the_brokers_stops_if_they_have_higher_offsets() -> None:
    moving = row("billing", "billing", P0, COMMIT, None, 7)
    ahead = row("billing", "billing", P1, AHEAD, committed(9, P1), 7)
    assert plan_problem([], members_leave=False) == plan_problem([moving], members_leave=False) == ""
    problem = "the brokers have higher offsets: orders/1 (9 > 7); delete the group on the brokers first"
    assert plan_problem([moving, ahead], members_leave=True) == problem


def test_registered_members_do_not_stop_a_move_before_they_have_left() -> None:
    legacy = Obstacle(ObstacleKind.LEGACY_INSTANCES, ("old",), 1)
    [moving] = [row("billing", "billing", P0, COMMIT, None, 7)._replace(obstacles=(legacy,))]
    assert plan_problem([moving], members_leave=True) == ""
    assert plan_problem([moving], members_leave=False) == str(legacy)
    other = moving._replace(obstacles=(legacy, Obstacle(ObstacleKind.OTHER_MARK, detail="of another plan")))
    assert "of another plan" in plan_problem([other], members_leave=True)


def reported(outcome: Outcome, detail: str = "") -> ReportRow:
    return ReportRow("plan", MigrationStep.APPLY, 0, "billing", "orders", 0, "billing", None, None, outcome, detail)


def test_offsets_that_did_not_arrive_are_a_problem() -> None:
    arrived = [reported(outcome) for outcome in (Outcome.WRITTEN, Outcome.THERE, Outcome.SKIPPED)]
    assert apply_problem(arrived) == ""
    failed = [reported(Outcome.FAILED, "no permission"), reported(Outcome.FAILED, "no permission")]
    assert apply_problem([*arrived, *failed, reported(Outcome.LEFT)]) == "no permission; left"


def compared(match: Match, partition: int = 0) -> MatchRow:
    return MatchRow("plan", "billing", "orders", partition, "billing", 7, 7, 7, match, "either", "")


def test_offsets_that_differ_after_the_copy_are_a_problem() -> None:
    assert verify_problem([]) == verify_problem([compared(Match.EQUAL)]) == ""
    problem = "both sides differ: orders-1 (target behind)"
    assert verify_problem([compared(Match.EQUAL), compared(Match.BEHIND, 1)]) == problem


def test_a_move_to_zookeeper_stops_if_it_has_higher_offsets() -> None:
    there = {P0: committed(7), P1: committed(7, P1)}
    assert return_problem(there, {P0: found(7), P1: found(6, P1)}) == ""
    problem = "ZooKeeper has higher offsets: orders/0 (8 > 7); delete these in ZooKeeper first"
    assert return_problem(there, {P0: found(8), P1: found(7, P1)}) == problem


def test_only_offsets_that_zookeeper_does_not_have_are_returned() -> None:
    there = {at: committed(7, at) for at in (P0, P1, P2, P3)}
    malformed = MalformedNode("/consumers/billing/offsets/orders/3", b"x", "not a plain decimal number")
    current: dict[TopicPartition, CurrentOffset] = {P0: found(7), P1: found(6, P1), P2: None, P3: malformed}
    assert offsets_to_return(there, current) == {P1: 7, P2: 7, P3: 7}
