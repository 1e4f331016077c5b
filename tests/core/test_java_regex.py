"""Evaluated expressions match as in Java, and select the same topics. Others are rejected."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from zkgroups import Pattern, Registration
from zkgroups.core.java_regex import (
    LONGEST,
    BrokenExpressionError,
    UnevaluableExpressionError,
    topic_expression,
)
from zkgroups.core.selection import check_expression as check_selection
from zkgroups.core.topic_filter import TopicFilter
from zkgroups.core.znodes import registrations as module
from zkgroups.core.znodes.registrations import check_expression, encode_registration, subscribed_topics
from zkgroups.exceptions import InvalidInputError, InvalidOptionError, MissingDependencyError
from zkgroups.testing.java import find_java, pyspark_jars
from zkgroups.testing.server_choice import missing

from .strategies import EXPRESSIONS as ANY_EXPRESSION
from .strategies import TOPICS
from .znodes import old_clients

PROGRAM = Path(__file__).with_name("JavaMatches.java")


class Java:
    """A Java program that matches names with `java.util.regex`, in one JVM for all tests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def matches(self, regex: str, names: Sequence[str]) -> list[bool] | None:
        """Return the names that match completely; None if Java refuses the expression."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"x{regex.encode().hex()} {' '.join(names)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer, "the JVM has ended"
        return None if answer == "refused" else [digit == "1" for digit in answer]


@pytest.fixture(scope="module")
def jvm() -> Iterator[Java]:
    options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m")
    try:
        command = [str(find_java()), *options, "-cp", ":".join(map(str, pyspark_jars("janino", "commons-compiler")))]
    except MissingDependencyError as error:
        missing("zookeeper", str(error))
    command += ["org.codehaus.janino.SimpleCompiler", str(PROGRAM), PROGRAM.stem]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Java(process)
        finally:
            process.kill()


NAMES = ["a", "b", "ab", "A", "t6", "aa", "aab", "a-b", "a.b", "__a", "foo", "abab", "xa-test", "Orders", "_", "-", "."]
_PIECES = ["a", "b", "t6", "A", ".*", ".", "|", ",", "(", ")", "[", "]", "{", "}", "{2}", "*", "+", "?", "\\", "$"]
_PIECES += ["\\d", "\\w", "\\W", "\\D", "\\S", "\\b", "\\B", "\\.", "\\-", "^", "(?:", "(?i)", "(?=", "(?!"]
_PIECES += ["(?<=", "(?<!"]
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


@settings(max_examples=500)
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


USED = ["foo", "a,b , ab", "orders.*,t.", "[a-z]+", "(?i)ORDERS|a", "(?!__).*", "^(?!__|foo).*$", "(?!.*test$).*"]
USED += [
    "((?!oo).)*",
    "^((?!(?:b|oo)).)*$",
    ".*(?<!-test)",
    "(?=a)(?!aa).*",
    "(a+)+b",
    "(a|aa)+",
    "a{2}b?",
    r"a\.b|\w\d",
]
USED += [r"[\w-]+", "[^_].*", r"[\d-a-f]+", r"[^\d-b-f]+", "a{02}b", "a.*b", "a.*b.*b", ".*a.*b.*|.*-b", "(?i)O.*S"]
# Java reads these differently than RE2 or Python, or only Java can read them.
JAVA_ONLY = ["(a)\\1", "a*+a", "(?>a|ab)b", "a(?=b).*", ".*(?<=a)b", "((?!a$).)*", "(?!(?!a)b).*", ".*(?<!a{2})"]
JAVA_ONLY += [
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
]
JAVA_ONLY += ["a|(?i)b", "(?i:a)", "(?<n>a)", "ä", "a{2}{2}", "{2}a", "^*a", "(?:^|ab){2}", "(?:(?:\\b|ab)b?){2}"]
JAVA_ONLY += ["(?i)\u212a"]
JAVA_ONLY += [r"\p{Alpha}+", "[a-c[x-z]]", "[a&&b]", "[a||b]", "{2}"]
BROKEN = [r"[\S-|-']", r"[\d-z-a]", r"[a-\d]", "a{2147483648}"]
# Java refuses these, too. Some of them look like parts that only Java supports.
REFUSED = ["(", "a)", "*", "[a", "a{", "{", "a{,3}", "{a}", "a{2", "x{2,1}", "(?P<n>a)", "(?#a)b", r"\y", "\\", r"\0"]
REFUSED += [
    "[[a]",
    "a**",
    "[z-a]",
    r"[\b]",
    "(?a)b",
    "(?(1)a|b)",
    r"\U0001f600",
    "a{99999999999}",
    "a{2,3}",
    "a{}",
    "{}",
]


def test_common_expressions_are_evaluated_as_in_java(jvm: Java) -> None:
    for expression in USED:
        found = [TopicFilter(expression).matches(name) for name in NAMES]
        assert any(found)
        assert jvm.matches(topic_expression(expression), NAMES) == found, expression


def test_expressions_that_only_java_supports_are_not_evaluated_and_those_that_it_refuses_are_broken(jvm: Java) -> None:
    for expression in JAVA_ONLY:
        assert jvm.matches(topic_expression(expression), NAMES) is not None, expression
        with pytest.raises(UnevaluableExpressionError):
            TopicFilter(expression)
    for expression in (*BROKEN, *REFUSED):
        assert jvm.matches(topic_expression(expression), NAMES) is None, expression
        with pytest.raises((BrokenExpressionError, UnevaluableExpressionError)) as refused:
            TopicFilter(expression)
        assert expression in REFUSED or refused.type is BrokenExpressionError


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
    "conditions": "".join(f"(?!.*a.{{{number}}}c)" for number in range(100)) + ".*",
    "beyond the longest name": ".*a" + "." * 15_000 + "c",
    "optional parts": "(?:|.|a)" * 3_000,
    "alternatives with a condition": "|".join(f"(?!a)b{number}.*" for number in range(100)),
    "many repeats": "(?:(?:a|b){1000}a){9}",
}


@pytest.mark.parametrize("expression", COSTLY.values(), ids=COSTLY)
def test_expressions_that_may_take_long_are_not_evaluated(expression: str) -> None:
    with pytest.raises(UnevaluableExpressionError, match=r"too many steps|RE2 does not accept it"):
        TopicFilter(expression)


_WORDS = [f"{one}{two}" for one in ("orders", "refunds", "billing", "users", "audit") for two in "12345678"]
AFFORDABLE = [
    "|".join(f".*{word}.*" for word in _WORDS),
    "|".join(f".*-{word}" for word in _WORDS),
    "|".join(f"{word}.events.v[12]" for word in _WORDS * 10),
    "|".join(rf"(prod|staging)\.{word}\..*" for word in _WORDS * 4),
    r"(?!__|_schemas|_confluent|connect-|mm2-)(?!.*(\.internal|-changelog|-repartition)$).*",
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "|".join(rf"team[0-9]+\.{word}\..*" for word in _WORDS),
    r"dc[0-9]{2}\.[a-z0-9-]+\.(events|metrics|logs)\.[a-z0-9_]+",
]


def test_usual_lists_are_evaluated() -> None:
    assert not any(TopicFilter(expression).matches("__") for expression in AFFORDABLE)


# Topics of a registration, compared with Scala

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
    expression=ANY_EXPRESSION,
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


@settings(max_examples=200)
@given(expression=ANY_EXPRESSION)
def test_an_accepted_expression_compiles_in_java_and_python(jvm: Java, expression: str) -> None:
    try:
        check_expression(expression)
    except InvalidOptionError:
        return
    assert jvm.matches(topic_expression(expression), NAMES) is not None
    re.compile(topic_expression(expression))
    json.dumps(expression, ensure_ascii=False).encode()


LONG = ["a|" * 20_000, "(a|b|)*" * 130_000, '"' * 800_000 + "a", "(" * 50_000, "(" * 30_000, "[" * 50_000]
LONG += ["a" * 50_000 + "{", "a?" * 16_000, "[a-z]*" * 5_000, "(?:.*a)" * 4_000, "(((a{900}){900}){900})"]


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


def test_an_expression_that_selects_groups_is_checked_and_the_error_names_its_option() -> None:
    for expression in (None, "", "orders|bill.*"):
        check_selection("groups", expression)
    for expression in ("(", "*", "a{2,1}", "(" * 5000 + ")" * 5000):
        with pytest.raises(InvalidOptionError, match=r"^groups is .*it is not a regular expression: "):
            check_selection("groups", expression)
