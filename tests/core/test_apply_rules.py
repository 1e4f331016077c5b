"""Applying and rolling back a plan, over a model of the target: a kill after any step does not change the result."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.migration.rows import row
from zkgroups import TopicPartition
from zkgroups.core.kafka_values import NativeOffset, OffsetRange
from zkgroups.core.migration.apply_rules import is_begun, needs_mark, offsets_to_write
from zkgroups.core.migration.changes_since_plan import by_target, source_obstacles, target_obstacles
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Decision, Reason, Rule, decide
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.core.migration.rollback_rules import (
    Restoration,
    committed_since_obstacles,
    forward_only,
    not_moved,
    progress,
    restoration,
)
from zkgroups.core.migration.source_and_target_state import OffsetKey, OffsetNode, OffsetNodes, SourceState, TargetState

Store = dict[TopicPartition, NativeOffset]

ALL = OffsetRange(0, 2**63 - 1)
TARGET = "billing"
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["orders", "paid"]), st.integers(0, 3))
OFFSETS = st.integers(0, 5)
NOTES = st.sampled_from([None, "note", "größe\0"])
EPOCHS = st.none() | st.integers(0, 2)


def stores(partitions: st.SearchStrategy[TopicPartition] = PARTITIONS) -> st.SearchStrategy[Store]:
    """Offsets of a target."""
    found = st.dictionaries(partitions, st.tuples(OFFSETS, NOTES, EPOCHS), max_size=6)
    return found.map(lambda its: {at: NativeOffset(TARGET, at, *fields) for at, fields in its.items()})


SOURCES = st.dictionaries(PARTITIONS, OFFSETS, max_size=6)


def planned(source: dict[TopicPartition, int], before: Store, *, backward: bool = False) -> list[PlanRow]:
    """The whole plan of one group."""
    rows = []
    for at, offset in source.items():
        there = before.get(at)
        decision = decide(offset, ALL, there.offset if there else None, Rule(backward=backward))
        rows.append(row("legacy", TARGET, at, decision, there, offset, zxid=offset + 100))
    only = Decision(Action.SKIP, Reason.ONLY_ON_TARGET)
    return rows + [row("legacy", TARGET, at, only, there) for at, there in before.items() if at not in source]


def applied(rows: list[PlanRow], before: Store) -> Store:
    """The target once the plan is applied."""
    written = {each.at: NativeOffset(TARGET, each.at, each.planned) for each in rows if each.action is Action.COMMIT}
    return before | written


def seen(store: Store) -> TargetState:
    return TargetState((), dict(store))


def steps(todo: Restoration) -> list[Any]:
    """Split a restoration into single offsets: when a broker dies, it may have applied any part of a request."""
    commits = list(todo.commits.values())
    return [*commits, "delete", *commits] if todo.deletes_group else [*commits, *todo.removed]


def do(store: Store, some: list[Any]) -> None:
    for step in some:
        if step == "delete":
            store.clear()
        elif isinstance(step, TopicPartition):
            store.pop(step, None)
        else:
            store[step.at] = step


@given(SOURCES, stores(), st.data())
def test_apply_can_be_killed_and_repeated_with_the_same_result(
    source: dict[TopicPartition, int], before: Store, data: st.DataObject
) -> None:
    rows, store = planned(source, before, backward=data.draw(st.booleans())), dict(before)
    for _ in range(data.draw(st.integers(0, 3))):
        assert target_obstacles(rows, seen(store)) == []
        left = offsets_to_write(rows, store)
        some = data.draw(st.lists(st.sampled_from(sorted(left)), unique=True)) if left else []
        do(store, [NativeOffset(TARGET, at, left[at]) for at in some])
        assert is_begun(rows, store) == (store != before)
    do(store, [NativeOffset(TARGET, at, offset) for at, offset in offsets_to_write(rows, store).items()])
    assert store == applied(rows, before)
    assert offsets_to_write(rows, store) == {}
    assert target_obstacles(rows, seen(store)) == []


@given(SOURCES, stores(), st.booleans(), st.data())
def test_apply_and_rollback_can_be_killed_and_the_target_is_restored(
    source: dict[TopicPartition, int], before: Store, single: bool, data: st.DataObject
) -> None:
    rows, store = planned(source, before, backward=data.draw(st.booleans())), dict(before)
    left = list(offsets_to_write(rows, store).items())
    do(store, [NativeOffset(TARGET, at, offset) for at, offset in left[: data.draw(st.integers(0, len(left)))]])
    for _ in range(data.draw(st.integers(0, 3))):
        todo = restoration(rows, store, single=single)
        assert committed_since_obstacles(todo) == []
        do(store, steps(todo)[: data.draw(st.integers(0, len(steps(todo))))])
    do(store, steps(restoration(rows, store, single=single)))
    assert store == before
    assert not restoration(rows, store, single=single).touched


@given(SOURCES, stores(), stores(), st.booleans())
def test_force_restores_any_target_and_later_commits_are_known(
    source: dict[TopicPartition, int], before: Store, now: Store, single: bool
) -> None:
    rows, store = planned(source, before), dict(now)
    todo = restoration(rows, store, single=single)
    assert todo.deletes_group == bool(todo.removed and not (single and before))
    numbers = {each.at: each.planned for each in rows if each.action is Action.COMMIT}
    assert todo.committed_since == {
        at for at, it in now.items() if it != before.get(at) and it.offset != numbers.get(at)
    }
    do(store, steps(todo))
    assert store == before


def test_a_group_with_thousands_of_offsets_is_restored_after_a_kill_at_any_step() -> None:
    every = [TopicPartition("orders", number) for number in range(2500)]
    before = {at: NativeOffset(TARGET, at, 1, "note", 3) for at in every[::2]}
    rows = planned(dict.fromkeys(every, 7), before)
    total = len(steps(restoration(rows, applied(rows, before), single=False)))
    for killed in (0, 1, 2, 999, 1000, 1001, total - 1, total):
        store = applied(rows, before)
        do(store, steps(restoration(rows, store, single=False))[:killed])
        assert committed_since_obstacles(restoration(rows, store, single=False)) == []
        do(store, steps(restoration(rows, store, single=False)))
        assert store == before


def test_a_plan_blocked_only_by_legacy_instances_may_have_moved_a_group() -> None:
    legacy = Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["anna"])
    native = Obstacle.of(ObstacleKind.NATIVE_MEMBERS, ["berta"])
    assert not_moved(ROWS) == not_moved([ROWS[0]._replace(obstacles=(legacy,))]) == []
    assert not_moved([ROWS[0]._replace(obstacles=(legacy, native))]) == [
        Obstacle(ObstacleKind.NOT_MOVED, detail=str(native))
    ]


# To ZooKeeper


@given(SOURCES, SOURCES, stores(), stores(), st.booleans())
def test_only_progress_is_copied_to_zookeeper_and_only_forward(
    source: dict[TopicPartition, int],
    in_zookeeper: dict[TopicPartition, int],
    before: Store,
    moved: Store,
    backward: bool,
) -> None:
    rows = planned(source, before, backward=backward)
    left = applied(rows, before)
    store = left | moved
    nodes: dict[OffsetKey, OffsetNode] = {
        (at.topic, at.partition): OffsetNode(1, it) for at, it in in_zookeeper.items()
    }
    assert forward_only(progress(rows, store), nodes) == {
        at: it.offset
        for at, it in moved.items()
        if it != before.get(at)
        if it.offset > max(in_zookeeper.get(at, -1), left[at].offset if at in left else -1)
    }
    assert progress(rows, left) == progress(rows, before) == {}


# Guards


AT = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
BEFORE = NativeOffset(TARGET, AT, 3, "note", 1)
ROWS = planned({AT: 7}, {AT: BEFORE})
PLACE = {("orders", 0): OffsetNode(107, 7)}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (SourceState((), OffsetNodes(PLACE)), []),
        (SourceState(("scala-1",), OffsetNodes(PLACE)), ["legacy instances are registered: scala-1"]),
        (SourceState((), OffsetNodes(PLACE), "/ids: no"), ["the state of the group could not be read: /ids: no"]),
        (
            SourceState((), OffsetNodes({("orders", 0): OffsetNode(108, 7)})),
            ["offsets in ZooKeeper were written since the plan: orders/0"],
        ),
        (
            SourceState((), OffsetNodes({("orders", 0): OffsetNode(None, None)})),
            ["offsets in ZooKeeper were written since the plan: orders/0"],
        ),
        (SourceState((), OffsetNodes({})), ["offsets in ZooKeeper were deleted since the plan: orders/0"]),
        (
            SourceState((), OffsetNodes(PLACE | {("a", 1): OffsetNode(1, 1)})),
            ["offsets in ZooKeeper are new since the plan: a/1"],
        ),
        (
            SourceState((), OffsetNodes(PLACE | {("a", None): OffsetNode(None, None)})),
            ["offsets in ZooKeeper are new since the plan: a"],
        ),
        (
            SourceState((), OffsetNodes(PLACE | {(None, None): OffsetNode(None, None)})),
            ["offsets in ZooKeeper are new since the plan: all"],
        ),
    ],
)
def test_changes_in_zookeeper_since_the_plan_are_obstacles(found: SourceState, words: list[str]) -> None:
    assert list(map(str, source_obstacles(ROWS, found))) == words


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ([BEFORE], []),
        ([NativeOffset(TARGET, AT, 7)], []),
        ([NativeOffset(TARGET, AT, 7, "by somebody")], []),
        ([], ["offsets of the target have changed since the plan: orders/0"]),
        ([NativeOffset(TARGET, AT, 4)], ["offsets of the target have changed since the plan: orders/0"]),
        ([NativeOffset(TARGET, AT, 3, "note")], ["offsets of the target have changed since the plan: orders/0"]),
        ([BEFORE, NativeOffset(TARGET, OTHER, 1)], ["offsets of the target are new since the plan: orders/1"]),
    ],
)
def test_the_target_must_be_as_before_or_as_planned(now: list[NativeOffset], words: list[str]) -> None:
    assert list(map(str, target_obstacles(ROWS, TargetState((), {each.at: each for each in now})))) == words


def test_active_members_and_an_unreadable_target_are_obstacles() -> None:
    active, unreadable = TargetState(("anna",), {AT: BEFORE}), TargetState(unreadable="no answer")
    assert target_obstacles(ROWS, active) == [Obstacle.of(ObstacleKind.NATIVE_MEMBERS, ["anna"])]
    assert target_obstacles(ROWS, unreadable) == [Obstacle(ObstacleKind.UNREADABLE, detail="no answer")]


def test_new_offsets_of_topics_outside_the_plan_are_ignored() -> None:
    rows = [each._replace(topics="or.*") for each in ROWS]
    assert source_obstacles(rows, SourceState((), OffsetNodes(PLACE | {("paid", 0): OffsetNode(1, 1)}))) == []
    assert source_obstacles(rows, SourceState((), OffsetNodes(PLACE | {("orb", 0): OffsetNode(1, 1)}))) != []


def test_a_new_znode_for_an_offset_that_only_the_target_had_is_an_obstacle() -> None:
    rows = planned({}, {AT: BEFORE})
    assert source_obstacles(rows, SourceState()) == []
    assert source_obstacles(rows, SourceState((), OffsetNodes(PLACE))) == [
        Obstacle.of(ObstacleKind.SOURCE_OFFSETS_ADDED, ["orders/0"])
    ]


def test_only_three_of_many_changes_are_named() -> None:
    rows = planned({TopicPartition("orders", number): 7 for number in range(9)}, {})
    assert list(map(str, source_obstacles(rows, SourceState()))) == [
        "offsets in ZooKeeper were deleted since the plan: orders/0, orders/1, orders/2 and 6 more"
    ]


def test_rows_are_grouped_by_target() -> None:
    assert by_target(ROWS) == {TARGET: ROWS}


def test_a_group_is_marked_if_any_of_its_offsets_is_or_will_be_on_the_target() -> None:
    at = TopicPartition("orders", 0)

    def of(action: Action, reason: Reason, offset: int | None = None) -> PlanRow:
        return row("legacy", TARGET, at, Decision(action, reason, offset), None, 7, 100)

    skipped = of(Action.SKIP, Reason.NO_TOPIC)
    assert not needs_mark([skipped])
    assert not needs_mark([skipped, of(Action.REFUSE, Reason.PAST_END)])
    assert not needs_mark([skipped, of(Action.SKIP, Reason.ONLY_ON_TARGET)])
    for moved in (
        of(Action.COMMIT, Reason.UNCHANGED, 7),
        of(Action.COMMIT, Reason.UNCHANGED, 0),
        of(Action.SKIP, Reason.ALREADY_THERE),
        of(Action.SKIP, Reason.TARGET_AHEAD),
    ):
        assert needs_mark([skipped, moved])
