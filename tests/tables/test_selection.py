"""Selections: whole names, and every topic in exactly one share."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups.core.selection import Selection

from ..core.strategies import NAMES

SOME = ["orders", "or", "reorder", "or\nders", "ordersü"]


@given(st.integers(1, 50), st.lists(st.tuples(NAMES, NAMES | st.just("")), max_size=20))
@example(7, [("a", "b/c"), ("a/b", "c"), ("", "")])
def test_shares_are_disjoint_and_complete(shares: int, topics: list[tuple[str, str]]) -> None:
    for group, topic in topics:
        readers = [n for n in range(shares) if Selection(share=n, shares=shares).has_topic(group, topic)]
        assert len(readers) == 1


def test_one_huge_group_is_divided_among_all_tasks() -> None:
    topics = [f"topic-{n}" for n in range(1_000)]
    sizes = [sum(Selection(share=n, shares=7).has_topic("huge", topic) for topic in topics) for n in range(7)]
    assert min(sizes) > 100


def test_members_of_many_groups_are_divided_among_all_tasks() -> None:
    groups = [f"group-{n}" for n in range(1_000)]
    sizes = [sum(Selection(share=n, shares=7).has_topic(group, "") for group in groups) for n in range(7)]
    assert min(sizes) > 100


@pytest.mark.parametrize("kind", ["groups", "topics"])
def test_an_expression_must_match_a_whole_name(kind: str) -> None:
    def selected(expression: str | None) -> set[str]:
        selection = Selection(**{kind: expression})
        has = selection.has_group if kind == "groups" else lambda topic: selection.has_topic("g", topic)
        return {name for name in SOME if has(name)}

    assert selected("or") == {"or"}
    assert selected("or.*") == {"orders", "or", "or\nders", "ordersü"}
    assert selected("orders|or") == {"orders", "or"}
    assert selected("^or$") == {"or"}
    assert selected("(?i)ORDERS") == {"orders"}
    assert selected(None) == set(SOME)
    assert selected("nothing") == set()


def test_rows_without_topic_match_every_expression() -> None:
    """So the row that reports a forbidden list is included."""
    assert Selection(topics="orders").has_topic("g", "")


def test_a_selection_survives_pickling() -> None:
    selection = Selection("g.*", "t.*", 2, 3)
    assert selection.has_group("g1")  # cached properties must not prevent it
    there = pickle.loads(pickle.dumps(selection))
    assert there == selection
    assert [n for n in range(99) if there.has_topic("g1", f"t{n}")] == [
        n for n in range(99) if selection.has_topic("g1", f"t{n}")
    ]
