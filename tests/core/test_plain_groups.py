"""What is seen of whole columns is what the rules say of each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.migration.rows import row
from zkgroups.core.kafka_values import NativeOffset, OffsetRange
from zkgroups.core.migration.apply_rules import (
    Place,
    SourceSeen,
    TargetSeen,
    Znode,
    is_worth_a_mark,
    log_obstacles,
    overwritten,
    source_obstacles,
    target_obstacles,
    to_commit,
)
from zkgroups.core.migration.comparison import all_equal, matches
from zkgroups.core.migration.lazy_rows import Rows
from zkgroups.core.migration.plain_groups import (
    Bounds,
    Group,
    Natives,
    Numbers,
    Znodes,
    has_all,
    is_plain,
    plain_of,
    shape_of,
    source_is_as_planned,
    target_is_untouched,
)
from zkgroups.core.migration.plan_rows import MatchRow, PlanRow
from zkgroups.core.migration.rules import Action, Decision, Log, Reason
from zkgroups.core.znodes.topic_partition import TopicPartition

FEW = st.integers(0, 3)
IDS = st.sampled_from(["a", "a", "a", "b", None])
"""Of topics."""
PLACES = st.lists(st.tuples(st.sampled_from(["orders", "paid"]), FEW), min_size=1, max_size=4, unique=True).map(sorted)
ODD: dict[str, st.SearchStrategy[Any]] = {
    "action": st.sampled_from(Action),
    "reason": st.sampled_from(Reason),
    "planned": st.none() | FEW,
    "zxid": st.none() | FEW,
    "before": st.none() | FEW,
    "log_end": st.none() | FEW,
    "partition": st.none(),
    "topic": st.none(),
    "group": st.just("another"),
    "obstacles": st.just(("something",)),
}


@st.composite
def groups(draw: st.DrawFn) -> list[PlanRow]:
    """A plain group, or one with something else in one of its rows."""
    rows = []
    for place in draw(PLACES):
        offset, number = draw(FEW), draw(FEW)
        reason = Reason.AS_IT_IS if offset == number else Reason.CLAMPED
        decision = Decision(Action.COMMIT, reason, number)
        at = TopicPartition(*place)
        known = {"zxid": draw(FEW), "log_start": 0, "log_end": 3, "topic_id": draw(IDS)}
        rows.append(row("g", "t", at, decision, offset=offset, **known))
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(ODD)))
        rows[-1] = replace(rows[-1], **{name: draw(ODD[name])})
    return rows


def group_of(rows: list[PlanRow]) -> Group:
    return Group(PlanRow, Rows.of(PlanRow, rows).columns, 0, len(rows))


SELDOM = st.sampled_from([*[False] * 7, True])


@st.composite
def seen_in_zookeeper(draw: st.DrawFn, rows: list[PlanRow]) -> SourceSeen:
    """What is planned, or not quite."""
    places = [(each.topic or "x", each.partition or 0) for each in rows]
    zxids = [each.zxid or 0 for each in rows]
    if draw(SELDOM):
        places, zxids = draw(PLACES), []
        zxids = [draw(FEW) for _ in places]
    if draw(SELDOM):
        zxids[-1] += 1
    if draw(SELDOM):
        places[-1] = ("z", 9)
    offsets = [each.offset or 0 for each in rows][: len(places)] + [1] * (len(places) - len(rows))
    instances = ("scala-1",) if draw(SELDOM) else ()
    unreadable = "no" if draw(SELDOM) else ""
    znodes: Mapping[Place, Znode] = Znodes(shape_of(*zip(*places, strict=True)), zxids, offsets)
    return SourceSeen(instances, dict(znodes) if draw(SELDOM) else znodes, unreadable)


@st.composite
def seen_on_target(draw: st.DrawFn, rows: list[PlanRow]) -> TargetSeen:
    places = [(each.topic or "x", each.partition or 0) for each in rows]
    numbers = [each.planned or 0 for each in rows]
    if draw(SELDOM):
        places = draw(PLACES)
        numbers = [draw(FEW) for _ in places]
    if draw(SELDOM):
        numbers[-1] += 1
    if draw(SELDOM):
        places[-1] = ("z", 9)
    natives: Mapping[TopicPartition, NativeOffset] = Natives("t", shape_of(*zip(*places, strict=True)), numbers)
    committed = draw(st.sampled_from([{}, natives, natives, dict(natives)]))
    return TargetSeen(("anna",) if draw(SELDOM) else (), committed, "no" if draw(SELDOM) else "")


@settings(max_examples=500)
@given(groups())
def test_a_group_is_plain_if_all_its_rows_are_and_its_rows_are_the_same(rows: list[PlanRow]) -> None:
    group = group_of(rows)
    assert list(group) == rows
    assert group[1:] == rows[1:]
    plain = plain_of(group)
    event(f"plain: {plain is not None}")
    assert (plain is not None) == (all(map(is_plain, rows)) and len({each.group for each in rows}) == 1)
    assert plain_of(rows) is None
    if plain is not None:
        assert plain.shape.ats == tuple(each.at for each in rows)
        assert is_worth_a_mark(rows)


@settings(max_examples=500)
@given(st.data())
def test_a_source_as_planned_has_no_obstacles(data: st.DataObject) -> None:
    rows = data.draw(groups())
    plain, seen = group_of(rows).plain, data.draw(seen_in_zookeeper(rows))
    if plain is not None and source_is_as_planned(plain, seen):
        event("as planned")
        assert source_obstacles(rows, seen) == []


@settings(max_examples=500)
@given(st.data())
def test_an_untouched_target_has_no_obstacles_and_all_is_to_be_written(data: st.DataObject) -> None:
    rows = data.draw(groups())
    plain, seen = group_of(rows).plain, data.draw(seen_on_target(rows))
    if plain is not None and target_is_untouched(seen):
        event("untouched")
        assert target_obstacles(rows, seen) == []
        assert to_commit(rows, seen.committed) == Numbers(plain.shape, plain.planned)


@settings(max_examples=500)
@given(st.data())
def test_a_target_that_has_all_that_was_written_was_not_overwritten(data: st.DataObject) -> None:
    rows = data.draw(groups())
    plain, seen = group_of(rows).plain, data.draw(seen_on_target(rows))
    if plain is not None and has_all(seen, written := Numbers(plain.shape, plain.planned)):
        event("all")
        assert overwritten(rows, written, seen) == []


@settings(max_examples=500)
@given(st.data())
def test_within_the_bounds_of_its_logs_a_group_has_no_obstacles(data: st.DataObject) -> None:
    rows = data.draw(groups())
    plain = group_of(rows).plain
    if plain is None:
        return
    ranges = {at: OffsetRange(data.draw(FEW), 3) for at in plain.shape.ats}
    made = {topic: data.draw(FEW) for topic in plain.shape.topics}
    starts, ends = zip(*((ranges[at].start, ranges[at].end) for at in plain.shape.ats), strict=True)
    ids = {topic: data.draw(IDS) for topic in plain.shape.topics}
    topics = plain.shape.topics
    bounds = Bounds(list(starts), list(ends), [made[topic] for topic in topics], [ids[topic] for topic in topics])
    within = bounds.have(plain)

    def log(at: TopicPartition | None, zxid: int | None, topic_id: str | None) -> OffsetRange | Log:
        assert at is not None
        assert zxid is not None
        if topic_id is not None and topic_id != ids[at.topic]:
            return Log.MADE_ANEW
        return Log.YOUNGER if zxid < made[at.topic] else ranges[at]

    event(f"within: {within}")
    assert within == (log_obstacles(rows, log) == [])


@settings(max_examples=500)
@given(st.data())
def test_where_all_is_equal_the_rows_are_those_that_are_found_one_by_one(data: st.DataObject) -> None:
    rows = data.draw(groups())
    source, target = data.draw(seen_in_zookeeper(rows)), data.draw(seen_on_target(rows))
    ids = {topic: its for topic in ("orders", "paid") if (its := data.draw(IDS)) is not None}
    found = all_equal(group_of(rows), source, target, ids)
    if found is not None:
        event("equal")
        made = Rows(MatchRow)
        made.extend(len(rows), found)
        assert list(made) == matches(rows, source, target, ids)


@given(st.lists(FEW, min_size=1, max_size=4))
def test_columns_are_the_mappings_that_they_stand_for(numbers: list[int]) -> None:
    shape = shape_of(("orders",) * len(numbers), tuple(range(len(numbers))))
    ats = [TopicPartition("orders", partition) for partition in range(len(numbers))]
    assert Numbers(shape, numbers) == dict(zip(ats, numbers, strict=True))
    natives = {at: NativeOffset("t", at, number) for at, number in zip(ats, numbers, strict=True)}
    assert natives == Natives("t", shape, numbers)
    assert Znodes(shape, numbers, numbers)[("orders", 0)] == Znode(numbers[0], numbers[0])
