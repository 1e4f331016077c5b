"""The decision for one offset, for any numbers, the obstacles of a group, and a plan compared with both sides."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.migration.rows import row
from zkgroups import MalformedNode, TopicPartition
from zkgroups.core.kafka_values import NativeOffset, OffsetRange
from zkgroups.core.migration import offset_decision
from zkgroups.core.migration.changes_since_plan import (
    MigrationStage,
    OffsetKey,
    OffsetNode,
    OffsetNodes,
    SourceState,
    TargetState,
    group_status,
)
from zkgroups.core.migration.comparison import compare_rows, dual_commit
from zkgroups.core.migration.obstacles import GroupFacts, Obstacle, ObstacleKind, obstacles
from zkgroups.core.migration.offset_decision import (
    MAX_GROUP_BYTES,
    Action,
    Decision,
    NoLog,
    NoOffset,
    Policy,
    Reason,
    Renaming,
    Rule,
    Unknown,
    conflicts,
    decide,
    name_error,
)
from zkgroups.core.migration.plan_rows import Match, PlanRow
from zkgroups.core.znodes.codecs import MAX_OFFSET, MISNAMED, decode_offset
from zkgroups.exceptions import InvalidOptionError

OFFSETS = st.integers(0, MAX_OFFSET) | st.sampled_from([0, 1, MAX_OFFSET])
RANGES = st.tuples(OFFSETS, OFFSETS).map(lambda pair: OffsetRange(min(pair), max(pair)))
TARGETS = st.none() | st.sampled_from(list(Unknown)) | OFFSETS
RULES = st.builds(Rule, st.sampled_from(Policy), st.sampled_from(Policy), st.booleans())


@given(st.text("0123456789-+ .abc", max_size=25).map(str.encode), RANGES, TARGETS, RULES)
def test_a_node_without_an_offset_is_treated_as_the_operator_chose(
    data: bytes, log: OffsetRange, target: int | Unknown | None, rule: Rule
) -> None:
    source = decode_offset("/o", data)
    assume(isinstance(source, MalformedNode))
    found = decide(NoOffset.of(source), log, target, rule)
    reason = Reason.NEGATIVE if re.fullmatch(rb"-[0-9]+", data) else Reason.NO_OFFSET
    _assert_policy(rule.on_unreadable, found, reason, log, target, rule)
    for gone in (NoLog.NO_TOPIC, NoLog.NO_PARTITION):
        assert decide(NoOffset.of(source), gone, target, rule) == Decision(Action.SKIP, Reason(gone))
    for without in (NoLog.NOT_CHECKED, NoLog.UNKNOWN, NoLog.MISSING):
        unknown = decide(NoOffset.of(source), without, target, rule)
        assert unknown.action is (Action.SKIP if rule.on_unreadable is Policy.SKIP else Action.REFUSE)


def _assert_policy(
    policy: Policy, found: Decision, reason: Reason, log: OffsetRange, target: int | Unknown | None, rule: Rule
) -> None:
    match policy:
        case Policy.BLOCK:
            assert found == Decision(Action.REFUSE, reason)
        case Policy.SKIP:
            assert found == Decision(Action.SKIP, reason)
        case Policy.EARLIEST | Policy.LATEST:
            inside = decide(log.start if policy is Policy.EARLIEST else log.end, log, target, rule)
            assert (found.action, found.offset) == (inside.action, inside.offset)
            assert found.reason is not Reason.UNCHANGED


def test_a_node_that_no_consumer_reads_is_skipped() -> None:
    source = NoOffset.of(MalformedNode("/o", b"5", MISNAMED))
    assert decide(source, OffsetRange(0, 9), None) == Decision(Action.SKIP, Reason.NOT_A_PARTITION)


@given(OFFSETS, TARGETS, RULES)
def test_a_missing_topic_or_partition_is_skipped_and_an_unknown_log_is_refused(
    source: int, target: int | Unknown | None, rule: Rule
) -> None:
    assert decide(source, NoLog.NO_TOPIC, target, rule) == Decision(Action.SKIP, Reason.NO_TOPIC)
    assert decide(source, NoLog.NO_PARTITION, target, rule) == Decision(Action.SKIP, Reason.NO_PARTITION)
    for log in (NoLog.UNKNOWN, NoLog.MISSING):
        assert decide(source, log, target, rule) == Decision(Action.REFUSE, Reason(log))


@given(OFFSETS, RANGES, TARGETS, RULES)
def test_an_offset_of_an_earlier_topic_is_out_of_range_and_of_a_topic_recreated_since_the_plan_refused(
    source: int, log: OffsetRange, target: int | Unknown | None, rule: Rule
) -> None:
    found = decide(source, NoLog.NEWER, target, rule, newer=log)
    _assert_policy(rule.on_out_of_range, found, Reason.OLDER, log, target, rule)
    assert decide(source, NoLog.RECREATED, target, rule) == Decision(Action.REFUSE, Reason.RECREATED)


@given(OFFSETS, TARGETS, RULES)
def test_without_brokers_every_offset_is_copied_with_a_reason_that_shows_it_was_not_checked(
    source: int, target: int | Unknown | None, rule: Rule
) -> None:
    assert decide(source, NoLog.NOT_CHECKED, target, rule) == Decision(Action.COMMIT, Reason.LOG_NOT_CHECKED, source)


@given(RANGES | st.sampled_from(NoLog), TARGETS, RULES, st.booleans())
def test_a_partition_without_an_offset_in_zookeeper_is_skipped(
    log: OffsetRange | NoLog, target: int | Unknown | None, rule: Rule, stale: bool
) -> None:
    reason = Reason.NEVER_COMMITTED if target is None else Reason.ONLY_ON_TARGET
    assert decide(None, log, target, rule, stale=stale) == Decision(Action.SKIP, reason)


@given(OFFSETS, RANGES | st.sampled_from(NoLog), TARGETS, RULES, st.booleans())
def test_a_stale_offset_is_skipped_only_with_skip_stale_and_then_for_any_log(
    source: int, log: OffsetRange | NoLog, target: int | Unknown | None, rule: Rule, stale: bool
) -> None:
    found = decide(source, log, target, replace(rule, skip_stale=True), stale=stale)
    if stale:
        assert found == Decision(Action.SKIP, Reason.STALE)
    else:
        assert found == decide(source, log, target, rule, stale=True)


@given(OFFSETS, RANGES, TARGETS, RULES)
def test_an_offset_outside_the_log_is_treated_as_the_operator_chose(
    source: int, log: OffsetRange, target: int | Unknown | None, rule: Rule
) -> None:
    assume(source not in log)
    found = decide(source, log, target, rule)
    outside = Reason.BEFORE_START if source < log.start else Reason.PAST_END
    _assert_policy(rule.on_out_of_range, found, outside, log, target, rule)


@given(RANGES.flatmap(lambda log: st.tuples(st.just(log), st.integers(log.start, log.end))), TARGETS, RULES)
def test_an_offset_in_the_log_is_copied_unless_the_target_has_as_much(
    log_and_source: tuple[OffsetRange, int], target: int | Unknown | None, rule: Rule
) -> None:
    log, source = log_and_source
    found = decide(source, log, target, rule)
    if isinstance(target, Unknown):
        assert found == Decision(Action.REFUSE, Reason.TARGET_UNKNOWN)
    elif target is None or target < source:
        assert found == Decision(Action.COMMIT, Reason.UNCHANGED, source)
    elif target == source:
        assert found == Decision(Action.SKIP, Reason.ALREADY_THERE)
    elif rule.backward:
        assert found == Decision(Action.COMMIT, Reason.BACKWARD, source)
    else:
        assert found == Decision(Action.SKIP, Reason.TARGET_AHEAD)


@given(OFFSETS, RANGES | st.sampled_from(NoLog), TARGETS, RULES)
def test_a_written_offset_is_in_the_log_and_goes_back_only_with_backward(
    source: int, log: OffsetRange | NoLog, target: int | Unknown | None, rule: Rule
) -> None:
    found = decide(source, log, target, rule)
    assert (found.offset is not None) == (found.action is Action.COMMIT)
    assert Rule.parse(str(rule)) == rule
    if found.offset is not None and log is not NoLog.NOT_CHECKED:
        assert isinstance(log, OffsetRange)
        assert found.offset in log
        assert target is None or isinstance(target, int)
        assert target is None or rule.backward or found.offset > target


def test_the_table_has_every_reason() -> None:
    table = offset_decision.__doc__ or ""
    for reason in Reason:
        assert reason.value in table, reason


# Groups


def test_groups_are_renamed_by_name_then_by_expression_otherwise_not() -> None:
    renaming = Renaming({"billing": "accounts"}, r"team-(?P<name>.+)", r"\g<name>.v2")
    found = {name: renaming.target(name) for name in ("billing", "team-a b", "team-", "other")}
    assert found == {"billing": "accounts", "team-a b": "a b.v2", "team-": "team-", "other": "other"}
    one = Renaming({"a": "c"}, "b", "c")
    assert conflicts({group: one.target(group) for group in ("b", "a", "d")}) == {"c": ["a", "b"]}


@pytest.mark.parametrize(("pattern", "replacement"), [("(", "x"), ("*", "x"), ("a(.*)", r"\2"), ("a(.*)", "\udcff")])
def test_an_invalid_expression_or_replacement_is_refused(pattern: str, replacement: str) -> None:
    with pytest.raises(InvalidOptionError):
        Renaming({}, pattern, replacement)


@pytest.mark.parametrize("name", ["", "a/b", "x" * (MAX_GROUP_BYTES + 1)])
def test_an_invalid_new_name_is_refused_or_an_obstacle_for_that_group_alone(name: str) -> None:
    with pytest.raises(InvalidOptionError):
        Renaming({"billing": name})
    renaming = Renaming({}, "b", name)
    reason = name_error(renaming.target("b"))
    assert reason is not None
    assert obstacles(GroupFacts(name_error=reason)) == [Obstacle(ObstacleKind.INVALID_NAME, detail=reason)]
    assert name_error(renaming.target("a: é")) is name_error("x" * MAX_GROUP_BYTES) is None


def test_each_fact_is_an_obstacle_with_a_sentence_and_refused_offsets_are_counted_by_reason() -> None:
    for facts, said in (
        (GroupFacts(legacy=("a", "b", "c", "d")), "legacy instances are registered: a, b, c and 1 more"),
        (GroupFacts(native=("x",)), "the group has active members on the brokers: x"),
        (GroupFacts(rivals=("other",)), "other groups have the same target: other"),
        (GroupFacts(unreadable="no permission"), "the state of the group could not be read: no permission"),
    ):
        assert list(map(str, obstacles(facts))) == [said]
    decisions = [Decision(Action.REFUSE, Reason.PAST_END)] * 2 + [Decision(Action.REFUSE, Reason.LOG_UNKNOWN)]
    decisions += [Decision(Action.SKIP, Reason.NO_TOPIC), Decision(Action.COMMIT, Reason.UNCHANGED, 5)]
    assert obstacles(GroupFacts(), decisions) == [
        Obstacle(ObstacleKind.REFUSED_OFFSETS, count=1, reason=Reason.LOG_UNKNOWN),
        Obstacle(ObstacleKind.REFUSED_OFFSETS, count=2, reason=Reason.PAST_END),
    ]


# Comparing a plan with both sides

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
PLACE: OffsetKey = ("orders", 0)
TARGET = "billing"
BEFORE = NativeOffset(TARGET, AT, 3, "note")
COMMIT = row("legacy", TARGET, AT, Decision(Action.COMMIT, Reason.UNCHANGED, 7), BEFORE, 7, 107)
FRESH = row("legacy", TARGET, AT, Decision(Action.COMMIT, Reason.UNCHANGED, 7), None, 7, 107)
AHEAD = row("legacy", TARGET, AT, Decision(Action.SKIP, Reason.TARGET_AHEAD), BEFORE._replace(offset=9), 7, 107)
REFUSED = row("legacy", TARGET, AT, Decision(Action.REFUSE, Reason.PAST_END), None, 7, 107)
ONLY = row("legacy", TARGET, AT, Decision(Action.SKIP, Reason.ONLY_ON_TARGET), BEFORE)
NEVER = row("legacy", TARGET, AT, Decision(Action.SKIP, Reason.NEVER_COMMITTED))
UNREAD = row("legacy", TARGET, AT, Decision(Action.SKIP, Reason.NO_OFFSET), None, None, 107)
BLOCKED = COMMIT._replace(obstacles=(Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["scala-1"]),))
SAME = SourceState((), OffsetNodes({PLACE: OffsetNode(107, 7)}))


MOVED = SourceState((), OffsetNodes({PLACE: OffsetNode(108, 7)}))
NONE = SourceState()
LEGACY = (Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["scala-1"]),)
NAMELESS = row("legacy", TARGET, AT, Decision(Action.SKIP, Reason.NOT_A_PARTITION), problem="not a partition")
NAMELESS = NAMELESS._replace(topic="orders", partition=None)
UNREADABLE = (Obstacle(ObstacleKind.UNREADABLE, detail="/offsets/orders: no"),)


def target(offset: int | None = None) -> TargetState:
    return TargetState((), {} if offset is None else {AT: NativeOffset(TARGET, AT, offset)})


def hidden(topic: str | None) -> SourceState:
    return SourceState((), OffsetNodes({(topic, None): OffsetNode(None, None)}))


@pytest.mark.parametrize(
    ("planned", "source", "now", "match"),
    [
        (COMMIT, SAME, target(7), Match.EQUAL),
        (COMMIT, None, target(7), Match.EQUAL),
        (COMMIT, MOVED, target(7), Match.SOURCE_MOVED),
        (COMMIT, NONE, target(7), Match.SOURCE_GONE),
        (COMMIT, SAME, target(3), Match.NOT_WRITTEN),
        (COMMIT, SAME, target(8), Match.AHEAD),
        (COMMIT, SAME, target(4), Match.BEHIND),
        (COMMIT, NONE, target(4), Match.BEHIND),
        (COMMIT, SAME, target(), Match.GONE),
        (COMMIT, SAME, TargetState(unreadable="no answer"), Match.UNKNOWN),
        (COMMIT, SourceState(unreadable="no permission"), target(7), Match.UNKNOWN),
        (COMMIT, SourceState((), SAME.offsets, "no permission"), target(7), Match.UNKNOWN),
        (COMMIT, SAME, TargetState((), target(7).committed, "no answer"), Match.UNKNOWN),
        (COMMIT._replace(topic=None, partition=None), SAME, target(), Match.UNKNOWN),
        (FRESH, SAME, target(), Match.NOT_WRITTEN),
        (BLOCKED, SAME, target(3), Match.BLOCKED),
        (BLOCKED, SAME, target(7), Match.EQUAL),
        (BLOCKED, SAME, target(8), Match.AHEAD),
        (AHEAD, SAME, target(9), Match.AHEAD),
        (AHEAD, SAME, target(10), Match.AHEAD),
        (REFUSED, SAME, target(), Match.NOT_WRITTEN),
        (REFUSED, SAME, target(1), Match.AHEAD),
        (ONLY, NONE, target(3), Match.EQUAL),
        (ONLY, SAME, target(3), Match.SOURCE_MOVED),
        (ONLY, None, target(), Match.GONE),
        (NEVER, NONE, target(), Match.NO_OFFSET),
        (NEVER, SAME, target(), Match.SOURCE_MOVED),
        (NEVER, NONE, target(1), Match.AHEAD),
        (UNREAD, SAME, target(), Match.NO_OFFSET),
        (UNREAD, NONE, target(), Match.SOURCE_GONE),
        (UNREAD._replace(before=3), SAME, target(3), Match.EQUAL),
        (UNREAD._replace(reason=Reason.NO_TOPIC), SAME, target(), Match.EQUAL),
        # A node that is not a partition is equal unless nodes are hidden.
        (NAMELESS, SAME, target(), Match.EQUAL),
        (NAMELESS, None, target(), Match.EQUAL),
        (NAMELESS._replace(obstacles=LEGACY), SAME, target(), Match.EQUAL),
        (NAMELESS, hidden("orders"), target(), Match.UNKNOWN),
        (NAMELESS, hidden(None), target(), Match.UNKNOWN),
        (NAMELESS._replace(obstacles=UNREADABLE), SAME, target(), Match.UNKNOWN),
        (NAMELESS._replace(topic=None), SAME, target(), Match.UNKNOWN),
    ],
)
def test_a_row_is_compared_with_the_target_first(
    planned: PlanRow, source: SourceState | None, now: TargetState, match: Match
) -> None:
    found = next(iter(compare_rows([planned], source, now)))
    assert found.match is match
    assert (found.detail == "") == (match is Match.EQUAL)
    assert planned.reason is not Reason.NOT_A_PARTITION or found.detail in ("", "not a partition")
    assert (found.group, found.topic, found.target) == (planned.group, planned.topic, planned.target)


def test_without_zookeeper_dual_commit_is_unknown() -> None:
    [found] = compare_rows([COMMIT], None, target(7))
    assert (found.match, found.dual_commit) == (Match.EQUAL, "")


def test_offsets_outside_the_plan_are_reported() -> None:
    source = SourceState(
        (), OffsetNodes({PLACE: OffsetNode(107, 7), ("new", 0): OffsetNode(1, 2), ("orders", 1): OffsetNode(2, 5)})
    )

    found = compare_rows([COMMIT], source, TargetState((), {AT: BEFORE, OTHER: NativeOffset(TARGET, OTHER, 4)}))

    assert [(each.topic, each.partition, each.offset, each.native, each.match) for each in found] == [
        ("orders", 0, 7, 3, Match.NOT_WRITTEN),
        ("orders", 1, 5, 4, Match.AHEAD),
        ("new", 0, 2, None, Match.SOURCE_MOVED),
    ]
    assert [each.dual_commit for each in found] == ["zookeeper", "zookeeper", "zookeeper"]


@given(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))
def test_dual_commit_names_the_side_with_the_higher_offset(offset: int | None, native: int | None) -> None:
    side = dual_commit(offset, native)
    there = [each for each in (offset, native) if each is not None]
    assert (side == "neither") == (not there)
    assert (side == "either") == (len(there) == 2 and offset == native)
    if side in ("zookeeper", "kafka"):
        assert {"zookeeper": offset, "kafka": native}[side] == max(there)


SECOND = row("legacy", TARGET, OTHER, Decision(Action.COMMIT, Reason.UNCHANGED, 5), None, 5, 105)
THIRD = SECOND._replace(partition=2)


@given(
    st.lists(st.sampled_from([COMMIT, COMMIT, SECOND, SECOND, THIRD, COMMIT._replace(planned=6), AHEAD]), min_size=1),
    st.lists(st.sampled_from([COMMIT, SECOND, THIRD]), unique=True),
    st.lists(st.sampled_from([COMMIT, SECOND, THIRD]), unique=True),
    st.sampled_from([None, COMMIT, SECOND]),
)
@example([COMMIT._replace(planned=6), COMMIT], [COMMIT], [COMMIT], None)  # a plan that was edited
def test_each_row_of_a_group_is_compared_as_by_itself(
    rows: list[PlanRow], in_zookeeper: list[PlanRow], in_kafka: list[PlanRow], changed: PlanRow | None
) -> None:
    nodes: dict[OffsetKey, OffsetNode] = {
        (each.topic, each.partition): OffsetNode(1 if each is changed else each.zxid, each.planned)
        for each in in_zookeeper
    }
    now = TargetState((), {each.at: NativeOffset(TARGET, each.at, each.planned or 0) for each in in_kafka if each.at})
    for source in (SourceState((), OffsetNodes(nodes)), None):
        found = compare_rows(rows, source, now)
        assert [*found][: len(rows)] == [compare_rows([each], source, now)[0] for each in rows]


PLANNED = NativeOffset(TARGET, AT, 7)
PLANNED_SECOND = NativeOffset(TARGET, OTHER, 5)


@pytest.mark.parametrize(
    ("now", "stage"),
    [
        ([BEFORE], MigrationStage.NOT_BEGUN),
        ([PLANNED], MigrationStage.PARTLY),
        ([BEFORE, PLANNED_SECOND], MigrationStage.PARTLY),
        ([PLANNED, PLANNED_SECOND], MigrationStage.DONE),
        ([], MigrationStage.PARTLY),
        ([PLANNED._replace(offset=8), PLANNED_SECOND], MigrationStage.MOVED_ON),
        ([BEFORE._replace(metadata=None)], MigrationStage.MOVED_ON),
        ([PLANNED, PLANNED_SECOND, NativeOffset(TARGET, TopicPartition("new", 0), 0)], MigrationStage.MOVED_ON),
    ],
)
def test_the_stage_of_a_group_follows_from_its_target(now: list[NativeOffset], stage: MigrationStage) -> None:
    found = group_status([COMMIT, SECOND], TargetState((), {each.at: each for each in now}), "was moved", moved=True)
    assert (found.stage, found.group, found.target, found.mark) == (stage, "legacy", TARGET, "was moved")


def test_a_group_without_a_mark_is_not_done() -> None:
    now = TargetState((), {each.at: each for each in (PLANNED, PLANNED_SECOND)})
    found = group_status([COMMIT, SECOND], now, "", moved=False)
    assert found.stage is MigrationStage.NOT_MARKED
    assert found.detail == "the group has no mark of this plan in ZooKeeper: legacy members may join"


def test_a_group_with_obstacles_is_blocked_until_an_offset_is_written() -> None:
    rows = [COMMIT._replace(obstacles=(Obstacle(ObstacleKind.REFUSED_OFFSETS, count=1, reason=Reason.PAST_END),))]
    for moved in (None, False):
        found = group_status(rows, TargetState((), {AT: BEFORE}), "", moved=moved)
        assert (found.stage, found.detail) == (MigrationStage.BLOCKED, "1 refused: past the end")
    assert group_status(rows, TargetState((), {AT: PLANNED}), "", moved=None).stage is MigrationStage.DONE
    assert group_status(rows, TargetState((), {AT: BEFORE}), "was moved", moved=True).stage is MigrationStage.PARTLY


def test_an_unreadable_target_is_unknown_and_a_plan_without_writes_is_nothing_to_do() -> None:
    found = group_status([COMMIT], TargetState(unreadable="no answer"), "", moved=False)
    assert (found.stage, found.detail) == (MigrationStage.UNKNOWN, "no answer")
    assert group_status([ONLY], TargetState((), {AT: BEFORE}), "", moved=False).stage is MigrationStage.NOTHING
    assert group_status([ONLY], TargetState((), {AT: PLANNED}), "", moved=False).stage is MigrationStage.MOVED_ON
