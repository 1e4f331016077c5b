"""What a reset does to each offset: every target, with and without brokers, whatever is there now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.offsets.reset import (
    Found,
    Move,
    ShiftBy,
    Target,
    ToCurrent,
    ToEach,
    ToEarliest,
    ToLatest,
    ToOffset,
    forgetting,
    only_back,
    only_forward,
    parse_duration,
    parse_time,
    plan,
)
from zkgroups.core.znodes.offset_codec import MAX_OFFSET
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import CommittedOffset, MalformedNode
from zkgroups.exceptions import InvalidOptionError

from .strategies import TOPICS

AT = TopicPartition("orders", 0)
LOG = OffsetRange(20, 100)
BAD = MalformedNode("/consumers/billing/offsets/orders/0", b"many", "not a plain decimal number")


def committed(offset: int, at: TopicPartition = AT) -> CommittedOffset:
    return CommittedOffset("billing", at, offset, version=3)


def only(found: Found, target: Target, log: OffsetRange | None = LOG) -> Move:
    [move] = plan({AT: found}, {AT: log}, target)
    return move


def alone(found: Found, target: Target) -> Move:
    """Without brokers."""
    [move] = plan({AT: found}, None, target)
    return move


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
def test_each_target_has_its_offset_and_no_note(target: Target, new: int) -> None:
    assert only(committed(50), target) == Move(AT, committed(50), new)


@pytest.mark.parametrize("target", [ToOffset(19), ShiftBy(-31), ToEach({AT: 19})])
def test_what_is_before_the_start_of_the_log_becomes_the_start(target: Target) -> None:
    move = only(committed(50), target)
    assert (move.new, move.delta, move.note, move.held) == (20, -30, "19 is before the start of the log", False)


@pytest.mark.parametrize("target", [ToOffset(101), ShiftBy(51), ToEach({AT: 101})])
def test_what_is_beyond_the_end_of_the_log_becomes_the_end(target: Target) -> None:
    move = only(committed(50), target)
    assert (move.new, move.delta, move.note, move.held) == (100, 50, "101 is beyond the end of the log", False)


@pytest.mark.parametrize("target", [ToOffset(-1), ShiftBy(-51)])
def test_without_brokers_only_what_is_below_0_becomes_0(target: Target) -> None:
    move = alone(committed(50), target)
    assert (move.new, move.delta, move.note) == (0, -50, "-1 is below 0")
    assert alone(committed(50), ToOffset(10**6)).new == 10**6


def test_what_java_cannot_hold_is_left_as_it_is() -> None:
    move = alone(committed(MAX_OFFSET), ShiftBy(1))
    assert (move.new, move.held, move.changes) == (None, True, False)
    assert "2^63-1" in str(move.note)


@pytest.mark.parametrize("offset", [5, 200])
def test_to_current_stays_where_it_is_even_outside_the_log(offset: int) -> None:
    move = only(committed(offset), ToCurrent())
    assert (move.new, move.delta, move.changes, move.held) == (offset, 0, False, False)


def test_to_current_is_the_end_of_the_log_where_nothing_is_committed() -> None:
    assert only(None, ToCurrent()) == Move(AT, None, 100)
    assert alone(None, ToCurrent()).held


@pytest.mark.parametrize("target", [ToEarliest(), ToLatest(), ToOffset(50), ShiftBy(1), ToEach({AT: 5})])
def test_a_partition_that_the_brokers_do_not_know_is_left_as_it_is(target: Target) -> None:
    move = only(committed(50), target, None)
    assert (move.new, move.note, move.held, move.changes) == (None, "unknown to the brokers", True, False)
    assert plan({AT: committed(50)}, {}, target)[0].held


def test_a_shift_needs_an_offset() -> None:
    assert (only(None, ShiftBy(1)).note, only(None, ShiftBy(1)).held) == ("no offset is committed", True)
    assert (only(BAD, ShiftBy(1)).note, only(BAD, ShiftBy(1)).held) == (
        "is no offset: not a plain decimal number",
        True,
    )
    assert only(BAD, ToCurrent()).held


def test_something_that_is_no_offset_can_be_set_to_one() -> None:
    move = alone(BAD, ToOffset(7))
    assert (move.old, move.new, move.delta, move.changes) == (None, 7, None, True)
    assert move.note == "was no offset: not a plain decimal number"
    assert only(BAD, ToEarliest()).new == 20
    assert only(BAD, ToOffset(7)).note == "was no offset: not a plain decimal number; 7 is before the start of the log"


def test_a_partition_without_an_offset_to_go_to_is_left_as_it_is() -> None:
    assert [move.held for move in plan({AT: committed(5)}, None, ToEach({AT: None}))] == [True]
    assert [move.held for move in plan({AT: committed(5)}, None, ToEach({}))] == [True]


def test_forgetting_leaves_nothing_and_is_no_change_where_there_is_nothing() -> None:
    other, third = TopicPartition("orders", 1), TopicPartition("orders", 2)
    moves = forgetting({other: None, AT: committed(0), third: BAD})
    assert [(move.at.partition, move.new, move.delta, move.changes) for move in moves] == [
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
def test_whatever_there_is_what_is_written_is_an_offset_of_the_log_or_stays(
    found: Found, log: OffsetRange | None, asked: bool, target: Target
) -> None:
    [move] = plan({AT: found}, {AT: log} if asked else None, target)
    assert (move.at, move.found) == (AT, found)
    assert move.held == (move.new is None)
    assert not (move.held and (move.changes or not move.note))
    if move.changes:
        assert move.new is not None
        assert 0 <= move.new <= MAX_OFFSET
        assert not asked or (log is not None and move.new in log)
    if move.delta is not None:
        assert (move.old or 0) + move.delta == move.new
    assert move.changes or move.held or move.old == move.new


@given(FOUND, LOGS, TARGETS.filter(lambda target: not isinstance(target, ShiftBy)))
def test_a_reset_that_was_done_has_nothing_more_to_do(found: Found, log: OffsetRange | None, target: Target) -> None:
    [move] = plan({AT: found}, {AT: log}, target)
    if move.new is not None:
        [again] = plan({AT: committed(move.new)}, {AT: log}, target)
        assert not again.changes


@pytest.mark.parametrize(("offset", "held"), [(49, True), (50, False), (51, False)])
def test_one_message_back_is_back(offset: int, held: bool) -> None:
    [move] = only_forward([alone(committed(50), ToOffset(offset))])
    assert (move.new, move.held, move.changes) == (offset, held, offset == 51)


@given(FOUND, LOGS, TARGETS)
def test_only_back_never_skips_a_message_of_the_log_and_changes_nothing_else(
    found: Found, log: OffsetRange | None, target: Target
) -> None:
    moves = plan({AT: found}, {AT: log}, target)
    [before], [after] = moves, only_back(moves, {AT: log})
    skips = before.changes and before.delta is not None and before.delta > 0
    if log is not None and before.new is not None:
        skips = skips and before.new > log.start
    assert (after == before) is not skips
    assert not skips or (after.held and not after.changes and after.note == "would go forward")
    assert (after.at, after.found, after.new) == (before.at, before.found, before.new)


@given(FOUND, LOGS, TARGETS)
def test_only_forward_never_goes_back_and_changes_nothing_else(
    found: Found, log: OffsetRange | None, target: Target
) -> None:
    moves = plan({AT: found}, {AT: log}, target)
    [before], [after] = moves, only_forward(moves)
    backward = before.changes and before.delta is not None and before.delta < 0
    perhaps = before.changes and isinstance(before.found, MalformedNode)
    assert (after == before) is not (backward or perhaps)
    assert not backward or (after.held and not after.changes and after.note == "would go back")
    assert not perhaps or (after.held and not after.changes and str(after.note).startswith("may go back: "))
    assert (after.at, after.found, after.new) == (before.at, before.found, before.new)


@given(st.dictionaries(st.builds(TopicPartition, TOPICS, st.integers(0, 20)), st.integers(0, 9)))
def test_there_is_one_row_for_each_partition_in_order(offsets: dict[TopicPartition, int]) -> None:
    moves = plan({at: committed(offset, at) for at, offset in offsets.items()}, None, ToOffset(5))
    assert [move.at for move in moves] == sorted(offsets)
    assert [(move.old, move.delta) for move in moves] == [(offsets[m.at], 5 - offsets[m.at]) for m in moves]


# Times


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00.000", 0),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T00:00:00.005Z", 5),
        ("1970-01-01T01:00:00.000+01:00", 0),
        ("1970-01-01T01:00:00.000+0100", 0),
        ("1970-01-01T01:00:00.000+01", 0),
        ("1969-12-31T23:30:00.000-00:30", 0),
        ("2026-01-31T12:00:00.500", 1769860800500),
    ],
)
def test_a_time_without_a_zone_is_utc_and_one_with_a_zone_is_of_that_zone(text: str, ms: int) -> None:
    assert parse_time(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-31",
        "2026-01-31 12:00:00",
        "2026-02-30T12:00:00.000",
        "2026-01-31T25:00:00.000",
        "2026-01-31T12:00:00.5",
        "2026-01-31T12:00",
        "1769860800500",
        "2026-01-31T12:00:00.000 Z",
        "2026-01-31T12:00:00.000+01:00x",
        "2026-01-31T12:00:00.000+99:00",
        "٢٠٢٦-01-31T12:00:00.000",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="must be like 2026"):
        parse_time(text)


@given(
    st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30))])).filter(
        lambda time: 2 < time.year < 9998
    )
)
def test_every_time_is_read_as_python_has_it(time: datetime) -> None:
    whole = time.replace(microsecond=time.microsecond // 1000 * 1000)
    assert parse_time(whole.isoformat(timespec="milliseconds")) == round(whole.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("P7D", 604_800_000),
        ("PT2H30M", 9_000_000),
        ("P1DT1M", 86_460_000),
        ("PT0.001S", 1),
        ("pt1s", 1000),
        ("PT0S", 0),
        ("PT1.123456789S", 1123),
    ],
)
def test_a_duration_is_read_as_java_reads_it(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "7D", "P1H", "P1W", "P-1D", "-P1D", "PT1.5H", "P1D ", "P1M"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="must be like P7D"):
        parse_duration(text)
