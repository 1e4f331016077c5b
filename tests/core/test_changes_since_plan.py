"""What stops a plan because it has changed since: logs, recreated topics, other offsets on the target."""

from __future__ import annotations

from typing import Any

import pytest

from tests.migration.rows import row
from zkgroups import TopicPartition
from zkgroups.core.kafka_values import NativeOffset, OffsetRange
from zkgroups.core.migration.changes_since_plan import (
    is_as_before,
    is_as_planned,
    log_obstacles,
    overwritten,
    recreated_obstacles,
    recreated_partitions,
    source_obstacles,
    target_obstacles,
)
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Decision, NoLog, Reason
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.core.migration.source_and_target_state import OffsetNode, OffsetNodes, SourceState, TargetState

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
COMMIT = Decision(Action.COMMIT, Reason.UNCHANGED, 7)
THERE = Decision(Action.SKIP, Reason.ALREADY_THERE)
AHEAD = Decision(Action.SKIP, Reason.TARGET_AHEAD)
UNKNOWN = Decision(Action.SKIP, Reason.NO_TOPIC)


def planned(at: TopicPartition = P0, decision: Decision = COMMIT, zxid: int | None = 100, **changed: Any) -> PlanRow:
    return row("legacy", "billing", at, decision, None, 7, zxid)._replace(**changed)


def committed(offset: int, at: TopicPartition = P0, note: str | None = None, epoch: int | None = None) -> NativeOffset:
    return NativeOffset("billing", at, offset, note, epoch)


def kinds(found: list[Obstacle]) -> list[tuple[ObstacleKind, tuple[str, ...]]]:
    return [(each.kind, each.names) for each in found]


# Logs


@pytest.mark.parametrize(
    ("offset", "log", "expected"),
    [
        (7, OffsetRange(7, 9), []),
        (7, OffsetRange(0, 7), []),
        (7, OffsetRange(8, 9), [ObstacleKind.OFFSETS_NOT_IN_LOG]),
        (7, OffsetRange(0, 6), [ObstacleKind.OFFSETS_NOT_IN_LOG]),
        (0, OffsetRange(0, 6), []),
        (0, OffsetRange(1, 6), [ObstacleKind.OFFSETS_NOT_IN_LOG]),
        (7, NoLog.NEWER, [ObstacleKind.TOPICS_RECREATED]),
        (7, NoLog.RECREATED, [ObstacleKind.TOPICS_RECREATED]),
        (7, NoLog.NO_TOPIC, []),
        (7, NoLog.NO_PARTITION, []),
        (7, NoLog.UNKNOWN, []),
    ],
)
def test_a_planned_offset_must_still_be_in_its_log(
    offset: int, log: OffsetRange | NoLog, expected: list[ObstacleKind]
) -> None:
    asked = []

    def log_of(*which: object) -> OffsetRange | NoLog:
        asked.append(which)
        return log

    rows = [planned(planned=offset, log_end=9, topic_id="id")]
    assert kinds(log_obstacles(rows, log_of)) == [(kind, ("orders/0",)) for kind in expected]
    assert asked == [(P0, 100, "id")]


def test_the_log_does_not_matter_if_the_plan_was_made_without_logs() -> None:
    assert log_obstacles([planned(log_end=None)], lambda *_: OffsetRange(8, 9)) == []


# Recreated topics


@pytest.mark.parametrize(
    ("known", "created", "is_recreated"),
    [
        (planned(), 101, True),
        (planned(), 100, False),
        (planned(), 99, False),
        (planned(decision=THERE), 101, True),
        (planned(decision=AHEAD), 101, True),
        (planned(decision=UNKNOWN), 101, False),
        (planned(topic_id="id"), 101, False),
        (planned(zxid=None), 101, False),
    ],
)
def test_a_topic_without_an_id_was_recreated_if_it_is_newer_than_its_offset(
    known: PlanRow, created: int, is_recreated: bool
) -> None:
    expected = {P0} if is_recreated else set()
    assert recreated_partitions([known], {}, {"orders": created}) == expected
    assert recreated_partitions([known], {}, {"paid": created}) == set()
    assert recreated_partitions([known], {}) == set()


def test_a_topic_with_another_id_was_recreated() -> None:
    rows = [planned(topic_id="old"), planned(P1, topic_id="old"), planned(TopicPartition("paid", 0), topic_id="same")]
    recreated = recreated_partitions(rows, {"orders": "new", "paid": "same"})
    assert recreated == {P0, P1}
    assert kinds(recreated_obstacles(rows, recreated)) == [(ObstacleKind.TOPICS_RECREATED, ("orders/0", "orders/1"))]
    assert recreated_obstacles(rows, ()) == []


