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
sets in sets, characters outside ASCII. Expressions that are too long, or for which RE2 needs a large program, are not
evaluated either. There is no time limit, because all members of a group must get the same result, also on busy
machines.

Only valid names of Kafka topics are matched. So line terminators and case outside ASCII do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final, TypeAlias

import re2

LONGEST: Final = 32_768
"""In characters: enough for hundreds of topic names. Longer expressions are not evaluated."""

LARGEST_PROGRAM: Final = 1_000
"""In RE2's instructions. RE2 may have to execute each of them for each character of a name."""

LARGEST_LIST: Final = 16_384
"""In RE2's instructions, for all alternatives such as `orders.v2` or `orders.*`: RE2 executes each once per name."""

_DEEPEST: Final = 50
_MOST_REPEATS: Final = 2**31 - 1
_MEMORY: Final = 2**21
_CHARACTERS: Final = 8
_KAFKAS: Final = re.compile("[a-zA-Z0-9._-]{1,249}")
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
        plain = [choice for choice in choices if not choice.conditions]
        self._names = frozenset(self._folded(choice.text) for choice in plain if choice.shape is _Shape.NAME)
        programs = _Programs(fold=self._fold)
        whole, start, any_ = (
            programs.compile_all((choice.text for choice in plain if choice.shape is shape), limit)
            for shape, limit in _LARGEST.items()
        )
        self._tests = [program.fullmatch for program in (*whole, *any_)] + [program.match for program in start]
        self._guarded = [
            (programs.compile(choice.pattern), [(programs.compile(text), holds) for text, holds in choice.conditions])
            for choice in choices
            if choice.conditions
        ]

    def matches(self, topic: str) -> bool:
        """Return what `topic.matches(expression)` is in Java."""
        if not _KAFKAS.fullmatch(topic):
            return False
        name = topic.encode()
        if self._folded(topic) in self._names or any(test(name) is not None for test in self._tests):
            return True
        return any(
            _matches(pattern, name) and all(_matches(condition, name) is holds for condition, holds in conditions)
            for pattern, conditions in self._guarded
        )

    def _folded(self, name: str) -> str:
        return name.lower() if self._fold else name


@lru_cache(maxsize=64)
def topic_filter(expression: str) -> TopicFilter:
    """The filter for a white or black list; it is made once for many uses."""
    return TopicFilter(expression)


def is_topic_of_kafka(name: str) -> bool:
    """Return whether Kafka allows the name for a topic."""
    return _KAFKAS.fullmatch(name) is not None


def _matches(program: Any, name: bytes) -> bool:
    return program.fullmatch(name) is not None


class _Programs:
    """RE2's programs for the parts of one expression, each made once, and together not too large."""

    def __init__(self, *, fold: bool) -> None:
        self._flags = "(?i)" if fold else ""
        self._made: dict[str, Any] = {}
        self._size = 0

    def compile(self, text: str) -> Any:
        """The program for a condition, or for the pattern that the condition belongs to."""
        if text not in self._made:
            self._made[text] = self._compile(text, LARGEST_PROGRAM - self._size)
            self._size += self._made[text].programsize
        return self._made[text]

    def compile_all(self, texts: Iterable[str], limit: int) -> list[Any]:
        """One program for all these patterns; None if there are none."""
        listed = list(texts)
        return [self._compile("|".join(listed), limit)] if listed else []

    def _compile(self, text: str, limit: int) -> Any:
        if len(text) <= _CHARACTERS * limit:  # otherwise compiling takes too long
            try:
                made = re2.compile(f"{self._flags}(?:{text})".encode(), _OPTIONS)
            except re2.error as error:
                raise UnevaluableExpressionError("RE2 does not accept it") from error
            if made.programsize <= limit:
                return made
        raise UnevaluableExpressionError("it needs too large a program")


def _options() -> Any:
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    options.never_capture = True
    options.encoding = re2.Options.Encoding.LATIN1  # the names are ASCII; so `.` is one instruction
    return options


_OPTIONS: Final = _options()


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

_SET_MEMBER: Final = re.compile(r"\\?(?P<start>.)(?:-(?P<end>\\?.))?", re.DOTALL)


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
            return _Item(_Kind.NAME, _quoted(text[-1]), literal=text[-1])
        case "any":
            return _Item(_Kind.PART, _ANY)
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


def _quoted(character: str) -> str:
    return character if character.isalnum() else f"\\x{ord(character):02x}"


