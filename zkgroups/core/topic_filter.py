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
Instead, the size of RE2's programs is limited: each character of a name takes at most as many steps. Names and starts
of names (`orders.*`) may be long lists, because their characters are compared once.

Only valid names of Kafka topics are matched. So line terminators and case outside ASCII do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import re2

from .java_regex import (
    ANYTHING,
    FLAGS,
    ExpressionError,
    UnevaluableExpressionError,
    checked,
    choices_of,
    parse,
)

MOST_INSTRUCTIONS: Final = 4_096
"""The most instructions in RE2's programs for the slow parts of an expression. For each character of a name, RE2 takes
some nanoseconds for each instruction, and mostly much less."""

_INSTRUCTIONS_OF_A_CALL: Final = 50
"""Calling RE2 takes as long as this many instructions."""

_LONGEST_SLOW: Final = 4 * MOST_INSTRUCTIONS
"""In characters. Compiling takes longer the longer a text is."""

_TOO_SLOW: Final = "matching a name may take too many steps: use a simpler expression"

_VALID_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")

_Test = Callable[[bytes], object]


class TopicFilter:
    """A white or black list that can be evaluated."""

    def __init__(self, expression: str) -> None:
        """Raise an `ExpressionError` if the expression cannot be evaluated."""
        regex = checked(expression)
        flags = FLAGS.match(regex)
        self._fold = flags is not None and "i" in flags[0]
        choices = list(choices_of(parse(regex[flags.end() :] if flags else regex)))
        self._names: set[str] = set()
        self._starts: dict[int, set[str]] = {}
        programs = _Programs(fold=self._fold)
        quick_names, quick_starts, slow = (dict[str, None](), dict[str, None](), dict[str, None]())
        self._guarded: list[tuple[_Test, list[tuple[_Test, bool]]]] = []
        for choice in choices:
            if choice.conditions:
                conditions = [(programs.of(each.text), each.holds) for each in choice.conditions]
                self._guarded.append((programs.of(choice.text), conditions))
            elif choice.literal is not None and choice.is_start:
                self._starts.setdefault(len(choice.literal), set()).add(self._folded(choice.literal))
            elif choice.literal is not None:
                self._names.add(self._folded(choice.literal))
            elif not choice.is_quick:
                slow[choice.text] = None
            elif choice.is_start:
                quick_starts[choice.text.removesuffix(ANYTHING)] = None
            else:
                quick_names[choice.text] = None
        self._tests: list[_Test] = [programs.of("|".join(slow))] if slow else []
        self._tests += [programs.compiled("|".join(quick_names)).fullmatch] if quick_names else []
        self._tests += [programs.compiled("|".join(quick_starts)).match] if quick_starts else []

    def matches(self, topic: str) -> bool:
        """Return the result of `topic.matches(expression)` in Java."""
        if not _VALID_TOPIC.fullmatch(topic):
            return False
        folded, name = self._folded(topic), topic.encode()
        return (
            folded in self._names
            or any(folded[:length] in starts for length, starts in self._starts.items())
            or any(test(name) for test in self._tests)
            or any(
                test(name) and all(bool(condition(name)) is holds for condition, holds in conditions)
                for test, conditions in self._guarded
            )
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


class _Programs:
    """RE2's programs for the parts of one expression. Equal parts share a program."""

    def __init__(self, *, fold: bool) -> None:
        self._flags = "(?i)" if fold else ""
        self._left = MOST_INSTRUCTIONS
        self._tests: dict[str, _Test] = {ANYTHING: lambda _name: True}

    def of(self, text: str) -> _Test:
        """Return the test whether a whole name matches. Raise an error if the programs become too large."""
        if text not in self._tests:
            if len(text) > _LONGEST_SLOW:
                raise UnevaluableExpressionError(_TOO_SLOW)
            program = self.compiled(text)
            self._left -= program.programsize + _INSTRUCTIONS_OF_A_CALL
            if self._left < 0:
                raise UnevaluableExpressionError(_TOO_SLOW)
            self._tests[text] = program.fullmatch
        return self._tests[text]

    def compiled(self, text: str) -> Any:
        """Compile a text."""
        try:
            return re2.compile(f"{self._flags}(?:{text})".encode(), _OPTIONS)
        except re2.error as error:
            raise UnevaluableExpressionError("RE2 does not accept it") from error


_OPTIONS: Final = re2.Options()
_OPTIONS.max_mem = 2**20
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True
_OPTIONS.encoding = re2.Options.Encoding.LATIN1  # the names are ASCII; so `.` is one instruction
