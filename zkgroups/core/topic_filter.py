r"""White and black lists: Java's regular expressions, matched against topic names in linear time.

Scala members use `java.util.regex`, which backtracks: matching `(a+)+b` against a topic of 40 `a`s never ends. So
zkgroups uses RE2. An expression is evaluated if all of it belongs to the following syntax. Then RE2 gives the same
result as Java:

    (?i) (?m) (?s)               only at the start
    letters, digits and other ASCII characters; a backslash may escape any but letters and digits
    .  ^  $  \b \B \d \D \w \W \s \S
    [abc]  [^a-z\d]              without sets inside, `&&`, `--`, `||` and `~~`
    ( )  (?: )  |
    *  +  ?  {n}                 also lazy; `{n,m}` cannot be written, because a comma becomes `|`
    (?= ) (?! )                  at the start of a top-level alternative: `(?!__).*`, `^(?!a|b).*$`
    (?<= ) (?<! )                at the end of a top-level alternative, without repetitions inside: `.*(?<!-test)`
    ((?! ).)*                    as a whole alternative: names that do not contain a text

RE2 supports neither lookaheads nor lookbehinds. But at the start or the end of an alternative they are conditions on
the whole name, so RE2 can check them one by one. All other syntax is not evaluated, because RE2 may reject it or give
it another meaning: back references, possessive and atomic groups, `\p`, `\Q`, `\R`, `\h`, octal escapes, other flags,
sets in sets, characters outside ASCII. Expressions that are too long, or that may take too long, are not evaluated
either. A time limit would not work: all members of a group must get the same result, also on busy machines.
Instead, the worst number of steps for one name is computed from the expression; see `java_regex.py`.

Parts that consist of literal characters and `.*` need no regular expression, and long lists of them are cheap.

Only valid names of Kafka topics are matched. So line terminators and case outside ASCII do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeAlias

import re2

from .java_regex import (
    ANYTHING,
    FLAGS,
    LONGEST_NAME,
    Choice,
    ExpressionError,
    MatchShape,
    UnevaluableExpressionError,
    checked,
    choices_of,
    parse,
)

MOST_STEPS: Final = 32_000
"""The most steps that RE2 may need for a name of 249 characters. Comparing two characters takes one or two steps.

