"""The size and number of requests, for all lengths of answers. No server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zkgroups.zookeeper.requests.bulk_read_pace import ANSWER_BYTES, FIRST, MOST, MOST_SINGLE, REQUESTS, BulkReadPace

LENGTHS = st.integers(0, 2**31) | st.integers(0, 300)


@given(st.lists(st.tuples(st.integers(0, MOST), LENGTHS), max_size=20), st.booleans())
def test_a_request_always_reads_between_one_and_the_maximum_number_of_nodes(
    answers: list[tuple[int, int]], one_by_one: bool
) -> None:
    pace = BulkReadPace()
    pace.set_together(not one_by_one)
    for reads, answer_bytes in answers:
        before = pace.size
        pace.answered(reads, answer_bytes)
        assert 1 <= pace.size <= min(2 * before, MOST_SINGLE if one_by_one else MOST)
        if reads:
            assert pace.requests == REQUESTS
            assert pace.size == 1 or pace.size * answer_bytes <= ANSWER_BYTES * reads


def test_the_first_request_is_sent_alone_and_is_small() -> None:
    pace = BulkReadPace()
    assert (pace.size, pace.requests) == (FIRST, 1)


@given(st.integers(1, ANSWER_BYTES // MOST))
def test_short_answers_soon_lead_to_the_largest_requests(each: int) -> None:
    pace = BulkReadPace()
    for _ in range(3):
        pace.answered(pace.size, pace.size * each)
    assert pace.size == MOST


def test_after_a_huge_answer_requests_read_one_node_and_after_short_ones_hundreds_again() -> None:
    pace = BulkReadPace()
    pace.answered(FIRST, FIRST * 900_000)
    assert pace.size == 1
    steps = 0
    while pace.size < MOST:
        pace.answered(pace.size, pace.size * 90)
        steps += 1
    assert steps == 9


def test_an_answer_without_nodes_does_not_change_the_size_of_requests() -> None:
    pace = BulkReadPace()
    pace.answered(FIRST, FIRST * 90)
    size = pace.size
    pace.answered(0, 9)
    assert pace.size == size


def test_with_one_request_for_each_node_fewer_nodes_are_in_flight() -> None:
    pace = BulkReadPace()
    pace.set_together(False)
    assert pace.size == MOST_SINGLE
    pace.answered(MOST_SINGLE, MOST_SINGLE * 90)
    assert pace.size == MOST_SINGLE
    pace.set_together(True)
    pace.answered(MOST_SINGLE, MOST_SINGLE * 90)
    assert pace.size == 2 * MOST_SINGLE
