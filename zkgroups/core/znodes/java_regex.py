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
    ((?! ).)*                    as a whole alternative: names that do not contain something

RE2 supports neither lookaheads nor lookbehinds. But at the start or the end of an alternative they are conditions on
the whole name, so RE2 can check them one by one. All other syntax is not evaluated, because RE2 may reject it or give
it another meaning: back references, possessive and atomic groups, `\p`, `\Q`, `\R`, `\h`, octal escapes, other flags,
sets in sets, characters outside ASCII. Expressions that are too long, or that may take too long, are not evaluated
either. There is no time limit, because all members of a group must get the same result, also on busy machines.
Instead, the worst number of steps for one name is computed from the expression; see `_steps`.

Parts that consist of literal characters and `.*` need no regular expression, and long lists of them are cheap.

Only valid names of Kafka topics are matched. So line terminators and case outside ASCII do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Final, TypeAlias

import re2

LONGEST: Final = 32_768
"""In characters: enough for hundreds of topic names. Longer expressions are not evaluated."""

MOST_STEPS: Final = 32_000
"""How much RE2 may have to do for a name of 249 characters; to compare two characters is one step, or two.

That is enough for more than 1,000 names, and for about 60 parts such as `a` and `[a-z]` after a repetition.
"""

_LONGEST_NAME: Final = 249
_STEPS_OF_A_CALL: Final = 100

_DEEPEST: Final = 50
_MOST_REPEATS: Final = 2**31 - 1
_KAFKAS: Final = re.compile(f"[a-zA-Z0-9._-]{{1,{_LONGEST_NAME}}}")
_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))


class ExpressionError(ValueError):
    """An expression that cannot be evaluated."""


class BrokenExpressionError(ExpressionError):
    """Java refuses the expression."""


class UnevaluableExpressionError(ExpressionError):
    """Java may accept the expression, but only Java can evaluate it."""


def topic_expression(expression: str) -> str:
    """The regular expression that the Scala client makes of a white or black list: commas are alternatives.

    >>> topic_expression("orders, refunds.*")
    'orders|refunds.*'
    """
    return expression.strip(_JAVA_BLANKS).replace(",", "|").replace(" ", "").strip("\"'")


class TopicFilter:
    """A white or black list that can be evaluated."""

    def __init__(self, expression: str) -> None:
        """Raise an ExpressionError for any other."""
        regex = _checked(expression)
        flags = _FLAGS.match(regex)
        self._fold = flags is not None and "i" in flags[0]
        choices = list(_choices(_parse(regex[flags.end() :] if flags else regex)))
        _check_steps(choices)
        self._names, self._starts, self._globs = _literals(
            [self._folded(part) for part in choice.literals] for choice in choices if choice.shape is _Shape.LITERAL
        )
        programs = _Programs(fold=self._fold)
        whole, start, any_ = (
            programs.compile_all([choice.text for choice in choices if choice.shape is shape], fast=fast)
            for shape, fast in ((_Shape.WHOLE, True), (_Shape.START, True), (_Shape.ANY, False))
        )
        self._tests = [program.fullmatch for program in (*whole, *any_)] + [program.match for program in start]
        self._guarded = [
            (
                programs.condition(choice.text),
                [(programs.condition(each.text), each.holds) for each in choice.conditions],
            )
            for choice in choices
            if choice.shape is _Shape.GUARDED
        ]

    def matches(self, topic: str) -> bool:
        """Return what `topic.matches(expression)` is in Java."""
        if not _KAFKAS.fullmatch(topic):
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
    """The filter for a white or black list; it is made once for many uses."""
    found = (_of_short if len(expression) <= _SHORT else _of_long)(expression)
    if isinstance(found, ExpressionError):
        raise type(found)(*found.args)
    return found


def _filter_or_error(expression: str) -> TopicFilter | ExpressionError:
    try:
        return TopicFilter(expression)
    except ExpressionError as error:
        return type(error)(*error.args)  # without the traceback and all objects in it


_SHORT: Final = 1024
_of_short = lru_cache(maxsize=512)(_filter_or_error)
_of_long = lru_cache(maxsize=32)(_filter_or_error)


def is_topic_of_kafka(name: str) -> bool:
    """Return whether Kafka allows the name for a topic."""
    return _KAFKAS.fullmatch(name) is not None


def _matches(program: Any, name: bytes) -> bool:
    return program is None or program.fullmatch(name) is not None


_Starts: TypeAlias = dict[int, set[str]]