def _set(text: str) -> str:
    """The same set for RE2."""
    negated = text[1] == "^"
    members = _SET_MEMBER.finditer(text[2 if negated else 1 : -1])
    return f"[{'^' * negated}{''.join(map(_member, members))}]"


def _member(member: re.Match[str]) -> str:
    start, end = member["start"], member["end"]
    if member[0][0] == "\\" and start.isalpha():
        return f"\\{start}" + ("" if end is None else f"\\x2d{_quoted(end[-1])}")
    if end is None:
        return _quoted(start)
    if (end[0] == "\\" and end[-1].isalpha()) or end[-1] < start:
        raise BrokenExpressionError(f"{member[0]!r} is not a range")
    return f"{_quoted(start)}-{_quoted(end[-1])}"


def _repeat(items: list[_Item], repeat: str, manner: str) -> None:
    """Repeat the last item."""
    counted = repeat.startswith("{")
    if not counted and (not items or items[-1].kind is _Kind.REPEATED):
        raise BrokenExpressionError(f"{repeat} has nothing to repeat")
    if counted and int(repeat[1:-1].lstrip("0")[:12] or 0) > _MOST_REPEATS:
        raise BrokenExpressionError(f"{repeat:.20} is too large a number")
    if manner == "+" or not items or items[-1].kind not in (_Kind.NAME, _Kind.PART, _Kind.GROUP):
        raise UnevaluableExpressionError(f"it has a repetition that only Java knows: {repeat}{manner}")
    last = items.pop()
    items.append(replace(last, kind=_Kind.REPEATED, text=last.text + repeat, single=False))


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
    return _Item(kind, f"(?:{text})", plain=False, holds=opening[-1] == "=")


def _text(alternatives: _Alternatives) -> str:
    return "|".join("".join(item.text for item in items) for items in alternatives)


# Conditions


class _Shape(Enum):
    """What is needed to match an alternative."""

    NAME = auto()
    """Nothing but literal characters."""
    WHOLE = auto()
    """Nothing is repeated."""
    START = auto()
    """The text is the start of the name; `.*` follows."""
    ANY = auto()


_LARGEST: Final = {_Shape.WHOLE: LARGEST_LIST, _Shape.START: LARGEST_LIST, _Shape.ANY: LARGEST_PROGRAM}


@dataclass(frozen=True, slots=True)
class _Choice:
    """One way to match: the name matches the pattern, and each condition matches it or does not."""

    pattern: str
    shape: _Shape = _Shape.ANY
    text: str = ""
    """The pattern, or only the part of it that the shape needs."""
    conditions: tuple[tuple[str, bool], ...] = ()


_ANY: Final = "(?s:.)"
_ANYTHING: Final = f"{_ANY}*"


def _choices(alternatives: _Alternatives) -> Iterator[_Choice]:
    for items in alternatives:
        start, end = _edges(items)
        ahead = [(item.text + _ANYTHING, item.holds) for item in items[:start] if item.kind is _Kind.AHEAD]
        behind = [(_ANYTHING + item.text, item.holds) for item in items[end:] if item.kind is _Kind.BEHIND]
        for choice in _between(items[start:end]):
            yield replace(choice, conditions=(*ahead, *behind, *choice.conditions))


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
        yield _Choice(_ANYTHING, text=_ANYTHING, conditions=((f"{_ANYTHING}{absent}{_ANYTHING}", False),))
    else:
        raise UnevaluableExpressionError("it has a lookahead that is not at the start, or a lookbehind not at the end")


def _plain(items: Sequence[_Item]) -> _Choice:
    pattern = _text([items])
    if items and all(item.kind is _Kind.NAME for item in items):
        return _Choice(pattern, _Shape.NAME, "".join(item.literal for item in items))
    if all(item.single for item in items):
        return _Choice(pattern, _Shape.WHOLE, pattern)
    if items[-1].text == _ANYTHING and all(item.single for item in items[:-1]):
        return _Choice(pattern, _Shape.START, pattern.removesuffix(_ANYTHING))
    return _Choice(pattern, _Shape.ANY, pattern)


def _absent(item: _Item) -> str | None:
    """What must not occur in the name, for `((?! ).)*`."""
    if item.kind is not _Kind.REPEATED or not item.text.endswith(")*") or len(item.inside) != 1:
        return None
    match item.inside[0]:
        case [_Item(kind=_Kind.AHEAD, holds=False, text=text), _Item(text="(?s:.)")]:
            # With these it may match the empty string at the end of the name, where no character is left to consume.
            return None if any(part in text for part in ("$", r"\b", r"\B")) else text
    return None
