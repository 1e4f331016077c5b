"""Comparing a plan with both sides: the match of each row, and the stage of a group."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.migration.rows import row
from zkgroups import TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.comparison import compare_rows, dual_commit
from zkgroups.core.migration.group_status import MigrationStage, group_status
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Decision, Reason
from zkgroups.core.migration.plan_rows import Match, PlanRow
from zkgroups.core.migration.source_and_target_state import OffsetKey, OffsetNode, OffsetNodes, SourceState, TargetState

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
PLACE: OffsetKey = ("orders", 0)
TARGET = "billing"
BEFORE = NativeOffset(TARGET, AT, 3, "note")
COMMIT = row("legacy", TARGET, AT, Decision(Action.COMMIT, Reason.UNCHANGED, 7), BEFORE, 7, 107)
FRESH = row("legacy", TARGET, AT, Decision(Action.COMMIT, Reason.UNCHANGED, 7), None, 7, 107)
AHEAD = row("legacy", TARGET, AT, Decision(Action.SKIP, Reason.TARGET_AHEAD), BEFORE._replace(offset=9), 7, 107)
REFUSED = row("legacy", TARGET, AT, Decision(Action.REFUSE, Reason.PAST_END), None, 7, 107)
ONLY = row("legacy", TARGET, AT, Decision(Action.SKIP, Reason.ONLY_ON_TARGET), BEFORE)
BLOCKED = COMMIT._replace(obstacles=(Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["scala-1"]),))
SAME = SourceState((), OffsetNodes({PLACE: OffsetNode(107, 7)}))


def target(offset: int | None = None) -> TargetState:
    return TargetState((), {} if offset is None else {AT: NativeOffset(TARGET, AT, offset)})


@pytest.mark.parametrize(
    ("planned", "source", "now", "match"),
    [
        (COMMIT, SAME, target(7), Match.EQUAL),
        (COMMIT, None, target(7), Match.EQUAL),
        (COMMIT, SourceState((), OffsetNodes({PLACE: OffsetNode(108, 7)})), target(7), Match.SOURCE_MOVED),
        (COMMIT, SourceState(), target(7), Match.SOURCE_GONE),
        (COMMIT, SAME, target(3), Match.NOT_WRITTEN),
        (COMMIT, SAME, target(8), Match.AHEAD),
        (COMMIT, SAME, target(4), Match.BEHIND),
        (COMMIT, SourceState(), target(4), Match.BEHIND),
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
        (AHEAD, SAME, target(9), Match.EQUAL),
        (AHEAD, SAME, target(10), Match.AHEAD),
        (REFUSED, SAME, target(), Match.NOT_WRITTEN),
        (REFUSED, SAME, target(1), Match.AHEAD),
        (ONLY, SourceState(), target(3), Match.EQUAL),
        (ONLY, SAME, target(3), Match.SOURCE_MOVED),
        (ONLY, None, target(), Match.GONE),
    ],
)
def test_a_row_is_compared_with_the_target_first(
    planned: PlanRow, source: SourceState | None, now: TargetState, match: Match
) -> None:
    found = next(iter(compare_rows([planned], source, now)))
    assert found.match is match
    assert (found.detail == "") == (match is Match.EQUAL)
    assert (found.group, found.topic, found.target) == (planned.group, planned.topic, planned.target)


NAMELESS = row("legacy", TARGET, AT, Decision(Action.SKIP, Reason.NO_OFFSET), problem="not a partition")
UNREADABLE = Obstacle(ObstacleKind.UNREADABLE, detail="/offsets/orders: no")
NAMELESS = NAMELESS._replace(topic="orders", partition=None)


@pytest.mark.parametrize(
    ("planned", "source", "match"),
    [
        (NAMELESS, SAME, Match.EQUAL),
        (NAMELESS, None, Match.EQUAL),
        (NAMELESS._replace(obstacles=(Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["scala-1"]),)), SAME, Match.EQUAL),
        (NAMELESS, SourceState((), OffsetNodes({("orders", None): OffsetNode(None, None)})), Match.UNKNOWN),
        (NAMELESS, SourceState((), OffsetNodes({(None, None): OffsetNode(None, None)})), Match.UNKNOWN),
        (
            NAMELESS._replace(obstacles=(Obstacle(ObstacleKind.UNREADABLE, detail="/offsets/orders: no"),)),
            SAME,
            Match.UNKNOWN,
        ),
        (NAMELESS._replace(topic=None), SAME, Match.UNKNOWN),
    ],
)
def test_a_node_that_is_not_a_partition_is_equal_unless_nodes_are_hidden(
    planned: PlanRow, source: SourceState | None, match: Match
) -> None:
    [found] = [each for each in compare_rows([planned], source, target()) if each.topic == planned.topic][:1]
    assert (found.match, found.detail) == (match, "" if match is Match.EQUAL else "not a partition")


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