This is enough for more than 1,000 names, and for about 60 parts such as `a` and `[a-z]` after a repetition.
"""

_VALID_TOPIC: Final = re.compile(f"[a-zA-Z0-9._-]{{1,{LONGEST_NAME}}}")


class TopicFilter:
    """A white or black list that can be evaluated."""

    def __init__(self, expression: str) -> None:
        """Raise an `ExpressionError` if the expression cannot be evaluated."""
        regex = checked(expression)
        flags = FLAGS.match(regex)
        self._fold = flags is not None and "i" in flags[0]
        choices = list(choices_of(parse(regex[flags.end() :] if flags else regex)))
        _check_steps(choices)
        self._names, self._starts, self._globs = _literals(
            [self._folded(part) for part in choice.literals] for choice in choices if choice.shape is MatchShape.LITERAL
        )
        programs = _Programs(fold=self._fold)
        whole, start, any_ = (
            programs.compile_all([choice.text for choice in choices if choice.shape is shape], fast=fast)
            for shape, fast in ((MatchShape.WHOLE, True), (MatchShape.START, True), (MatchShape.ANY, False))
        )
        self._tests = [program.fullmatch for program in (*whole, *any_)] + [program.match for program in start]
        self._guarded = [
            (
                programs.condition(choice.text),
                [(programs.condition(each.text), each.holds) for each in choice.conditions],
            )
            for choice in choices
            if choice.shape is MatchShape.GUARDED
        ]

    def matches(self, topic: str) -> bool:
        """Return the result of `topic.matches(expression)` in Java."""
        if not _VALID_TOPIC.fullmatch(topic):
            return False
        return self._matches_literals(self._folded(topic)) or self._matches_programs(topic.encode())

    def _matches_literals(self, name: str) -> bool:
        return (
            name in self._names
            or any(name[:length] in starts for length, starts in self._starts.items())
            or any(_matches_glob(glob, name) for glob in self._globs)
        )

    def _matches_programs(self, name: bytes) -> bool:
        return any(test(name) is not None for test in self._tests) or any(
            _matches(pattern, name) and all(_matches(condition, name) is holds for condition, holds in conditions)
            for pattern, conditions in self._guarded
        )

    def _folded(self, name: str) -> str:
        return name.lower() if self._fold else name


def topic_filter(expression: str) -> TopicFilter:
    """Return the filter of a white or black list. Filters are cached."""
    found = (_cached_short if len(expression) <= _SHORT_LENGTH else _cached_long)(expression)
    if isinstance(found, ExpressionError):
        raise type(found)(*found.args)
    return found


def _filter_or_error(expression: str) -> TopicFilter | ExpressionError:
    try:
        return TopicFilter(expression)
    except ExpressionError as error:
        return type(error)(*error.args)  # without the traceback and all objects in it


_SHORT_LENGTH: Final = 1024
_cached_short = lru_cache(maxsize=512)(_filter_or_error)
_cached_long = lru_cache(maxsize=32)(_filter_or_error)


def is_topic_of_kafka(name: str) -> bool:
    """True if Kafka allows the topic name."""
    return _VALID_TOPIC.fullmatch(name) is not None


def _matches(program: Any, name: bytes) -> bool:
    return program is None or program.fullmatch(name) is not None


_Prefixes: TypeAlias = dict[int, set[str]]


def _literals(found: Iterable[Sequence[str]]) -> tuple[set[str], _Prefixes, list[Sequence[str]]]:
    """Sort literals into names, prefixes of names by length, and other literals with `.*` between them."""
    names: set[str] = set()
    starts: _Prefixes = {}
    globs = []
    for parts in found:
        match parts:
            case [name]:
                names.add(name)
            case [start, ""]:
                starts.setdefault(len(start), set()).add(start)
            case _:
                globs.append(parts)
    return names, starts, globs


def _matches_glob(parts: Sequence[str], name: str) -> bool:
    """True if the name consists of these parts, with any text between them."""
    start, *middle, end = parts
    if not (name.startswith(start) and name.endswith(end)):
        return False
    at = len(start)
    for part in middle:
        at = name.find(part, at) + len(part)
        if at < len(part):
            return False
    return at <= len(name) - len(end)


class _Programs:
    """RE2's programs for the parts of one expression. Equal parts share a program."""

    def __init__(self, *, fold: bool) -> None:
        self._flags = "(?i)" if fold else ""
        self._made: dict[str, Any] = {ANYTHING: None}

    def condition(self, text: str) -> Any:
        """Return the program of a condition, or of the pattern that it belongs to; None if all names match."""
        if text not in self._made:
            self._made[text] = self._compile(text, _LITTLE_MEMORY)
        return self._made[text]

    def compile_all(self, texts: Sequence[str], *, fast: bool) -> list[Any]:
        """Return one program for all these patterns; an empty list without patterns."""
        text = "|".join(texts)
        return [self._compile(text, _enough_memory(text) if fast else _LITTLE_MEMORY)] if texts else []

    def _compile(self, text: str, memory: Sequence[Any]) -> Any:
        *smaller, largest = memory
        pattern = f"{self._flags}(?:{text})".encode()
        for options in smaller:
            with suppress(re2.error):
                return re2.compile(pattern, options)
        try:
            return re2.compile(pattern, largest)
        except re2.error as error:
            raise UnevaluableExpressionError("RE2 does not accept it") from error


def _options(memory: int) -> Any:
    options = re2.Options()
    options.max_mem = memory
    options.log_errors = False
    options.never_capture = True
    options.encoding = re2.Options.Encoding.LATIN1  # the names are ASCII; so `.` is one instruction
    return options


_LITTLE_MEMORY: Final = [_options(2**exponent) for exponent in range(12, 20)]
"""Options with increasing memory. The smallest that RE2 accepts leaves none for an automaton built during a match.

The automaton of a hostile expression is large: building its states takes several times as long as matching without.
"""

_MUCH_MEMORY: Final = {exponent: _options(2**exponent) for exponent in range(17, 22)}
_MEMORY_PER_CHARACTER: Final = 64


def _enough_memory(text: str) -> list[Any]:
    """Return options with memory for the program of a long list and for an automaton, which pays off for long lists."""
    needed = (_MEMORY_PER_CHARACTER * len(text)).bit_length()
    return [options for exponent, options in _MUCH_MEMORY.items() if exponent >= min(needed, max(_MUCH_MEMORY))]


def _check_steps(choices: Iterable[Choice]) -> None:
    steps = sum(choice.steps + sum(condition.steps for condition in choice.conditions) for choice in choices)
    if steps > MOST_STEPS:
        raise UnevaluableExpressionError(
            f"matching one name may take {steps} steps, and at most {MOST_STEPS} are allowed: use a simpler expression"
        )
