"""Plans of resets: every target, with and without brokers, for every current offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.offsets.reset import (
    Adjustment,
    OffsetChange,
    Refusal,
    ShiftBy,
    Target,
    ToCurrent,
    ToEach,
    ToEarliest,
    ToLatest,
    ToOffset,
    plan_delete,
    plan_reset,
    refuse_backward,
    refuse_forward,
)
from zkgroups.core.znodes.offset_codec import MAX_OFFSET
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import CommittedOffset, CurrentOffset, MalformedNode

from .strategies import TOPICS

AT = TopicPartition("orders", 0)
LOG = OffsetRange(20, 100)
BAD = MalformedNode("/consumers/billing/offsets/orders/0", b"many", "not a plain decimal number")


def committed(offset: int, at: TopicPartition = AT) -> CommittedOffset:
    return CommittedOffset("billing", at, offset, version=3)


def planned(found: CurrentOffset, target: Target, log: OffsetRange | None = LOG) -> OffsetChange:
    [change] = plan_reset({AT: found}, {AT: log}, target)
    return change


def planned_without_brokers(found: CurrentOffset, target: Target) -> OffsetChange:
    [change] = plan_reset({AT: found}, None, target)
    return change


@pytest.mark.parametrize(
    ("target", "new"),
    [
        (ToEarliest(), 20),
        (ToLatest(), 100),
        (ToCurrent(), 50),
        (ToOffset(60), 60),
        (ShiftBy(-10), 40),
        (ShiftBy(10), 60),
        (ToEach({AT: 77}), 77),
    ],
)
def test_each_target_resolves_to_its_offset(target: Target, new: int) -> None:
    assert planned(committed(50), target) == OffsetChange(AT, committed(50), new)


@pytest.mark.parametrize("target", [ToOffset(19), ShiftBy(-31), ToEach({AT: 19})])
def test_an_offset_before_the_log_start_becomes_the_log_start(target: Target) -> None:
    change = planned(committed(50), target)
    assert (change.requested, change.new, change.delta) == (19, 20, -30)
    assert (change.adjustment, change.refusal) == (Adjustment.BEFORE_LOG_START, None)


@pytest.mark.parametrize("target", [ToOffset(101), ShiftBy(51), ToEach({AT: 101})])
def test_an_offset_past_the_log_end_becomes_the_log_end(target: Target) -> None:
    change = planned(committed(50), target)
    assert (change.requested, change.new, change.delta) == (101, 100, 50)
    assert (change.adjustment, change.refusal) == (Adjustment.PAST_LOG_END, None)


@pytest.mark.parametrize("target", [ToOffset(-1), ShiftBy(-51)])
def test_without_brokers_only_a_negative_offset_is_adjusted(target: Target) -> None:
    change = planned_without_brokers(committed(50), target)
    assert (change.requested, change.new, change.delta, change.adjustment) == (-1, 0, -50, Adjustment.BELOW_ZERO)
    for offset in (0, 10**6):
        change = planned_without_brokers(committed(50), ToOffset(offset))
        assert (change.new, change.adjustment) == (offset, None)


def test_an_offset_that_is_too_large_for_java_is_refused() -> None:
    change = planned_without_brokers(committed(MAX_OFFSET), ShiftBy(1))
    assert (change.new, change.is_refused, change.changes) == (None, True, False)
    assert (change.refusal, change.requested) == (Refusal.TOO_LARGE, MAX_OFFSET + 1)


@pytest.mark.parametrize("offset", [5, 200])
def test_to_current_keeps_an_offset_outside_the_log(offset: int) -> None:
    change = planned(committed(offset), ToCurrent())
    assert (change.new, change.delta, change.changes, change.is_refused) == (offset, 0, False, False)


def test_to_current_is_the_log_end_if_no_offset_is_committed() -> None:
    assert planned(None, ToCurrent()) == OffsetChange(AT, None, 100)
    assert planned_without_brokers(None, ToCurrent()).is_refused


@pytest.mark.parametrize("target", [ToEarliest(), ToLatest(), ToOffset(50), ShiftBy(1), ToEach({AT: 5})])
def test_a_partition_unknown_to_the_brokers_is_refused(target: Target) -> None:
    change = planned(committed(50), target, None)
    assert (change.new, change.refusal, change.changes) == (None, Refusal.UNKNOWN_TO_BROKERS, False)
    assert plan_reset({AT: committed(50)}, {}, target)[0].is_refused


def test_a_shift_needs_a_valid_offset() -> None:
    assert planned(None, ShiftBy(1)).refusal is Refusal.NOT_COMMITTED
    assert planned(BAD, ShiftBy(1)).refusal is Refusal.NOT_VALID
    assert planned(BAD, ToCurrent()).is_refused


def test_an_invalid_offset_can_be_replaced() -> None:
    change = planned_without_brokers(BAD, ToOffset(7))
    assert (change.old, change.new, change.delta, change.changes) == (None, 7, None, True)
    assert (change.adjustment, change.refusal) == (None, None)
    assert planned(BAD, ToEarliest()).new == 20
    assert planned(BAD, ToOffset(7)).adjustment is Adjustment.BEFORE_LOG_START


def test_a_partition_without_a_target_is_refused() -> None:
    assert [change.refusal for change in plan_reset({AT: committed(5)}, None, ToEach({AT: None}))] == [
        Refusal.NO_TARGET
    ]
    assert [change.refusal for change in plan_reset({AT: committed(5)}, None, ToEach({}))] == [Refusal.NO_TARGET]


def test_a_delete_changes_nothing_where_no_offset_exists() -> None:
    other, third = TopicPartition("orders", 1), TopicPartition("orders", 2)
    changes = plan_delete({other: None, AT: committed(0), third: BAD})
    assert [(change.at.partition, change.new, change.delta, change.changes) for change in changes] == [
        (0, None, None, True),
        (1, None, None, False),
        (2, None, None, True),
    ]


FOUND = st.none() | st.integers(0, MAX_OFFSET).map(committed) | st.integers(0, 150).map(committed) | st.just(BAD)
LOGS = st.none() | st.tuples(st.integers(0, 150), st.integers(0, 150)).map(
    lambda ends: OffsetRange(min(ends), max(ends))
)
NUMBERS = st.integers(-200, 200) | st.integers(-(2**70), 2**70)
TARGETS: st.SearchStrategy[Target] = (
    st.sampled_from([ToEarliest(), ToLatest(), ToCurrent()])
    | st.builds(ToOffset, NUMBERS)
    | st.builds(ShiftBy, NUMBERS)
    | st.builds(ToEach, st.dictionaries(st.just(AT), st.none() | st.integers(0, MAX_OFFSET)))
)


@given(FOUND, LOGS, st.booleans(), TARGETS)
def test_a_planned_offset_is_in_the_log_or_refused(
    found: CurrentOffset, log: OffsetRange | None, asked: bool, target: Target
) -> None:
    [change] = plan_reset({AT: found}, {AT: log} if asked else None, target)
    assert (change.at, change.found) == (AT, found)
    assert change.is_refused == (change.new is None)
    assert not (change.is_refused and change.changes)
    if change.changes:
        assert change.new is not None
        assert 0 <= change.new <= MAX_OFFSET
        assert not asked or (log is not None and change.new in log)
    if change.delta is not None:
        assert (change.old or 0) + change.delta == change.new
    assert change.changes or change.is_refused or change.old == change.new


@given(FOUND, LOGS, TARGETS.filter(lambda target: not isinstance(target, ShiftBy)))
def test_a_second_reset_to_the_same_target_changes_nothing(
    found: CurrentOffset, log: OffsetRange | None, target: Target
) -> None:
    [change] = plan_reset({AT: found}, {AT: log}, target)
    if change.new is not None:
        [again] = plan_reset({AT: committed(change.new)}, {AT: log}, target)
        assert not again.changes


@pytest.mark.parametrize(("offset", "held"), [(49, True), (50, False), (51, False)])
def test_one_message_back_is_refused(offset: int, held: bool) -> None:
    [change] = refuse_backward([planned_without_brokers(committed(50), ToOffset(offset))])
    assert (change.new, change.is_refused, change.changes) == (offset, held, offset == 51)


@given(FOUND, LOGS, TARGETS)
def test_refuse_forward_refuses_exactly_the_changes_that_skip_messages(
    found: CurrentOffset, log: OffsetRange | None, target: Target
) -> None:
    changes = plan_reset({AT: found}, {AT: log}, target)
    [before], [after] = changes, refuse_forward(changes, {AT: log})
    skips = before.changes and before.delta is not None and before.delta > 0
    if log is not None and before.new is not None:
        skips = skips and before.new > log.start
    assert (after == before) is not skips
    assert not skips or (after.is_refused and not after.changes and after.refusal is Refusal.WOULD_GO_FORWARD)
    assert (after.at, after.found, after.new) == (before.at, before.found, before.new)


@given(FOUND, LOGS, TARGETS)
def test_refuse_backward_refuses_exactly_the_changes_that_go_or_may_go_back(
    found: CurrentOffset, log: OffsetRange | None, target: Target
) -> None:
    changes = plan_reset({AT: found}, {AT: log}, target)
    [before], [after] = changes, refuse_backward(changes)
    backward = before.changes and before.delta is not None and before.delta < 0
    perhaps = before.changes and isinstance(before.found, MalformedNode)
    assert (after == before) is not (backward or perhaps)
    assert not backward or (after.is_refused and not after.changes and after.refusal is Refusal.WOULD_GO_BACK)
    assert not perhaps or (after.is_refused and not after.changes and after.refusal is Refusal.MAY_GO_BACK)
    assert (after.at, after.found, after.new) == (before.at, before.found, before.new)


@given(st.dictionaries(st.builds(TopicPartition, TOPICS, st.integers(0, 20)), st.integers(0, 9)))
def test_a_plan_has_every_partition_in_order(offsets: dict[TopicPartition, int]) -> None:
    changes = plan_reset({at: committed(offset, at) for at, offset in offsets.items()}, None, ToOffset(5))
    assert [change.at for change in changes] == sorted(offsets)
    assert [(change.old, change.delta) for change in changes] == [(offsets[m.at], 5 - offsets[m.at]) for m in changes]
