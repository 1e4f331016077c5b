"""Whatever is evaluated, Java's answer is given; the rest is not evaluated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkgroups.core.expression import (
    LONGEST,
    BrokenExpressionError,
    TopicFilter,
    UnevaluableExpressionError,
    topic_expression,
)
from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing.require import missing

from .java import Java, java

NAMES = ["a", "b", "ab", "A", "t6", "aa", "aab", "a-b", "a.b", "__a", "foo", "abab", "xa-test", "Orders", "_", "-", "."]

_PIECES = ["a", "b", "t6", "A", ".*", ".", "|", ",", "(", ")", "[", "]", "{", "}", "{2}", "*", "+", "?", "\\", "$"]
_PIECES += [
    "\\d",
    "\\w",
    "\\W",
    "\\D",
    "\\S",
    "\\b",
    "\\B",
    "\\.",
    "\\-",
    "^",
    "(?:",
    "(?i)",
    "(?=",
    "(?!",
    "(?<=",
    "(?<!",
]
_PIECES += ["[^", "a-z", "-", "&&", "_", "\\1", "#", "((?!", ").)*", ").*", "[ab]", "[^A]", "(?!__).*", '"', "(a|b)*"]
_PIECES += ["(?<!", "(a?b)*", "(a*)*", "(a+)+", "*?", "++", "(?>", "\\Q", "\\E", "\\h", "(?<n>", "\\p{Lu}", "\\07"]
_ANY = st.lists(st.sampled_from(_PIECES), max_size=8).map("".join)
_GUARDS = ["^(?!%s).*$", "(?!%s).*", "((?!%s).)*", ".*(?<!%s)", "(?=%s)(?!b).*(?<=a)", "(?i)%s", "((?!%s).*)|b", "x|%s"]
EXPRESSIONS = _ANY | st.builds(str.replace, st.sampled_from(_GUARDS), st.just("%s"), _ANY)


@pytest.fixture(scope="module")
def jvm() -> Iterator[Java]:
    try:
        with java() as program:
            yield program
    except MissingDependencyError as error:
        missing("zookeeper", str(error))


@settings(max_examples=600)
@given(expression=EXPRESSIONS, names=st.lists(st.text("abAt6_.-1", min_size=1, max_size=9), max_size=8))
def test_every_answer_is_that_of_java(jvm: Java, expression: str, names: list[str]) -> None:
    asked = [*NAMES, *names]
    try:
        found = TopicFilter(expression)
    except BrokenExpressionError:
        assert jvm.matches(topic_expression(expression), asked) is None
    except UnevaluableExpressionError:
        return
    else:
        assert jvm.matches(topic_expression(expression), asked) == [found.matches(name) for name in asked]


USED = [
    "foo",
    "a,b , ab",
    "orders.*,t.",
    "[a-z]+",
    "(?i)ORDERS|a",
    "(?!__).*",
    "^(?!__|foo).*$",
    "(?!.*test$).*",
    "((?!oo).)*",
    "^((?!(?:b|oo)).)*$",
    ".*(?<!-test)",
    "(?=a)(?!aa).*",
    "(a+)+b",
    "(a|aa)+",
    "a{2}b?",
    r"a\.b|\w\d",
    r"[\w-]+",
    "[^_].*",
]


@pytest.mark.parametrize("expression", USED)
def test_what_groups_use_is_evaluated_as_by_java(jvm: Java, expression: str) -> None:
    found = [TopicFilter(expression).matches(name) for name in NAMES]
    assert any(found)
    assert jvm.matches(topic_expression(expression), NAMES) == found


# Java and RE2, or Java and Python's re, read these differently, or Java alone reads them.
JAVA_ONLY = [
    "(a)\\1",
    "a*+a",
    "(?>a|ab)b",
    "a(?=b).*",
    ".*(?<=a)b",
    "((?!a$).)*",
    "(?!(?!a)b).*",
    ".*(?<!a{2})",
    "[a[b]]",
    "[a-z&&[^b]]",
    "\\p{Lower}+",
    "\\Qa\\E",
    "\\07",
    "\\x61",
    "\\h",
    "\\R",
    "a\\Z",
    "(?x)a",
    "(?u)a",
    "a|(?i)b",
    "(?i:a)",
    "(?<n>a)",
    "ä",
    "a{2}{2}",
    "{2}a",
    "^*a",
    "(?i)\u212a",
]


@pytest.mark.parametrize("expression", JAVA_ONLY)
def test_what_only_java_reads_is_not_evaluated(jvm: Java, expression: str) -> None:
    assert jvm.matches(topic_expression(expression), NAMES) is not None
    with pytest.raises(UnevaluableExpressionError):
        TopicFilter(expression)


def test_names_that_kafka_refuses_are_never_matched() -> None:
    assert TopicFilter(".*").matches("a" * 249)
    assert not any(map(TopicFilter(".*").matches, ["", "a" * 250, "ä", "a b", "a\n"]))


def test_long_lists_of_names_and_of_beginnings_are_evaluated() -> None:
    names = [f"service-{number:04}.events.v1" for number in range(1_200)]
    assert all(map(TopicFilter(",".join(names)).matches, names))
    assert all(map(TopicFilter(",".join(f"{name}.*" for name in names[:900])).matches, names[:900]))
    assert not TopicFilter(",".join(names)).matches("service-1200.events.v1")
    with pytest.raises(UnevaluableExpressionError, match=f"at most {LONGEST}"):
        TopicFilter(",".join(names * 2))
