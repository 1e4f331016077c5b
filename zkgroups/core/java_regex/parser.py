"""Parse a Java expression into items, each with its text for RE2. Syntax that RE2 reads differently is rejected."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from typing import Final, TypeAlias

from .errors import BrokenExpressionError, UnevaluableExpressionError

LONGEST: Final = 32_768
"""In characters: enough for hundreds of topic names. Longer expressions are not evaluated."""

_DEEPEST: Final = 50
_MOST_REPEATS: Final = 2**31 - 1

_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))

_MEMBER: Final = r"(?:(?!--|&&|\|\||~~)[^\\\[\]]|\\(?:[dDwWsS]|[^a-zA-Z0-9]))"

FLAGS: Final = re.compile(r"\(\?[ims]+\)")

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


class ItemKind(Enum):
    """The kinds of items that an expression consists of."""

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


ANY_CHARACTER: Final = "(?s:.)"
ANYTHING: Final = f"{ANY_CHARACTER}*"


@dataclass(frozen=True, slots=True)
class Item:
    """A part of an alternative, with its text for RE2."""

    kind: ItemKind
    text: str
    inside: Alternatives = ()
    plain: bool = True
    """True if it contains neither a lookahead nor a lookbehind."""
    single: bool = True
    """True if it contains no repetition. Java releases differ in the repetitions that a lookbehind may contain."""
    holds: bool = True
    """For lookaheads and lookbehinds: True if it must match, False if it must not match."""
    literal: str = ""
    times: int = 1
    """For a repetition: how often its text is repeated in RE2's program."""


Alternatives: TypeAlias = Sequence[Sequence[Item]]

_ANY_ITEM: Final = Item(ItemKind.PART, ANY_CHARACTER)


def topic_expression(expression: str) -> str:
    """Return the regular expression that Scala members make of a white or black list: commas separate alternatives.

    >>> topic_expression("orders, refunds.*")
    'orders|refunds.*'
    """
    return expression.strip(_JAVA_BLANKS).replace(",", "|").replace(" ", "").strip("\"'")


def checked(expression: str) -> str:
    """Return the regular expression of a list, or raise an error if it is too long or not ASCII."""
    if len(expression) > LONGEST:
        raise UnevaluableExpressionError(f"it has {len(expression)} characters, and at most {LONGEST} are evaluated")
    if not expression.isascii():
        raise UnevaluableExpressionError("it has characters outside ASCII")
    return topic_expression(expression)


def parse(regex: str) -> Alternatives:
    """Parse an expression into its alternatives."""
    openings: list[str] = []
    levels: list[list[list[Item]]] = [[[]]]
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


def _item(token: re.Match[str]) -> Item:
    text = token[0]
    match token.lastgroup:
        case "literal" | "escaped":
            return _literal(text[-1])
        case "any":
            return _ANY_ITEM
        case "kind":
            return Item(ItemKind.PART, text)
        case "bound":
            return Item(ItemKind.END if text == "$" else ItemKind.BOUND, text)
        case "start":
            return Item(ItemKind.START, text)
        case "set":
            return Item(ItemKind.PART, _set(text))
        case "broken":
            raise BrokenExpressionError(f"{text!r:.20} is incomplete")
    begins = token.string[token.start() : token.start() + 8]
    raise UnevaluableExpressionError(f"it has a part that only Java supports: {begins!r}")


@lru_cache(maxsize=128)  # of ASCII
def _literal(character: str) -> Item:
    return Item(ItemKind.NAME, _quoted(character), literal=character)


def _quoted(character: str) -> str:
    return character if character.isalnum() else f"\\x{ord(character):02x}"


def _set(text: str) -> str:
    """Translate a set to RE2's syntax."""
    negated = text[1] == "^"
    members = _SET_MEMBER.finditer(text[2 if negated else 1 : -1])
    return f"[{'^' * negated}{''.join(map(_member, members))}]"


def _member(member: re.Match[str]) -> str:
    start, end = member["start"], member["end"]
    if member["kind"]:
        return member[0]  # a class cannot start a range: a hyphen after it is a member
    if end is None:
        return _quoted(start)
    if (end[0] == "\\" and end[-1].isalpha()) or end[-1] < start:
        raise BrokenExpressionError(f"{member[0]!r} is not a range")
    return f"{_quoted(start)}-{_quoted(end[-1])}"


def _repeat(items: list[Item], repeat: str, manner: str) -> None:
    """Repeat the last item."""
    times = _times(repeat)
    if times is None and (not items or items[-1].kind is ItemKind.REPEATED):
        raise BrokenExpressionError(f"{repeat} has nothing to repeat")
    if manner == "+" or not items or items[-1].kind not in (ItemKind.NAME, ItemKind.PART, ItemKind.GROUP):
        raise UnevaluableExpressionError(f"it has a repetition that only Java supports: {repeat}{manner}")
    if times is not None and times > 1 and _has_bound(items[-1]):
        # Java ends a repetition as soon as it consumes no character.
        raise UnevaluableExpressionError(f"it repeats a boundary {times} times")
    last = items.pop()
    text = last.text + (repeat if times is None else f"{{{times}}}")  # to RE2, `{02}` is literal text
    items.append(replace(last, kind=ItemKind.REPEATED, text=text, single=False, times=1 if times is None else times))


def _has_bound(item: Item) -> bool:
    return item.kind in (ItemKind.START, ItemKind.END, ItemKind.BOUND) or any(
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


def _group(opening: str, inside: Alternatives) -> Item:
    text = text_of(inside)
    items = [item for items in inside for item in items]
    plain, single = all(item.plain for item in items), all(item.single for item in items)
    if opening in ("(", "(?:"):
        return Item(ItemKind.GROUP, f"(?:{text})", inside, plain, single)
    if not plain:
        raise UnevaluableExpressionError("it has a lookahead or lookbehind inside another")
    behind = "<" in opening
    if behind and not single:
        raise UnevaluableExpressionError("it has a repetition in a lookbehind")
    kind = ItemKind.BEHIND if behind else ItemKind.AHEAD
    return Item(kind, f"(?:{text})", inside, plain=False, holds=opening[-1] == "=")


def text_of(alternatives: Alternatives) -> str:
    """Return the text of the alternatives for RE2."""
    return "|".join("".join(item.text for item in items) for items in alternatives)
