"""Which topics a registration subscribes to, compared with Scala."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zkgroups.core.java_regex.parser import topic_expression
from zkgroups.core.java_regex.topic_filter import TopicFilter
from zkgroups.core.znodes import subscribed_topics as module
from zkgroups.core.znodes.registration_codec import encode_registration
from zkgroups.core.znodes.subscribed_topics import check_expression, subscribed_topics
from zkgroups.core.znodes.values import Pattern, Registration
from zkgroups.exceptions import InvalidInputError, InvalidOptionError

from . import old_clients
from .strategies import EXPRESSIONS, TOPICS

KAFKA = ["__consumer_offsets", "__transaction_state", "orders", "orders.v2", "refunds", "Orders"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("orders", "orders"),
        ("orders, refunds.*", "orders|refunds.*"),
        (" a , b ", "a|b"),
        ("\t\r\na\x00\x1f", "a"),
        ("a\tb", "a\tb"),
        ('"a,b"', "a|b"),
        ("''\"a'\"", "a"),
        ("a'b", "a'b"),
        ('" a "', "a"),
        ("\u00a0a", "\u00a0a"),  # Java's trim knows no blanks but those up to the space
        ("", ""),
        ("','", "|"),
    ],
)
def test_an_expression_is_converted_as_in_scala(expression: str, expected: str) -> None:
    assert topic_expression(expression) == expected


@pytest.mark.parametrize(
    ("pattern", "expression", "expected"),
    [
        ("white_list", "orders", {"orders"}),
        ("white_list", "orders.*", {"orders", "orders.v2"}),
        ("white_list", "refunds,orders", {"orders", "refunds"}),
        ("white_list", "rder", set()),
        ("white_list", "(?i)orders", {"orders", "Orders"}),
        ("white_list", ".*", {"orders", "orders.v2", "refunds", "Orders"}),
        ("white_list", "__consumer_offsets", set()),
        ("white_list", "", set()),
        ("black_list", "orders.*", {"refunds", "Orders"}),
        ("black_list", "nothing", {"orders", "orders.v2", "refunds", "Orders"}),
        ("black_list", ".*", set()),
        ("black_list", "rder", {"orders", "orders.v2", "refunds", "Orders"}),
    ],
)
def test_a_list_matches_whole_names_and_never_internal_topics(
    pattern: str, expression: str, expected: set[str]
) -> None:
    registration = Registration({expression: 2}, Pattern(pattern))
    assert subscribed_topics(registration, KAFKA) == dict.fromkeys(expected, 2)


def test_a_static_subscription_names_its_topics_whether_they_exist_or_not() -> None:
    registration = Registration({"orders": 1, "gone": 2, "__consumer_offsets": 1, "a.*": 1})
    assert subscribed_topics(registration, KAFKA) == registration.streams


def test_only_the_first_of_several_expressions_counts() -> None:
    registration = Registration({"refunds": 1, "orders": 2}, Pattern.WHITE_LIST)
    assert subscribed_topics(registration, KAFKA) == {"refunds": 1}
    registration = Registration({"refunds": 1, "orders": 2}, Pattern.BLACK_LIST)
    assert "refunds" not in subscribed_topics(registration, KAFKA)


@pytest.mark.parametrize("pattern", list(Pattern))
def test_an_empty_subscription_chooses_no_topics(pattern: Pattern) -> None:
    assert subscribed_topics(Registration({}, pattern), KAFKA) == {}


@given(
    expression=EXPRESSIONS,
    streams=st.integers(1, 9),
    pattern=st.sampled_from([Pattern.WHITE_LIST, Pattern.BLACK_LIST]),
    topics=st.lists(TOPICS | st.sampled_from(["a", "b", "t6", "ab", *KAFKA]), unique=True),
)
def test_scala_members_choose_the_same_topics_for_a_pattern(
    expression: str, streams: int, pattern: Pattern, topics: list[str]
) -> None:
    registration = Registration({expression: streams}, pattern)
    try:
        data = encode_registration(registration)
    except InvalidInputError:
        assume(False)
    reading = old_clients.scala_registration(data, jackson=True)
    expected = old_clients.scala_topics(reading, topics, lambda regex, topic: bool(re.fullmatch(regex, topic)))
    assert subscribed_topics(registration, topics) == expected


@given(expression=EXPRESSIONS)
def test_an_accepted_expression_compiles_in_java_and_python(expression: str) -> None:
    try:
        check_expression(expression)
    except InvalidOptionError:
        return
    old_clients.JavaPattern(topic_expression(expression))
    re.compile(topic_expression(expression))
    json.dumps(expression, ensure_ascii=False).encode()


LONG = [
    "a|" * 20_000,
    "(a|b|)*" * 130_000,
    '"' * 800_000 + "a",
    "(" * 50_000,
    "(" * 30_000,
    "[" * 50_000,
    "a" * 50_000 + "{",
    "a?" * 16_000,
    "[a-z]*" * 5_000,
    "(?:.*a)" * 4_000,
    "(((a{900}){900}){900})",
]


def test_a_very_long_expression_is_checked_quickly() -> None:
    check_expression("a|" * 15_000)
    for expression in LONG:
        with pytest.raises(InvalidOptionError) as caught:
            check_expression(expression)
        assert len(str(caught.value)) < 500


def test_each_name_is_matched_once_for_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    matched = []
    matches = TopicFilter.matches

    def counted(self: TopicFilter, topic: str) -> bool:
        matched.append(topic)
        return matches(self, topic)

    monkeypatch.setattr(TopicFilter, "matches", counted)
    listed = Registration({"once-[ab]+": 1}, Pattern.WHITE_LIST)
    others = Registration({"once-[ab]+": 2}, Pattern.BLACK_LIST)
    names = ["once-a", "once-b", "once-c"]
    assert subscribed_topics(listed, names) == {"once-a": 1, "once-b": 1}
    assert subscribed_topics(others, names[1:]) == {"once-c": 2}
    assert subscribed_topics(listed, [*names, "once-ab", "not valid"]) == {"once-a": 1, "once-b": 1, "once-ab": 1}
    assert matched == [*names, "once-ab"]


@pytest.mark.parametrize(("limit", "most"), [("_MOST_BYTES", 50), ("_MOST_NAMES", 2)])
def test_evicted_verdicts_are_computed_again(monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(module, limit, most)
    for round in range(3):
        for letter in "abc":
            registration = Registration({f"{letter}.*": 1}, Pattern.WHITE_LIST)
            names = [f"{one}{number}" for number in range(round, round + 9) for one in "abc"]
            assert list(subscribed_topics(registration, names)) == [name for name in names if name[0] == letter]
            assert subscribed_topics(registration, []) == {}