# The target


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (None, None, True),
        (committed(3, note="a", epoch=1), committed(3, note="a", epoch=1), True),
        (None, committed(3), False),
        (committed(3), None, False),
        (committed(3), committed(4), False),
        (committed(3, note="a"), committed(3, note="b"), False),
        (committed(3, epoch=1), committed(3, epoch=2), False),
    ],
)
def test_a_target_is_as_before_only_with_the_same_offset_note_and_epoch(
    before: NativeOffset | None, now: NativeOffset | None, same: bool
) -> None:
    assert is_as_before(row("legacy", "billing", P0, COMMIT, before, 7, 100), now) is same


def test_a_target_is_as_planned_only_if_the_plan_writes_the_offset() -> None:
    assert is_as_planned(planned(), committed(7))
    assert not is_as_planned(planned(), committed(8))
    assert not is_as_planned(planned(), None)
    assert not is_as_planned(planned(action=Action.SKIP), committed(7))


def test_commits_on_the_target_since_the_plan_are_obstacles() -> None:
    rows = [planned(), planned(P1)]
    other = TopicPartition("paid", 0)
    assert target_obstacles(rows, TargetState(committed={P0: committed(7)})) == []
    state = TargetState(committed={P0: committed(8), P1: committed(7, P1), other: committed(1, other)})
    changed, added = ObstacleKind.TARGET_OFFSETS_CHANGED, ObstacleKind.TARGET_OFFSETS_ADDED
    assert sorted(kinds(target_obstacles(rows, state))) == sorted([(changed, ("orders/0",)), (added, ("paid/0",))])


def test_members_of_the_target_are_obstacles_even_if_its_offsets_are_as_planned() -> None:
    for state in (TargetState(("anna",)), TargetState(("anna",), {P0: committed(7)})):
        assert [each.kind for each in target_obstacles([planned()], state)] == [ObstacleKind.NATIVE_MEMBERS]


def test_an_unreadable_target_is_an_obstacle() -> None:
    [found] = target_obstacles([planned()], TargetState(unreadable="no answer"))
    assert "no answer" in str(found)


def test_offsets_that_another_client_has_overwritten_are_found_after_the_write() -> None:
    rows, written = [planned(), planned(P1)], {P0: 7, P1: 7}
    other = TopicPartition("paid", 0)
    good = {P0: committed(7), P1: committed(7, P1)}
    assert overwritten(rows, written, TargetState(committed=good)) == []
    assert overwritten(rows, {P0: 7}, TargetState(committed=good)) == []
    lost = TargetState(committed={P0: committed(8), other: committed(1, other)})
    assert kinds(overwritten(rows, written, lost)) == [
        (ObstacleKind.TARGET_OVERWRITTEN, ("orders/0", "orders/1")),
        (ObstacleKind.TARGET_OVERWRITTEN_ADDED, ("paid/0",)),
    ]


# The source


def source(*nodes: tuple[tuple[str | None, int | None], int | None], instances: tuple[str, ...] = ()) -> SourceState:
    return SourceState(instances, OffsetNodes({key: OffsetNode(zxid, 7) for key, zxid in nodes}))


def test_offsets_that_were_written_deleted_or_added_since_the_plan_are_obstacles() -> None:
    rows = [planned(), planned(P1)]
    assert source_obstacles(rows, source((P0, 100), (P1, 100))) == []
    assert source_obstacles(rows, source((P1, 100), (P0, 100))) == []
    found = source_obstacles(rows, source((P0, 101), (("paid", 0), 5)))
    assert sorted(kinds(found)) == sorted(
        [
            (ObstacleKind.SOURCE_OFFSETS_WRITTEN, ("orders/0",)),
            (ObstacleKind.SOURCE_OFFSETS_DELETED, ("orders/1",)),
            (ObstacleKind.SOURCE_OFFSETS_ADDED, ("paid/0",)),
        ]
    )


def test_only_topics_of_the_plan_count_as_added() -> None:
    rows = [planned(topics="orders|p.*")]
    assert source_obstacles(rows, source((P0, 100), (("other", 0), 5))) == []
    for topic in ("paid", None):
        found = source_obstacles(rows, source((P0, 100), ((topic, 0 if topic else None), 5)))
        assert [each.kind for each in found] == [ObstacleKind.SOURCE_OFFSETS_ADDED]


def test_instances_of_the_source_are_obstacles() -> None:
    for nodes in ([(P0, 100)], [(P0, 100), (("paid", 0), 5)]):
        found = source_obstacles([planned()], source(*nodes, instances=("scala",)))
        assert ObstacleKind.LEGACY_INSTANCES in [each.kind for each in found]
