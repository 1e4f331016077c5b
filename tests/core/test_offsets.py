"""Offsets and logs: lag, resets, the time of a message, and where to start."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups import (
    CommittedOffset,
    ForbiddenNode,
    GroupDescription,
    MalformedNode,
    Pattern,
    Registration,
    StartAt,
    TopicPartition,
)
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.offsets.lag import (
    GroupLag,
    LagNote,
    MessageTimeSearch,
    group_lag,
    lag,
    partitions_of_group,
    subscribes_by_pattern,
)
from zkgroups.core.offsets.reset import (
    CONFIRM_AFTER,
    FORGET_AFTER,
    Adjustment,
    OffsetChange,
    PastEnd,
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
    start_offset,
)
from zkgroups.core.znodes.codecs import MAX_OFFSET
from zkgroups.core.znodes.group_description import describe
from zkgroups.core.znodes.values import CurrentOffset

from .groups import AT, PATHS, bad_offset, member, offset, view
from .strategies import TOPICS

OTHER = TopicPartition("orders", 1)
LOG = OffsetRange(20, 100)

# Lag


@pytest.mark.parametrize(
    ("number", "ends", "expected"),
    [
        (0, (0, 0), (0, None)),
        (0, (0, 5), (5, None)),
        (5, (0, 5), (0, None)),
        (6, (0, 5), (None, LagNote.PAST_END)),
        (3, (3, 9), (6, None)),
        (2, (3, 9), (7, LagNote.BEFORE_START)),
        (2, None, (None, LagNote.LOG_UNKNOWN)),
        (None, (0, 5), (None, LagNote.NEVER_COMMITTED)),
        (None, None, (None, LagNote.NEVER_COMMITTED)),
    ],
)
def test_the_lag_is_the_number_of_messages_left_to_read(
    number: int | None, ends: tuple[int, int] | None, expected: tuple[int | None, LagNote | None]
) -> None:
    assert lag(number, None if ends is None else OffsetRange(*ends)) == expected


def measured(
    *nodes: CommittedOffset | MalformedNode | ForbiddenNode, known: tuple[int, ...] = (), **ends: OffsetRange | None
) -> GroupLag:
    """A group that subscribes to `orders` if the brokers know its partitions. `p3` is the log of partition 3."""
    subscribers = [member("anna")] if known else []
    logs = {TopicPartition("orders", int(name[1:])): log for name, log in ends.items()}
    description = describe(view(*subscribers, *nodes))
    return group_lag(description, partitions_of_group(description, {"orders": known, "refunds": (0,)}), logs)


def told(found: GroupLag) -> dict[str, tuple[int | None, LagNote | None]]:
    return {str(each.partition.at): (each.lag, each.note) for each in found.partitions}


OFFSETS = st.none() | st.integers(0, 2**63 - 1)
LOGS = st.none() | st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)).map(
    lambda ends: OffsetRange(*sorted(ends))
)


@given(st.dictionaries(st.integers(0, 50), st.tuples(OFFSETS, LOGS), min_size=1))
@example({0: (0, OffsetRange(0, 0)), 7: (0, OffsetRange(0, 7))})
def test_totals_count_known_lags_and_are_unknown_if_none_is_known(
    partitions: dict[int, tuple[int | None, OffsetRange | None]],
) -> None:
    committed = [offset(f"orders/{n}", number) for n, (number, _) in partitions.items() if number is not None]
    found = measured(*committed, known=tuple(partitions), **{f"p{n}": log for n, (_, log) in partitions.items()})
    assert told(found) == {f"orders/{n}": lag(*partitions[n]) for n in sorted(partitions)}
    lags = [each.lag for each in found.partitions]
    known = [each for each in lags if each is not None]
    assert (found.total, found.most) == ((sum(known), max(known)) if known else (None, None))
    assert found.unknown == lags.count(None)


def test_only_partitions_of_subscribed_topics_or_with_offsets_have_a_lag() -> None:
    found = measured(offset("orders/0", 4), known=(0, 3), p0=OffsetRange(0, 5), p3=OffsetRange(0, 5))
    assert told(found) == {"orders/0": (1, None), "orders/3": (None, LagNote.NEVER_COMMITTED)}
    assert told(measured(offset("orders/2"), p1=LOG, p2=OffsetRange(0, 5))) == {"orders/2": (0, None)}


def test_a_pattern_chooses_among_the_topics_of_the_brokers() -> None:
    def subscribed(*registrations: Registration) -> GroupDescription:
        return describe(view(*(member("anna", each) for each in registrations)))

    by_pattern = subscribed(Registration({"ord.*": 1}, Pattern.WHITE_LIST))
    assert subscribes_by_pattern([subscribed(), by_pattern])
    assert not subscribes_by_pattern([subscribed(), subscribed(Registration({"orders": 1}))])
    found = partitions_of_group(by_pattern, {"orders": (0, 1), "refunds": (0,)})
    assert [partition.at for partition in found] == [AT, OTHER]


def test_an_unreadable_offset_is_shown_and_is_not_a_missing_offset() -> None:
    log = OffsetRange(0, 5)
    found = measured(offset("orders/0", 4), bad_offset(b"many", "orders/1"), known=(0, 1, 2), p0=log, p1=log, p2=log)
    assert [each.note for each in found.partitions] == [None, LagNote.CANNOT_BE_READ, LagNote.NEVER_COMMITTED]
    assert (found.total, found.unknown) == (1, 2)
    others = [MalformedNode(f"{PATHS.offsets}/{path}", b"x", "no number") for path in ("orders/x", "orders")]
    elsewhere = MalformedNode("/consumers/other/offsets/orders/4", b"many", "no number")
    found = measured(bad_offset(b"many", "orders/3"), *others, elsewhere, p3=log)
    assert told(found) == {"orders/3": (None, LagNote.CANNOT_BE_READ)}
    for path in (PATHS.offsets, PATHS.offset_topic("orders"), PATHS.offset(AT)):
        assert told(measured(ForbiddenNode(path), known=(0,), p0=log)) == {"orders/0": (None, LagNote.CANNOT_BE_READ)}


# Resets

BAD = bad_offset(b"many")
AT_50 = offset("orders/0", 50)
NO_BROKERS = "no brokers"


def planned(found: CurrentOffset, target: Target, log: OffsetRange | str | None = LOG) -> OffsetChange:
    [change] = plan_reset({AT: found}, None if isinstance(log, str) else {AT: log}, target)
    return change


BEFORE, PAST, BELOW = Adjustment.BEFORE_LOG_START, Adjustment.PAST_LOG_END, Adjustment.BELOW_ZERO


@pytest.mark.parametrize(
    ("found", "target", "log", "new", "why"),
    [
        (AT_50, ToEarliest(), LOG, 20, None),
        (AT_50, ToLatest(), LOG, 100, None),
        (AT_50, ToCurrent(), LOG, 50, None),
        (AT_50, ToOffset(60), LOG, 60, None),
        (AT_50, ShiftBy(-10), LOG, 40, None),
        (AT_50, ShiftBy(10), LOG, 60, None),
        (AT_50, ToEach({AT: 77}), LOG, 77, None),
        # Outside of the log
        *((AT_50, target, LOG, 20, BEFORE) for target in (ToOffset(19), ShiftBy(-31), ToEach({AT: 19}))),
        *((AT_50, target, LOG, 100, PAST) for target in (ToOffset(101), ShiftBy(51), ToEach({AT: 101}))),
        *((AT_50, target, NO_BROKERS, 0, BELOW) for target in (ToOffset(-1), ShiftBy(-51))),
        *((AT_50, ToOffset(number), NO_BROKERS, number, None) for number in (0, 10**6)),
        *((offset("orders/0", number), ToCurrent(), LOG, number, None) for number in (5, 200)),
        # Without a valid offset
        (None, ToCurrent(), LOG, 100, None),
        (None, ToCurrent(), NO_BROKERS, None, Refusal.NOT_COMMITTED),
        (None, ShiftBy(1), LOG, None, Refusal.NOT_COMMITTED),
        (BAD, ShiftBy(1), LOG, None, Refusal.NOT_VALID),
        (BAD, ToCurrent(), LOG, None, Refusal.NOT_VALID),
        (BAD, ToEarliest(), LOG, 20, None),
        (BAD, ToOffset(7), LOG, 20, BEFORE),
        (BAD, ToOffset(7), NO_BROKERS, 7, None),
        # Refused
        *(
            (AT_50, target, None, None, Refusal.UNKNOWN_TO_BROKERS)
            for target in (ToEarliest(), ToLatest(), ToOffset(50), ShiftBy(1), ToEach({AT: 5}))
        ),
        (offset("orders/0", MAX_OFFSET), ShiftBy(1), NO_BROKERS, None, Refusal.TOO_LARGE),
        (AT_50, ToEach({AT: None}), NO_BROKERS, None, Refusal.NO_TARGET),
        (AT_50, ToEach({}), NO_BROKERS, None, Refusal.NO_TARGET),
    ],
)
def test_a_reset_is_planned(
    found: CurrentOffset, target: Target, log: OffsetRange | str | None, new: int | None, why: object
) -> None:
    change = planned(found, target, log)
    old = found.offset if isinstance(found, CommittedOffset) else None
    assert (change.at, change.found, change.old, change.new) == (AT, found, old, new)
    assert change.adjustment == (why if isinstance(why, Adjustment) else None)
    assert change.refusal == (why if isinstance(why, Refusal) else None)
    assert change.is_refused == (new is None)
    assert change.changes == (new is not None and new != old)
    assert change.delta == (None if new is None or old is None else new - old)
    requested = {BEFORE: 19, PAST: 101, BELOW: -1, Refusal.TOO_LARGE: MAX_OFFSET + 1}
    if why in requested and found is not BAD:
        assert change.requested == requested[why]  # type: ignore[index]


def test_a_partition_that_the_brokers_do_not_have_is_refused() -> None:
    assert plan_reset({AT: AT_50}, {}, ToEarliest())[0].refusal is Refusal.UNKNOWN_TO_BROKERS


def test_a_delete_changes_nothing_where_no_offset_exists() -> None:
    changes = plan_delete({OTHER: None, AT: offset("orders/0", 0), TopicPartition("orders", 2): BAD})
    found = [(change.at.partition, change.new, change.delta, change.changes) for change in changes]
    assert found == [(0, None, None, True), (1, None, None, False), (2, None, None, True)]


def committed_at(number: int) -> CommittedOffset:
    return offset("orders/0", number)


FOUND = st.none() | st.integers(0, MAX_OFFSET).map(committed_at) | st.integers(0, 150).map(committed_at) | st.just(BAD)
NEAR_LOGS = st.none() | st.tuples(st.integers(0, 150), st.integers(0, 150)).map(
    lambda ends: OffsetRange(min(ends), max(ends))
)
NUMBERS = st.integers(-200, 200) | st.integers(-(2**70), 2**70)
TARGETS: st.SearchStrategy[Target] = (
    st.sampled_from([ToEarliest(), ToLatest(), ToCurrent()])
    | st.builds(ToOffset, NUMBERS)
    | st.builds(ShiftBy, NUMBERS)
    | st.builds(ToEach, st.dictionaries(st.just(AT), st.none() | st.integers(0, MAX_OFFSET)))
)


@given(FOUND, NEAR_LOGS, st.booleans(), TARGETS)
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


@given(FOUND, NEAR_LOGS, TARGETS.filter(lambda target: not isinstance(target, ShiftBy)))
def test_a_second_reset_to_the_same_target_changes_nothing(
    found: CurrentOffset, log: OffsetRange | None, target: Target
) -> None:
    change = planned(found, target, log)
    assert change.new is None or not planned(committed_at(change.new), target, log).changes


@given(FOUND, NEAR_LOGS, TARGETS)
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


@given(FOUND, NEAR_LOGS, TARGETS)
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
    changes = plan_reset(
        {at: CommittedOffset("billing", at, number) for at, number in offsets.items()}, None, ToOffset(5)
    )
    assert [change.at for change in changes] == sorted(offsets)
    assert [(change.old, change.delta) for change in changes] == [(offsets[m.at], 5 - offsets[m.at]) for m in changes]


# The time of a message

NOW = 1_800_000_000_000


def searched(times: list[int], offset: int, *, start: int = 0) -> tuple[int | None, int]:
    """Search in a log of messages with these times, from the offset `start`. Return the result, and the questions."""
    search, questions = MessageTimeSearch(offset, NOW), 0
    while not search.ended:
        questions += 1
        found = next((at for at, time in enumerate(times[start:], start) if time >= search.question), None)
        search.receive(found, -1 if found is None else times[found])
    return search.found, questions


@given(st.lists(st.integers(0, NOW), min_size=1, max_size=30).map(sorted), st.data())
@example([NOW], None)
@example([0, 0, NOW], None)
def test_the_result_is_within_a_second_or_a_hundredth_of_the_age(times: list[int], data: st.DataObject | None) -> None:
    offset = data.draw(st.integers(0, len(times) - 1)) if data else len(times) - 1
    found, questions = searched(times, offset)
    assert found is not None
    assert 0 <= times[offset] - found <= max(1000, (NOW - found) // 100)
    assert questions <= 25


@given(st.lists(st.integers(0, NOW), min_size=1, max_size=30))
def test_for_times_out_of_order_the_newest_one_so_far_counts(times: list[int]) -> None:
    found, _ = searched(times, len(times) - 1)
    assert found is not None
    assert 0 <= max(times) - found <= max(1000, (NOW - found) // 100)


@pytest.mark.parametrize("age", [0, 1, 999, 60_000, 3_600_000, 86_400_000, 30 * 86_400_000])
def test_the_age_of_a_busy_log_takes_few_questions(age: int) -> None:
    times = [NOW - age - 100_000 + number * 1000 for number in range(200)]
    found, questions = searched(times, 100)
    assert found is not None
    assert 0 <= min(times[100], NOW) - found <= max(1000, (NOW - found) // 100)
    assert questions <= 22


def test_a_time_in_the_future_counts_as_now() -> None:
    assert searched([NOW - 5, NOW + 10_000], 1)[0] in range(NOW - 1000, NOW + 1)


def test_a_log_without_times_and_one_that_begins_later_have_no_result() -> None:
    assert searched([-1, -1], 0) == (None, 1)
    assert searched([-1, 5, 6], 0) == (None, 1)
    assert searched([4, 5, 6], 1, start=2) == (None, 1)


# Where to start: an offset is past the end of a log only if a second reading, later but not too late, shows the same


def test_a_position_is_past_the_end_only_if_a_second_reading_shows_it_again() -> None:
    soon, late = 10.0 + 0.9 * CONFIRM_AFTER, 10.0 + 1.1 * FORGET_AFTER
    for readings, expected in (
        ([(AT, 50, 10.0), (AT, 50, soon), (AT, 50, 10.0 + CONFIRM_AFTER), (AT, 50, 10.0 + FORGET_AFTER)], [0, 0, 1, 1]),
        ([(AT, 50, 10.0), (AT, 50, late), (AT, 50, late + CONFIRM_AFTER)], [0, 0, 1]),  # the first one was too old
        ([(AT, 50, 0.0), (AT, 51, 2.0), (AT, 51, 2.5), (OTHER, 51, 3.0), (AT, 51, 3.0)], [0, 0, 0, 0, 1]),
    ):
        past_end = PastEnd()
        assert [past_end.is_confirmed(*reading) for reading in readings] == expected


def test_a_reading_that_finds_the_position_in_the_log_forgets_the_first_one() -> None:
    past_end = PastEnd()
    past_end.is_confirmed(AT, 50, 0.0)
    past_end.forget(AT)
    past_end.forget(OTHER)
    assert not past_end.is_confirmed(AT, 50, 2.0)


def test_a_start_is_in_the_log_or_unknown() -> None:
    starts = {StartAt.EARLIEST: 10, StartAt.LATEST: 20, 9: None, 10: 10, 20: 20, 21: None}
    assert {start: start_offset(start, OffsetRange(10, 20)) for start in starts} == starts
