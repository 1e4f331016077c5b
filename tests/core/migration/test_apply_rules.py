"""Applying and rolling back a plan, over a model of the target: a kill after any step does not change the result.

And what stops either of them because it has changed since the plan, and how rows are counted.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.migration.rows import row
from zkgroups import TopicPartition
from zkgroups.core.columns import Columns, column
from zkgroups.core.kafka_values import NativeOffset, OffsetRange
from zkgroups.core.migration.changes_since_plan import (
    OffsetKey,
    OffsetNode,
    OffsetNodes,
    SourceState,
    TargetState,
    WriteState,
    by_target,
    is_begun,
    log_obstacles,
    needs_mark,
    offsets_to_write,
    overwritten,
    recreated_obstacles,
    recreated_partitions,
    source_obstacles,
    target_obstacles,
    write_state,
)
from zkgroups.core.migration.comparison import (
    Restoration,
    changed_obstacles,
    changed_partitions,
    committed_since_obstacles,
    forward_only,
    newer_offsets,
    not_moved,
    progress,
    restoration,
    unrestorable_offsets,
)
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Decision, NoLog, Reason, Rule, decide
from zkgroups.core.migration.plan_rows import MigrationStep, Outcome, PlanRow, ReportRow, Tally, places

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


# What has changed since the plan

P0, P1, PAID = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("paid", 0)
BEFORE = NativeOffset(TARGET, P0, 3, "note", 1)
ROWS = planned({P0: 7}, {P0: BEFORE})
COMMIT = Decision(Action.COMMIT, Reason.UNCHANGED, 7)
WRITTEN, DELETED, NEW = (
    f"offsets in ZooKeeper {what} since the plan: " for what in ("were written", "were deleted", "are new")
)
CHANGED, ADDED = (f"offsets of the target {what} since the plan: " for what in ("have changed", "are new"))


def one_row(
    at: TopicPartition | None = P0, decision: Decision = COMMIT, before: int | None = None, **changed: Any
) -> PlanRow:
    prior = None if before is None else native(before, at or P0)
    found = row("legacy", TARGET, at or P0, decision, prior, 7, 100)
    return found._replace(**({"partition": None} if at is None else {}), **changed)


def native(offset: int, at: TopicPartition = P0, *fields: Any) -> NativeOffset:
    return NativeOffset(TARGET, at, offset, *fields)


def target(*found: NativeOffset) -> TargetState:
    return TargetState((), {each.at: each for each in found})


def source(*instances: str, unreadable: str = "", **zxids: int | None) -> SourceState:
    """The nodes of topics: `orders` stands for partition 0, `orders_1` for partition 1, and `_` for no name at all."""
    nodes: dict[OffsetKey, OffsetNode] = {}
    for name, zxid in zxids.items():
        topic, _, number = name.partition("_")
        key = (topic or None, int(number or 0) if topic else None)
        nodes[key] = OffsetNode(zxid, 7)
    return SourceState(instances, OffsetNodes(nodes), unreadable)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (source(orders=100, orders_1=100), []),
        (source(orders_1=100, orders=100), []),
        (source("scala-1", orders=100, orders_1=100), ["legacy instances are registered: scala-1"]),
        (
            source("scala-1", orders=100, orders_1=100, paid=5),
            ["legacy instances are registered: scala-1", NEW + "paid/0"],
        ),
        (
            source(orders=100, orders_1=100, unreadable="/ids: no"),
            ["the state of the group could not be read: /ids: no"],
        ),
        (source(orders=101, orders_1=None), [WRITTEN + "orders/0, orders/1"]),
        (source(orders=100), [DELETED + "orders/1"]),
        (source(orders=100, orders_1=100, paid=5), [NEW + "paid/0"]),
        (source(orders=100, orders_1=100, _=None), [NEW + "all"]),
        (source(orders=100, orders_1=100, other=5), []),
    ],
)
def test_changes_in_zookeeper_are_obstacles_if_the_plan_covers_the_topic(found: SourceState, words: list[str]) -> None:
    rows = [one_row(topics="orders|p.*"), one_row(P1, topics="orders|p.*")]
    assert sorted(map(str, source_obstacles(rows, found))) == sorted(words)


def test_a_new_znode_for_an_offset_that_only_the_target_had_is_an_obstacle() -> None:
    rows = planned({}, {P0: BEFORE})
    assert source_obstacles(rows, SourceState()) == []
    assert list(map(str, source_obstacles(rows, source(orders=107)))) == [NEW + "orders/0"]


def test_only_three_of_many_changes_are_named() -> None:
    rows = planned({TopicPartition("orders", number): 7 for number in range(9)}, {})
    assert [str(each) for each in source_obstacles(rows, SourceState())] == [
        DELETED + "orders/0, orders/1, orders/2 and 6 more"
    ]


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (target(BEFORE), []),
        (target(native(7)), []),
        (target(native(7, P0, "by somebody")), []),
        (target(), [CHANGED + "orders/0"]),
        (target(native(4)), [CHANGED + "orders/0"]),
        (target(native(3, P0, "note")), [CHANGED + "orders/0"]),
        (target(native(3, P0, "other", 1)), [CHANGED + "orders/0"]),
        (target(BEFORE, native(1, P1)), [ADDED + "orders/1"]),
        (TargetState(("anna",), {P0: BEFORE}), ["the group has active members on the brokers: anna"]),
        (TargetState(unreadable="no answer"), ["the state of the group could not be read: no answer"]),
    ],
)
def test_the_target_must_be_as_before_or_as_planned_without_members(now: TargetState, words: list[str]) -> None:
    assert list(map(str, target_obstacles(ROWS, now))) == words


def test_a_skipped_offset_must_be_as_before() -> None:
    rows = planned({P0: 7}, {P0: native(9)})
    assert target_obstacles(rows, target(native(9))) == []
    assert list(map(str, target_obstacles(rows, target(native(7))))) == [CHANGED + "orders/0"]
    new = planned({P0: 7}, {})
    assert target_obstacles(new, target()) == target_obstacles(new, target(native(7))) == []
    assert [each.kind for each in target_obstacles(new, TargetState(("anna",)))] == [ObstacleKind.NATIVE_MEMBERS]


def test_offsets_that_another_client_has_overwritten_are_found_after_the_write() -> None:
    rows, written = [one_row(), one_row(P1)], {P0: 7, P1: 7}
    assert overwritten(rows, written, target(native(7), native(7, P1))) == []
    assert overwritten(rows, {P0: 7}, target(native(7), native(7, P1))) == []
    lost = overwritten(rows, written, target(native(8), native(1, PAID)))
    assert [(each.kind, each.names) for each in lost] == [
        (ObstacleKind.TARGET_OVERWRITTEN, ("orders/0", "orders/1")),
        (ObstacleKind.TARGET_OVERWRITTEN_ADDED, ("paid/0",)),
    ]


NOT_IN_LOG, RECREATED = ObstacleKind.OFFSETS_NOT_IN_LOG, ObstacleKind.TOPICS_RECREATED


@pytest.mark.parametrize(
    ("offset", "log", "expected"),
    [
        (7, OffsetRange(7, 9), []),
        (7, OffsetRange(0, 7), []),
        (7, OffsetRange(8, 9), [NOT_IN_LOG]),
        (7, OffsetRange(0, 6), [NOT_IN_LOG]),
        (0, OffsetRange(0, 6), []),
        (0, OffsetRange(1, 6), [NOT_IN_LOG]),
        (7, NoLog.NEWER, [RECREATED]),
        (7, NoLog.RECREATED, [RECREATED]),
        (7, NoLog.NO_TOPIC, []),
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

    found = log_obstacles([one_row(planned=offset, log_end=9, topic_id="id")], log_of)
    assert [(each.kind, each.names) for each in found] == [(kind, ("orders/0",)) for kind in expected]
    assert asked == [(P0, 100, "id")]
    if isinstance(log, OffsetRange):
        assert log_obstacles([one_row(planned=offset, log_end=None)], log_of) == [], "it was planned without logs"


@pytest.mark.parametrize(
    ("known", "created", "is_recreated"),
    [
        (one_row(), 101, True),
        (one_row(), 100, False),
        (one_row(decision=Decision(Action.SKIP, Reason.ALREADY_THERE)), 101, True),
        (one_row(decision=Decision(Action.SKIP, Reason.TARGET_AHEAD)), 101, True),
        (one_row(decision=Decision(Action.SKIP, Reason.NO_TOPIC)), 101, False),
        (one_row(decision=Decision(Action.COMMIT, Reason.CLAMPED_ANEW, 7)), 101, False),
        (one_row(topic_id="id"), 101, False),
        (one_row(zxid=None), 101, False),
    ],
)
def test_a_topic_without_an_id_was_recreated_if_it_is_newer_than_its_offset(
    known: PlanRow, created: int, is_recreated: bool
) -> None:
    assert recreated_partitions([known], {}, {"orders": created}) == ({P0} if is_recreated else set())
    assert recreated_partitions([known], {}, {"paid": created}) == recreated_partitions([known], {}) == set()


def test_a_topic_with_another_id_was_recreated() -> None:
    rows = [one_row(topic_id="old"), one_row(P1, topic_id="old"), one_row(PAID, topic_id="same")]
    recreated = recreated_partitions(rows, {"orders": "new", "paid": "same"})
    assert recreated == {P0, P1}
    [found] = recreated_obstacles(rows, recreated)
    assert (found.kind, found.names) == (RECREATED, ("orders/0", "orders/1"))
    assert recreated_obstacles(rows, ()) == []


# Rolling back


def test_an_earlier_offset_of_a_missing_or_recreated_partition_cannot_be_restored() -> None:
    rows = [one_row(at, before=3) for at in (P0, P1, PAID)]
    lost = unrestorable_offsets(rows, {}, {"orders": [0]})
    assert [lost.reason(at) for at in (P0, P1, PAID, None)] == [None, Reason.NO_PARTITION, Reason.NO_TOPIC, None]
    assert unrestorable_offsets(rows, {}, {"orders": [0]}, kept={P1, PAID}).missing == {}
    assert unrestorable_offsets([one_row(P1)], {}, {}).missing == {}
    old = [one_row(before=3, topic_id="old")]
    for id, reason in (("new", Reason.RECREATED), ("old", None)):
        assert unrestorable_offsets(old, {"orders": id}, {"orders": [0]}).reason(P0) is reason
    assert unrestorable_offsets(rows[:1], {}, {"orders": [0]}, created={"orders": 101}).reason(P0) is Reason.RECREATED


def test_commits_since_the_plan_are_found_and_those_that_moved_back_are_named() -> None:
    rows = [one_row(before=3), one_row(P1, before=3)]
    found = restoration(rows, {P0: native(7), P1: native(6, P1), PAID: native(1, PAID)}, single=True)
    assert (found.committed_since, found.moved_back) == ({P1, PAID}, {P1})
    assert (found.removed, found.deletes_group) == ({PAID}, False)
    assert found.commits == {P0: native(3), P1: native(3, P1)}
    assert found.touched == {P0, P1, PAID}
    kept = row("legacy", TARGET, P0, Decision(Action.SKIP, Reason.TARGET_AHEAD), native(9), 7, 100)
    found = restoration([kept], {P0: native(9, P0, "new")}, single=True)
    assert (found.committed_since, found.moved_back) == ({P0}, frozenset()), "the same offset with another note"


def test_a_target_that_has_changed_during_a_rollback_is_an_obstacle() -> None:
    before = target(native(7), native(7, P1))
    assert changed_obstacles(before, before) == []
    now = TargetState(("anna",), {P0: native(8), PAID: native(1, PAID)})
    assert changed_partitions(before, now) == [P0, P1, PAID]
    assert [each.kind for each in changed_obstacles(before, now)] == [
        ObstacleKind.NATIVE_MEMBERS,
        ObstacleKind.COMMITTED_DURING_ROLLBACK,
    ]
    assert changed_partitions(before, TargetState(unreadable="no answer")) == []


def test_offsets_that_legacy_clients_have_committed_since_the_plan_are_newer() -> None:
    def newer(zxid: int, offset: int, now: int | None) -> dict[TopicPartition, int]:
        nodes = OffsetNodes({("orders", 0): OffsetNode(zxid, offset), ("orders", 1): OffsetNode(100, 7)})
        return newer_offsets([one_row(), one_row(P1)], SourceState((), nodes), {} if now is None else {P0: native(now)})

    assert newer(101, 9, 7) == newer(101, 9, None) == {P0: 9}
    assert newer(101, 0, None) == {P0: 0}
    assert newer(100, 9, 7) == newer(101, 7, 7) == {}
    assert newer_offsets([one_row()], source(paid=5), {}) == {PAID: 7}


def test_a_plan_blocked_only_by_legacy_instances_may_have_moved_a_group() -> None:
    legacy, members = (
        Obstacle.of(kind, ["anna"]) for kind in (ObstacleKind.LEGACY_INSTANCES, ObstacleKind.NATIVE_MEMBERS)
    )
    assert not_moved(ROWS) == not_moved([ROWS[0]._replace(obstacles=(legacy,))]) == []
    blocked = Obstacle(ObstacleKind.NOT_MOVED, detail=str(members))
    assert not_moved([ROWS[0]._replace(obstacles=(legacy, members))]) == [blocked]


# Carrying it out


def test_a_group_is_marked_if_any_of_its_offsets_is_or_will_be_on_the_target() -> None:
    skipped = [Decision(Action.SKIP, Reason.NO_TOPIC)]
    for decision, is_marked in (
        (skipped[0], False),
        (Decision(Action.REFUSE, Reason.PAST_END), False),
        (Decision(Action.SKIP, Reason.ONLY_ON_TARGET), False),
        (COMMIT, True),
        (Decision(Action.COMMIT, Reason.UNCHANGED, 0), True),
        (Decision(Action.SKIP, Reason.ALREADY_THERE), True),
        (Decision(Action.SKIP, Reason.TARGET_AHEAD), True),
    ):
        assert needs_mark([one_row(decision=each) for each in (*skipped, decision)]) == is_marked


NUMBERS = st.none() | st.integers(0, 3)


@given(NUMBERS, NUMBERS, st.integers(0, 3))
def test_a_repeated_run_only_overwrites_the_offset_from_before_the_plan(
    now: int | None, before: int | None, planned: int
) -> None:
    found = write_state(now, before, planned)
    assert (found is WriteState.DONE) == (now == planned)
    assert found is not WriteState.TO_WRITE or now == before


# Rows


def test_a_row_has_the_earlier_offset_unless_it_has_no_partition_and_travels_between_processes() -> None:
    known = ROWS[0]
    assert (known.at, known.prior) == (P0, BEFORE)
    assert known._replace(before=None).prior is None
    for nowhere in (known._replace(partition=None), known._replace(topic=None, partition=None)):
        assert (nowhere.at, nowhere.prior) == (None, None)
    assert pickle.loads(pickle.dumps(known)) == known
    assert by_target(ROWS) == {TARGET: ROWS}


def reported(group: str, outcome: Outcome) -> ReportRow:
    return ReportRow("p", MigrationStep.APPLY, 1, group, "orders", 0, group, None, None, outcome, "")


def test_a_plan_is_counted_by_group_action_and_reason() -> None:
    rows = [
        one_row(),
        one_row(decision=Decision(Action.SKIP, Reason.STALE)),
        one_row(group="b", obstacles=(Obstacle(ObstacleKind.TARGET_CONFLICT),)),
    ]
    counts = {"commit": 2, "skip": 1, "unchanged": 2, "stale": 1}
    assert Tally.of(PlanRow, rows) == Tally(rows=3, groups=2, left=1, failed=0, counts=counts)


def test_a_group_counts_once_however_many_rows_were_left_or_failed() -> None:
    rows = [
        *(reported("a", outcome) for outcome in (Outcome.WRITTEN, Outcome.FAILED, Outcome.OVERTAKEN)),
        *(reported("b", outcome) for outcome in (Outcome.LEFT, Outcome.LEFT)),
        reported("c", Outcome.THERE),
    ]
    counts = {"written": 1, "already there": 1, "left": 2, "overtaken": 1, "failed": 1}
    assert Tally.of(ReportRow, rows) == Tally(rows=6, groups=3, left=1, failed=1, counts=counts)


@given(st.lists(st.sampled_from(Outcome)), st.lists(st.sampled_from(Outcome)))
def test_the_tallies_of_tasks_add_up(first: list[Outcome], second: list[Outcome]) -> None:
    parts = [
        [reported(f"{part} {n}", each) for n, each in enumerate(found)] for part, found in enumerate((first, second))
    ]
    one, other = (Tally.of(ReportRow, part) for part in parts)
    assert one + other == other + one == Tally.of(ReportRow, [*parts[0], *parts[1]])
    assert list((one + other).counts) == [word for word in Outcome if word in {*first, *second}]
    assert one + Tally() == one


def test_rows_that_are_kept_as_columns_are_equal_to_others() -> None:
    rows = [one_row(), one_row(None)]
    kept = Columns(PlanRow, 2, lambda name: [getattr(row, name) for row in rows])
    joined = Columns.joined(PlanRow, [kept, rows, kept[1:]])
    assert [*kept] == [kept[0], kept[-1]] == rows
    assert [*joined] == [*rows, *rows, rows[1]]
    assert joined[1:3].column("partition") == column([*joined][1:3], "partition") == [None, 0]
    assert [len(joined), len(joined[::2]), len(joined[9:])] == [5, 3, 0]
    assert [*places(joined)] == [row.at for row in joined] == [P0, None, P0, None, None]
