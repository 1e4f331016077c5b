"""Carrying out and taking back, over a model of both stores: killed after any step, it ends as if it never was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.migration.rows import row
from zkgroups import TopicPartition
from zkgroups.core.kafka_values import NativeOffset, OffsetRange
from zkgroups.core.migration.apply_rules import (
    Place,
    Restoring,
    SourceSeen,
    TargetSeen,
    Znode,
    by_target,
    forward,
    is_begun,
    moved_obstacles,
    not_moved,
    progress,
    restoring,
    source_obstacles,
    target_obstacles,
    to_commit,
)
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.core.migration.rules import Action, Decision, Reason, Rule, decide

Store = dict[TopicPartition, NativeOffset]

ALL = OffsetRange(0, 2**63 - 1)
TARGET = "billing"
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["orders", "paid"]), st.integers(0, 3))
OFFSETS = st.integers(0, 5)
NOTES = st.sampled_from([None, "note", "größe\0"])
EPOCHS = st.none() | st.integers(0, 2)


def stores(partitions: st.SearchStrategy[TopicPartition] = PARTITIONS) -> st.SearchStrategy[Store]:
    """What a target may have."""
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
    """What it is to come to."""
    written = {each.at: NativeOffset(TARGET, each.at, each.planned) for each in rows if each.action is Action.COMMIT}
    return before | written


def seen(store: Store) -> TargetSeen:
    return TargetSeen((), dict(store))


def steps(todo: Restoring) -> list[Any]:
    """One after the other, each offset by itself: a broker may have any of a call when it dies."""
    commits = list(todo.commits.values())
    return [*commits, "delete", *commits] if todo.delete else commits


def do(store: Store, some: list[Any]) -> None:
    for step in some:
        if step == "delete":
            store.clear()
        else:
            store[step.at] = step


@given(SOURCES, stores(), st.data())
def test_who_is_killed_while_applying_goes_on_and_ends_the_same(
    source: dict[TopicPartition, int], before: Store, data: st.DataObject
) -> None:
    rows, store = planned(source, before, backward=data.draw(st.booleans())), dict(before)
    for _ in range(data.draw(st.integers(0, 3))):
        assert target_obstacles(rows, seen(store)) == []
        left = to_commit(rows, store)
        some = data.draw(st.lists(st.sampled_from(sorted(left)), unique=True)) if left else []
        do(store, [NativeOffset(TARGET, at, left[at]) for at in some])
        assert is_begun(rows, store) == (store != before)
    do(store, [NativeOffset(TARGET, at, offset) for at, offset in to_commit(rows, store).items()])
    assert store == applied(rows, before)
    assert to_commit(rows, store) == {}
    assert target_obstacles(rows, seen(store)) == []


@given(SOURCES, stores(), st.data())
def test_who_is_killed_while_applying_and_then_while_rolling_back_has_the_target_as_it_was(
    source: dict[TopicPartition, int], before: Store, data: st.DataObject
) -> None:
    rows, store = planned(source, before, backward=data.draw(st.booleans())), dict(before)
    left = list(to_commit(rows, store).items())
    do(store, [NativeOffset(TARGET, at, offset) for at, offset in left[: data.draw(st.integers(0, len(left)))]])
    for _ in range(data.draw(st.integers(0, 3))):
        todo = restoring(rows, store)
        assert moved_obstacles(todo) == []
        do(store, steps(todo)[: data.draw(st.integers(0, len(steps(todo))))])
    do(store, steps(restoring(rows, store)))
    assert store == before
    assert not restoring(rows, store).touched


@given(SOURCES, stores(), stores())
def test_by_force_any_target_is_as_it_was_and_what_was_moved_is_told(
    source: dict[TopicPartition, int], before: Store, now: Store
) -> None:
    rows, store = planned(source, before), dict(now)
    todo = restoring(rows, store)
    numbers = {each.at: each.planned for each in rows if each.action is Action.COMMIT}
    assert todo.moved == {at for at, it in now.items() if it != before.get(at) and it.offset != numbers.get(at)}
    do(store, steps(todo))
    assert store == before


def test_a_group_of_thousands_comes_back_as_it_was_after_a_kill_at_any_step() -> None:
    every = [TopicPartition("orders", number) for number in range(2500)]
    before = {at: NativeOffset(TARGET, at, 1, "note", 3) for at in every[::2]}
    rows = planned(dict.fromkeys(every, 7), before)
    total = len(steps(restoring(rows, applied(rows, before))))
    for killed in (0, 1, 2, 999, 1000, 1001, total - 1, total):
        store = applied(rows, before)
        do(store, steps(restoring(rows, store))[:killed])
        assert moved_obstacles(restoring(rows, store)) == []
        do(store, steps(restoring(rows, store)))
        assert store == before


def test_only_a_plan_that_nothing_but_legacy_instances_blocked_may_have_moved_a_group() -> None:
    legacy, native = "legacy instances are registered: anna", "members of the native group are alive: berta"
    assert not_moved(ROWS) == not_moved([replace(ROWS[0], obstacles=(legacy,))]) == []
    assert not_moved([replace(ROWS[0], obstacles=(legacy, native))]) == [f"this plan has not moved it: {native}"]


# To ZooKeeper


@given(SOURCES, SOURCES, stores(), stores(), st.booleans())
def test_what_is_carried_to_zookeeper_only_goes_forward_and_is_only_what_was_read_since(
    source: dict[TopicPartition, int],
    in_zookeeper: dict[TopicPartition, int],
    before: Store,
    moved: Store,
    backward: bool,
) -> None:
    rows = planned(source, before, backward=backward)
    left = applied(rows, before)
    store = left | moved
    nodes: dict[Place, Znode] = {(at.topic, at.partition): Znode(1, it) for at, it in in_zookeeper.items()}
    assert forward(progress(rows, store), nodes) == {
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
PLACE = {("orders", 0): Znode(107, 7)}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (SourceSeen((), PLACE), []),
        (SourceSeen(("scala-1",), PLACE), ["legacy instances are registered: scala-1"]),
        (SourceSeen((), PLACE, "/ids: no"), ["cannot be looked at: /ids: no"]),
        (
            SourceSeen((), {("orders", 0): Znode(108, 7)}),
            ["offsets in ZooKeeper were written since the plan: orders/0"],
        ),
        (
            SourceSeen((), {("orders", 0): Znode(None, None)}),
            ["offsets in ZooKeeper were written since the plan: orders/0"],
        ),
        (SourceSeen((), {}), ["offsets in ZooKeeper are gone: orders/0"]),
        (SourceSeen((), PLACE | {("a", 1): Znode(1, 1)}), ["offsets in ZooKeeper are new since the plan: a/1"]),
        (SourceSeen((), PLACE | {("a", None): Znode(None, None)}), ["offsets in ZooKeeper are new since the plan: a"]),
        (
            SourceSeen((), PLACE | {(None, None): Znode(None, None)}),
            ["offsets in ZooKeeper are new since the plan: all"],
        ),
    ],
)
def test_what_zookeeper_has_must_be_what_was_planned_from(found: SourceSeen, words: list[str]) -> None:
    assert source_obstacles(ROWS, found) == words


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ([BEFORE], []),
        ([NativeOffset(TARGET, AT, 7)], []),
        ([NativeOffset(TARGET, AT, 7, "by somebody")], []),
        ([], ["offsets of the target are not as planned: orders/0"]),
        ([NativeOffset(TARGET, AT, 4)], ["offsets of the target are not as planned: orders/0"]),
        ([NativeOffset(TARGET, AT, 3, "note")], ["offsets of the target are not as planned: orders/0"]),
        ([BEFORE, NativeOffset(TARGET, OTHER, 1)], ["offsets of the target are new since the plan: orders/1"]),
    ],
)
def test_what_the_target_has_must_be_as_before_or_as_planned(now: list[NativeOffset], words: list[str]) -> None:
    assert target_obstacles(ROWS, TargetSeen((), {each.at: each for each in now})) == words


def test_who_takes_part_or_cannot_be_found_out_is_in_the_way() -> None:
    assert target_obstacles(ROWS, TargetSeen(("anna",), {AT: BEFORE})) == [
        "members of the native group are alive: anna"
    ]
    assert target_obstacles(ROWS, TargetSeen(unreadable="no answer"))[0] == "cannot be looked at: no answer"


def test_of_topics_that_were_not_chosen_nothing_is_new() -> None:
    rows = [replace(each, topics="or.*") for each in ROWS]
    assert source_obstacles(rows, SourceSeen((), PLACE | {("paid", 0): Znode(1, 1)})) == []
    assert source_obstacles(rows, SourceSeen((), PLACE | {("orb", 0): Znode(1, 1)})) != []


def test_an_offset_that_only_the_target_had_may_not_come_to_zookeeper_either() -> None:
    rows = planned({}, {AT: BEFORE})
    assert source_obstacles(rows, SourceSeen()) == []
    assert source_obstacles(rows, SourceSeen((), PLACE)) == ["offsets in ZooKeeper are new since the plan: orders/0"]


def test_many_changes_are_told_shortly() -> None:
    rows = planned({TopicPartition("orders", number): 7 for number in range(9)}, {})
    assert source_obstacles(rows, SourceSeen()) == [
        "offsets in ZooKeeper are gone: orders/0, orders/1, orders/2 and 6 more"
    ]


def test_rows_are_put_together_by_target() -> None:
    assert by_target(ROWS) == {TARGET: ROWS}
