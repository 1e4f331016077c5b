"""An offset is past the end of a log only if a second reading, later but not too late, shows the same."""

from __future__ import annotations

import pytest

from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.offsets.start_offset import CONFIRM_AFTER, FORGET_AFTER, PastEnd, start_offset
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import StartAt

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_a_position_is_past_the_end_only_if_a_second_reading_shows_it_again() -> None:
    past_end = PastEnd()
    assert not past_end.is_confirmed(AT, 50, 10.0)
    assert not past_end.is_confirmed(AT, 50, 10.0 + 0.9 * CONFIRM_AFTER)
    assert past_end.is_confirmed(AT, 50, 10.0 + CONFIRM_AFTER)
    assert past_end.is_confirmed(AT, 50, 10.0 + FORGET_AFTER)


def test_an_old_first_reading_does_not_count() -> None:
    past_end = PastEnd()
    past_end.is_confirmed(AT, 50, 0.0)
    late = 1.1 * FORGET_AFTER
    assert not past_end.is_confirmed(AT, 50, late)
    assert past_end.is_confirmed(AT, 50, late + CONFIRM_AFTER)


def test_another_position_needs_its_own_second_reading() -> None:
    past_end = PastEnd()
    past_end.is_confirmed(AT, 50, 0.0)
    assert not past_end.is_confirmed(AT, 51, 2.0)
    assert not past_end.is_confirmed(AT, 51, 2.5)
    assert not past_end.is_confirmed(OTHER, 51, 3.0)
    assert past_end.is_confirmed(AT, 51, 3.0)


def test_a_reading_that_finds_the_position_in_the_log_forgets_the_first_one() -> None:
    past_end = PastEnd()
    past_end.is_confirmed(AT, 50, 0.0)
    past_end.forget(AT)
    past_end.forget(OTHER)
    assert not past_end.is_confirmed(AT, 50, 2.0)


@pytest.mark.parametrize(
    ("start", "expected"),
    [(StartAt.EARLIEST, 10), (StartAt.LATEST, 20), (9, None), (10, 10), (20, 20), (21, None)],
)
def test_a_start_is_in_the_log_or_unknown(start: int | StartAt, expected: int | None) -> None:
    assert start_offset(start, OffsetRange(10, 20)) == expected
