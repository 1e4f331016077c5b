"""The steps that RE2 may need for a topic name, by the expression: the limit of `topic_filter.py` depends on them."""

from __future__ import annotations

import pytest

from zkgroups.core.java_regex.match_cost import (
    AT_START,
    EVERYWHERE,
    LONGEST_NAME,
    steps_of_alternative,
    steps_of_alternatives,
    steps_of_glob,
)
from zkgroups.core.java_regex.parser import parse

ALL = LONGEST_NAME + 1
BEHIND_FIRST = EVERYWHERE - 1


@pytest.mark.parametrize(
    ("expression", "ends", "steps"),
    [
        ("ab", 0b100, 2),
        ("a|b", 0b10, 3),
        ("a|b|c", 0b10, 5),
        ("(?:ab|c)", 0b110, 4),
        ("(?:ab|c)d", 0b1100, 8),
        ("a{2}", 0b100, 5),
        ("a{2}b", 0b1000, 6),
        ("a*", EVERYWHERE, 2 * 2 * ALL),
        ("a*b", BEHIND_FIRST, 3 * 2 * ALL),
        ("(?:a|bc)*d", BEHIND_FIRST, 3498),
    ],
)
def test_the_steps_of_an_expression_are_counted_part_by_part(expression: str, ends: int, steps: int) -> None:
    assert steps_of_alternatives(parse(expression), AT_START) == (ends, steps)


@pytest.mark.parametrize(
    ("expression", "steps"),
    [
        ("ab", 2),
        ("a*", LONGEST_NAME),
        ("[a-z]+b", 1500),
        (r"[a-z]+\.", LONGEST_NAME + 1),
        (r"[a-z]+\.c", LONGEST_NAME + 2),
        ("[a-z]+[0-9]+", 2 * LONGEST_NAME),
        ("[a-z]+[0-9]+x", 2 * LONGEST_NAME + 1),
    ],
)
def test_a_repetition_that_cannot_continue_into_the_next_part_ends_at_one_place(expression: str, steps: int) -> None:
    [items] = parse(expression)
    assert steps_of_alternative(items) == steps


def test_names_and_starts_of_names_cost_nothing() -> None:
    assert steps_of_glob(["orders"]) == steps_of_glob(["orders", ""]) == 0
    assert steps_of_glob(["", "orders"]) == LONGEST_NAME
    assert steps_of_glob(["a", "b", "c" * 16]) == LONGEST_NAME * (1 + 2)
