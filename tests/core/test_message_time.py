"""The search for the time of a message, by questions that brokers answer."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups.core.offsets.message_time import MessageTimeSearch

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
