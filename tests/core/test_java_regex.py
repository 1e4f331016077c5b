"""Evaluated expressions match as in Java. All other expressions are rejected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkgroups.core.java_regex.errors import BrokenExpressionError, UnevaluableExpressionError
from zkgroups.core.java_regex.parser import LONGEST, topic_expression
from zkgroups.core.java_regex.topic_filter import TopicFilter
from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing.requirements import missing

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
_MEMBERS = ["a", "b", "f", "A", "-", "-", "-", "^", "1", "_", ".", "a-f", "0-9", "\\d", "\\w", "\\S", "\\-", "|", "'"]
_SETS = st.builds(
    "{}[{}{}]{}".format,
    st.sampled_from(["", "a", ".*"]),
    st.sampled_from(["", "^"]),
    st.lists(st.sampled_from(_MEMBERS), max_size=5).map("".join),
    st.sampled_from(["", "+", "{2}", "{02}", "{00}", "*b", ".*"]),
)
_LITERALS = st.lists(st.sampled_from(["a", "b", "ab", "t6", "\\.", "-", ".*", ".*", "|"]), max_size=9).map("".join)
EXPRESSIONS = _ANY | _SETS | _LITERALS | st.builds(str.replace, st.sampled_from(_GUARDS), st.just("%s"), _ANY)


@pytest.fixture(scope="module")
def jvm() -> Iterator[Java]:
    try:
        with java() as program:
            yield program
    except MissingDependencyError as error:
        missing("zookeeper", str(error))


@settings(max_examples=1_000)
@given(expression=EXPRESSIONS, names=st.lists(st.text("abAt6_.-1", min_size=1, max_size=9), max_size=8))
def test_every_evaluated_expression_matches_as_in_java(jvm: Java, expression: str, names: list[str]) -> None:
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
    r"[\d-a-f]+",
    r"[^\d-b-f]+",
    "a{02}b",
    "a.*b",
    "a.*b.*b",
    ".*a.*b.*|.*-b",
    "(?i)O.*S",
]


@pytest.mark.parametrize("expression", USED)
def test_common_expressions_are_evaluated_as_in_java(jvm: Java, expression: str) -> None:
    found = [TopicFilter(expression).matches(name) for name in NAMES]
    assert any(found)
    assert jvm.matches(topic_expression(expression), NAMES) == found


# Java reads these differently than RE2 or Python, or only Java can read them.
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
    "(?:^|ab){2}",
    "(?:(?:\\b|ab)b?){2}",
    "(?i)\u212a",
]


@pytest.mark.parametrize("expression", JAVA_ONLY)
def test_expressions_that_only_java_supports_are_not_evaluated(jvm: Java, expression: str) -> None:
    assert jvm.matches(topic_expression(expression), NAMES) is not None
    with pytest.raises(UnevaluableExpressionError):
        TopicFilter(expression)


@pytest.mark.parametrize("expression", [r"[\S-|-']", r"[\d-z-a]", r"[a-\d]", "a{2147483648}"])
def test_expressions_that_java_refuses_are_broken(jvm: Java, expression: str) -> None:
    assert jvm.matches(topic_expression(expression), NAMES) is None
    with pytest.raises(BrokenExpressionError):
        TopicFilter(expression)


def test_invalid_topic_names_never_match() -> None:
    assert TopicFilter(".*").matches("a" * 249)
    assert not any(map(TopicFilter(".*").matches, ["", "a" * 250, "ä", "a b", "a\n"]))


def test_long_lists_of_names_and_prefixes_are_evaluated() -> None:
    names = [f"service-{number:04}.events.v1" for number in range(1_200)]
    assert all(map(TopicFilter(",".join(names)).matches, names))
    assert all(map(TopicFilter(",".join(f"{name}.*" for name in names[:900])).matches, names[:900]))
    assert not TopicFilter(",".join(names)).matches("service-1200.events.v1")
    with pytest.raises(UnevaluableExpressionError, match=f"at most {LONGEST}"):
        TopicFilter(",".join(names * 2))


COSTLY = {
    "a large automaton": "(?:a|b)*a" + "(?:a|b)" * 290 + ".*x.*",
    "conditions": "".join(f"(?!.*a.{{{number}}}c)" for number in range(14, 38)) + ".*",
    "repeated alternatives": "|".join(f".*[aeio{letter}]{{9}}.*" for letter in "abcdefghijklmnopqrst"),
    "repetitions": "(?:a*b*)*" * 60,
    "beyond the longest name": ".*a" + "." * 20_000 + "c",
    "searches": "|".join(f".*{number}.*" for number in range(200)),
    "optional parts": "(?:|.|a)" * 1_000,
    "alternatives with a condition": "|".join(f"(?!a)b{number}.*" for number in range(200)),
    "sets that overlap": "|".join(rf"[ab]+[bc]x{number}.*" for number in range(40)),
    "many repeats": "(?:(?:a|b){1000}a)*",
}


@pytest.mark.parametrize("expression", COSTLY.values(), ids=COSTLY)
def test_expressions_that_may_take_long_are_not_evaluated(expression: str) -> None:
    with pytest.raises(UnevaluableExpressionError, match="steps"):
        TopicFilter(expression)


_WORDS = [f"{one}{two}" for one in ("orders", "refunds", "billing", "users", "audit") for two in "12345678"]
AFFORDABLE = {
    "parts of names": "|".join(f".*{word}.*" for word in _WORDS),
    "ends of names": "|".join(f".*-{word}" for word in _WORDS),
    "wildcards in names": "|".join(f"{word}.events.v[12]" for word in _WORDS * 10),
    "starts with choices": "|".join(rf"(prod|staging)\.{word}\..*" for word in _WORDS * 4),
    "internal names": r"(?!__|_schemas|_confluent|connect-|mm2-)(?!.*(\.internal|-changelog|-repartition)$).*",
    "digits": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "numbers": "|".join(rf"team[0-9]+\.{word}\..*" for word in _WORDS),
    "words": r"dc[0-9]{2}\.[a-z0-9-]+\.(events|metrics|logs)\.[a-z0-9_]+",
}


@pytest.mark.parametrize("expression", AFFORDABLE.values(), ids=AFFORDABLE)
def test_usual_lists_are_evaluated(expression: str) -> None:
    assert not TopicFilter(expression).matches("__")