def _literals(found: Iterable[Sequence[str]]) -> tuple[set[str], _Starts, list[Sequence[str]]]:
    """Names, the starts of names by their length, and all other literals with `.*` between them."""
    names: set[str] = set()
    starts: _Starts = {}
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
    """Return whether the name consists of these parts, with anything between each two."""
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
    """RE2's programs for the parts of one expression, each made once."""

    def __init__(self, *, fold: bool) -> None:
        self._flags = "(?i)" if fold else ""
        self._made: dict[str, Any] = {_ANYTHING: None}

    def condition(self, text: str) -> Any:
        """The program for a condition, or for the pattern that the condition belongs to; None if all names match."""
        if text not in self._made:
            self._made[text] = self._compile(text, _LITTLE)
        return self._made[text]

    def compile_all(self, texts: Sequence[str], *, fast: bool) -> list[Any]:
        """One program for all these patterns, or an empty list without patterns."""
        text = "|".join(texts)
        return [self._compile(text, _enough(text) if fast else _LITTLE)] if texts else []

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


_LITTLE: Final = [_options(2**exponent) for exponent in range(12, 20)]
"""The least memory with which RE2 accepts a program. It then has none for an automaton that it makes while it matches.

The automaton of an unfriendly expression is large: to make its states takes several times as long as to match without.
"""

_MUCH: Final = {exponent: _options(2**exponent) for exponent in range(17, 22)}
_MEMORY_PER_CHARACTER: Final = 64


def _enough(text: str) -> list[Any]:
    """Memory for the program of a long list and for an automaton: the longer the list, the more it saves."""
    needed = (_MEMORY_PER_CHARACTER * len(text)).bit_length()
    return [options for exponent, options in _MUCH.items() if exponent >= min(needed, max(_MUCH))]


# Parsing

_MEMBER: Final = r"(?:(?!--|&&|\|\||~~)[^\\\[\]]|\\(?:[dDwWsS]|[^a-zA-Z0-9]))"

_FLAGS: Final = re.compile(r"\(\?[ims]+\)")

_TOKEN: Final = re.compile(
    rf"""
    (?P<literal>[^\\\[(){{*+?|^$.]) | \\(?P<escaped>[^a-zA-Z0-9])
    | (?P<any>\.) | (?P<kind>\\[dDwWsS]) | (?P<bound>[$]|\\[bB]) | (?P<start>\^)
    | (?P<set>\[\^?+{_MEMBER}++\])
    | (?P<repeat>[*+?]|\{{[0-9]+\}}) (?P<manner>[?+]?)
    | (?P<open>\((?:\?(?:[:=!]|<[=!])|(?!\?)))
    | (?P<bar>\|) | (?P<close>\))
    | (?P<broken>\\\Z|\{{|\[\^?+{_MEMBER}*+\Z)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_SET_MEMBER: Final = re.compile(r"\\(?P<kind>[dDwWsS])|\\?(?P<start>.)(?:-(?P<end>\\?.))?", re.DOTALL)


class _Kind(Enum):
    NAME = auto()
    """A literal character."""
    PART = auto()
    START = auto()
    END = auto()
    BOUND = auto()
    GROUP = auto()
    REPEATED = auto()
    AHEAD = auto()
    BEHIND = auto()


@dataclass(frozen=True, slots=True)
class _Item:
    """A part of an alternative, and the text of it for RE2."""

    kind: _Kind
    text: str
    inside: _Alternatives = ()
    plain: bool = True
    """It contains no lookahead and no lookbehind."""
    single: bool = True
    """It contains no repetition. In a lookbehind, Java's releases accept different ones."""
    holds: bool = True
    """Of lookaheads and lookbehinds: whether it must match, or must not."""
    literal: str = ""
    times: int = 1
    """Of a repetition: how often RE2 has its text in the program."""


_Alternatives: TypeAlias = Sequence[Sequence[_Item]]


def _checked(expression: str) -> str:
    if len(expression) > LONGEST:
        raise UnevaluableExpressionError(f"it has {len(expression)} characters, and at most {LONGEST} are evaluated")
    if not expression.isascii():
        raise UnevaluableExpressionError("it has characters outside ASCII")
    return topic_expression(expression)


def _parse(regex: str) -> _Alternatives:
    """The alternatives of the whole expression."""
    openings: list[str] = []
    levels: list[list[list[_Item]]] = [[[]]]
    for token in _TOKEN.finditer(regex):
        items = levels[-1][-1]
        match token.lastgroup:
            case "open":
                if len(levels) > _DEEPEST:
                    raise UnevaluableExpressionError(f"its groups are nested more than {_DEEPEST} deep")
                openings.append(token["open"])
                levels.append([[]])
            case "close":
                if not openings:
                    raise BrokenExpressionError("unmatched )")
                closed = levels.pop()
                levels[-1][-1].append(_group(openings.pop(), closed))
            case "bar":
                levels[-1].append([])
            case "manner":
                _repeat(items, token["repeat"], token["manner"])
            case _:
                items.append(_item(token))
    if openings:
        raise BrokenExpressionError("unclosed group")
    return levels[0]


def _item(token: re.Match[str]) -> _Item:
    text = token[0]
    match token.lastgroup:
        case "literal" | "escaped":
            return _literal(text[-1])
        case "any":
            return _ANY_CHARACTER
        case "kind":
            return _Item(_Kind.PART, text)
        case "bound":
            return _Item(_Kind.END if text == "$" else _Kind.BOUND, text)
        case "start":
            return _Item(_Kind.START, text)
        case "set":
            return _Item(_Kind.PART, _set(text))
        case "broken":
            raise BrokenExpressionError(f"{text!r:.20} is incomplete")
    begins = token.string[token.start() : token.start() + 8]
    raise UnevaluableExpressionError(f"it has a part that only Java knows: {begins!r}")


@lru_cache(maxsize=128)  # of ASCII
def _literal(character: str) -> _Item:
    return _Item(_Kind.NAME, _quoted(character), literal=character)


def _quoted(character: str) -> str:
    return character if character.isalnum() else f"\\x{ord(character):02x}"


def _set(text: str) -> str:
    """The same set for RE2."""
    negated = text[1] == "^"
    members = _SET_MEMBER.finditer(text[2 if negated else 1 : -1])
    return f"[{'^' * negated}{''.join(map(_member, members))}]"


def _member(member: re.Match[str]) -> str:
    start, end = member["start"], member["end"]
    if member["kind"]:
        return member[0]  # it cannot start a range: a hyphen after it is a member
    if end is None:
        return _quoted(start)
    if (end[0] == "\\" and end[-1].isalpha()) or end[-1] < start:
        raise BrokenExpressionError(f"{member[0]!r} is not a range")
    return f"{_quoted(start)}-{_quoted(end[-1])}"


def _repeat(items: list[_Item], repeat: str, manner: str) -> None:
    """Repeat the last item."""
    times = _times(repeat)
    if times is None and (not items or items[-1].kind is _Kind.REPEATED):
        raise BrokenExpressionError(f"{repeat} has nothing to repeat")
    if manner == "+" or not items or items[-1].kind not in (_Kind.NAME, _Kind.PART, _Kind.GROUP):
        raise UnevaluableExpressionError(f"it has a repetition that only Java knows: {repeat}{manner}")
    if times is not None and times > 1 and _has_bound(items[-1]):
        # Java ends the repetition with the first time that consumes nothing.
        raise UnevaluableExpressionError(f"it repeats a boundary {times} times")
    last = items.pop()
    text = last.text + (repeat if times is None else f"{{{times}}}")  # to RE2, `{02}` is literal text
    items.append(replace(last, kind=_Kind.REPEATED, text=text, single=False, times=1 if times is None else times))


def _has_bound(item: _Item) -> bool:
    return item.kind in (_Kind.START, _Kind.END, _Kind.BOUND) or any(
        _has_bound(each) for items in item.inside for each in items
    )


def _times(repeat: str) -> int | None:
    """The number in `{n}`; None if the repetition has no number."""
    if not repeat.startswith("{"):
        return None
    times = int(repeat[1:-1].lstrip("0")[:12] or 0)
    if times > _MOST_REPEATS:
        raise BrokenExpressionError(f"{repeat:.20} is too large a number")
    return times


def _group(opening: str, inside: _Alternatives) -> _Item:
    text = _text(inside)
    items = [item for items in inside for item in items]
    plain, single = all(item.plain for item in items), all(item.single for item in items)
    if opening in ("(", "(?:"):
        return _Item(_Kind.GROUP, f"(?:{text})", inside, plain, single)
    if not plain:
        raise UnevaluableExpressionError("it has a lookahead or lookbehind inside another")
    behind = "<" in opening
    if behind and not single:
        raise UnevaluableExpressionError("it has a repetition in a lookbehind")
    kind = _Kind.BEHIND if behind else _Kind.AHEAD
    return _Item(kind, f"(?:{text})", inside, plain=False, holds=opening[-1] == "=")


def _text(alternatives: _Alternatives) -> str:
    return "|".join("".join(item.text for item in items) for items in alternatives)


# Conditions


class _Shape(Enum):
    """What is needed to match an alternative."""

    LITERAL = auto()
    """Literal characters and `.*`."""
    WHOLE = auto()
    """Nothing is repeated."""
    START = auto()
    """The text is the start of the name; nothing in it is repeated, and `.*` follows."""
    ANY = auto()
    GUARDED = auto()
    """There are conditions."""


@dataclass(frozen=True, slots=True)
class _Condition:
    text: str
    holds: bool
    steps: int


@dataclass(frozen=True, slots=True)
class _Choice:
    """One way to match: the name matches the text, and each condition matches it or does not."""

    text: str
    shape: _Shape
    steps: int
    steps_of_regex: int
    """The steps if all of it is matched as a regular expression."""
    literals: Sequence[str] = ()
    """The text between each two `.*`."""
    conditions: tuple[_Condition, ...] = ()


_ANY: Final = "(?s:.)"
_ANYTHING: Final = f"{_ANY}*"
_ANY_CHARACTER: Final = _Item(_Kind.PART, _ANY)
_REST: Final = _Item(_Kind.REPEATED, _ANYTHING)


def _choices(alternatives: _Alternatives) -> Iterator[_Choice]:
    for items in alternatives:
        start, end = _edges(items)
        around = (
            *(_condition(item, behind=False) for item in items[:start] if item.kind is _Kind.AHEAD),
            *(_condition(item, behind=True) for item in items[end:] if item.kind is _Kind.BEHIND),
        )
        for choice in _between(items[start:end]):
            yield _guarded(choice, around)


def _condition(item: _Item, *, behind: bool) -> _Condition:
    text = _ANYTHING + item.text if behind else item.text + _ANYTHING
    _, steps = _steps(item.inside, _EVERYWHERE if behind else _AT_START)
    return _Condition(text, item.holds, _STEPS_OF_A_CALL + _LONGEST_NAME + steps)


def _guarded(choice: _Choice, conditions: tuple[_Condition, ...]) -> _Choice:
    """The choice with more conditions."""
    if not conditions:
        return choice
    conditions = (*conditions, *choice.conditions)
    if choice.shape is _Shape.GUARDED:
        return replace(choice, conditions=conditions)
    text = f"{choice.text}{_ANYTHING}" if choice.shape is _Shape.START else choice.text
    steps = _STEPS_OF_A_CALL + choice.steps_of_regex
    return replace(choice, text=text, shape=_Shape.GUARDED, steps=steps, conditions=conditions)


def _edges(items: Sequence[_Item]) -> tuple[int, int]:
    """Where the conditions at the start of an alternative end, and where those at its end begin."""
    start, end = 0, len(items)
    while start < end and items[start].kind in (_Kind.START, _Kind.AHEAD):
        start += 1
    while end > start and items[end - 1].kind in (_Kind.END, _Kind.BEHIND):
        end -= 1
    return start, end


def _between(items: Sequence[_Item]) -> Iterator[_Choice]:
    if all(item.plain for item in items):
        yield _plain(items)
    elif len(items) == 1 and items[0].kind is _Kind.GROUP:
        yield from _choices(items[0].inside)
    elif len(items) == 1 and (absent := _absent(items[0])) is not None:
        _, steps = _steps(absent.inside, _EVERYWHERE)
        text = f"{_ANYTHING}{absent.text}{_ANYTHING}"
        yield _guarded(
            _plain([_REST]),
            (_Condition(text, holds=False, steps=_STEPS_OF_A_CALL + 2 * _LONGEST_NAME + steps),),
        )
    else:
        raise UnevaluableExpressionError("it has a lookahead that is not at the start, or a lookbehind not at the end")


def _plain(items: Sequence[_Item]) -> _Choice:
    text, regex = _text([items]), _steps_of_alternative(items)
    if items and all(item.kind is _Kind.NAME or item.text == _ANYTHING for item in items):
        literals = _literals_between(items)
        return _Choice(text, _Shape.LITERAL, _steps_of_glob(literals), regex, literals)
    if all(item.single for item in items):
        return _Choice(text, _Shape.WHOLE, regex, regex)
    *start, last = items
    if last.text == _ANYTHING and all(item.single for item in start):
        return _Choice(_text([start]), _Shape.START, _steps_of_alternative(start), regex)
    return _Choice(text, _Shape.ANY, regex, regex)


def _literals_between(items: Sequence[_Item]) -> tuple[str, ...]:
    return tuple("".join(item.literal or "," for item in items).split(","))


def _absent(item: _Item) -> _Item | None:
    """The lookahead of `((?! ).)*`: it must match nowhere in the name."""
    if item.kind is not _Kind.REPEATED or not item.text.endswith(")*") or len(item.inside) != 1:
        return None
    match item.inside[0]:
        case [_Item(kind=_Kind.AHEAD, holds=False, text=text) as ahead, _Item(text="(?s:.)")]:
            # With these it may match the empty string at the end of the name, where no character is left to consume.
            return None if any(part in text for part in ("$", r"\b", r"\B")) else ahead
    return None


# Steps


def _steps_of_glob(literals: Sequence[str]) -> int:
    """0 for a name or the start of a name: the filter looks up all of them together."""
    if len(literals) == 1 or (len(literals) == 2 and not literals[1]):
        return 0
    return sum(_LONGEST_NAME * (1 + len(part) // _CHARACTERS) for part in literals[1:])


_CHARACTERS: Final = 16
"""To search for so many literal characters takes no longer than to compare one part of a regular expression."""

_AT_START: Final = 1
_EVERYWHERE: Final = (1 << _LONGEST_NAME + 1) - 1


def _steps_of_alternative(items: Sequence[_Item]) -> int:
    r"""The steps for one alternative, from the start of the name.

    `[a-z]+\.` leaves one place only, because `.` does not belong to the set. In what follows, no place is searched for.
    """
    places, steps = _AT_START, 0
    for item, following in zip_longest(items, items[1:]):
        if places & (places - 1) == 0 and _ends_at_one_place(item, following):
            places, more = places << item.text.endswith("+"), _LONGEST_NAME
        else:
            places, more = _steps_of(item, places)
        steps += more
    return steps


def _ends_at_one_place(item: _Item, following: _Item | None) -> bool:
    """Whether it is a repetition such as `[a-z]+`, and nothing in it can begin the following item."""
    if item.kind is not _Kind.REPEATED or item.inside or item.text[-1] not in "*+":
        return False
    if following is None:
        return True
    repeated = following.kind is _Kind.REPEATED and not following.inside and following.text.endswith("+")
    if not repeated and following.kind not in (_Kind.NAME, _Kind.PART):
        return False
    begins = following.text[:-1] if repeated else following.text
    return _characters(item.text[:-1]).isdisjoint(_characters(begins))


@lru_cache(maxsize=256)
def _characters(text: str) -> frozenset[str]:
    """Which characters of names match this, in either case."""
    return frozenset(filter(re.compile(text, re.ASCII | re.IGNORECASE).fullmatch, map(chr, range(0x21, 0x7F))))


def _steps(alternatives: _Alternatives, places: int) -> tuple[int, int]:
    """The places in a name where a match of these alternatives may end, and how many comparisons it may take.

    The alternatives may match from each of the places. A place is a bit: the first is the start of the name.
    """
    ends, steps = 0, (len(alternatives) - 1) * _count(places)
    for items in alternatives:
        reached = places
        for item in items:
            reached, more = _steps_of(item, reached)
            steps += more
        ends |= reached
    return ends, steps


def _steps_of(item: _Item, places: int) -> tuple[int, int]:
    match item.kind:
        case _Kind.NAME | _Kind.PART:
            return places << 1 & _EVERYWHERE, _count(places)
        case _Kind.GROUP:
            return _steps(item.inside, places)
        case _Kind.REPEATED:
            return _steps_of_repetition(item, places)
    return places, 1


def _steps_of_repetition(item: _Item, places: int) -> tuple[int, int]:
    if item.text.endswith("}") and not item.inside:
        reached = [places << number & _EVERYWHERE for number in range(min(item.times, _LONGEST_NAME) + 1)]
        return reached[-1], item.times + sum(map(_count, reached))
    onwards = _EVERYWHERE & -(places & -places)
    steps = _steps(item.inside, onwards)[1] if item.inside else 0
    return onwards, item.times * (steps + 2 * _count(onwards))


def _count(places: int) -> int:
    """Also what is never reached is a part of RE2's program. If there are several places, RE2 has to remember them."""
    return 2 * places.bit_count() if places & (places - 1) else 1


def _check_steps(choices: Iterable[_Choice]) -> None:
    steps = sum(choice.steps + sum(condition.steps for condition in choice.conditions) for choice in choices)
    if steps > MOST_STEPS:
        raise UnevaluableExpressionError(
            f"to match one name may take {steps} steps, and at most {MOST_STEPS} are allowed: "
            "write it with fewer parts after repetitions"
        )
