"""Java's regular expressions for RE2, which needs linear time. What RE2 reads differently is translated or refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias


class ExpressionError(ValueError):
    """An expression that cannot be evaluated."""


class BrokenExpressionError(ExpressionError):
    """Java refuses the expression."""


class UnevaluableExpressionError(ExpressionError):
    """Java may accept the expression, but only Java can evaluate it."""


# Parse a Java expression into items, each with its text for RE2. Syntax that RE2 reads differently is rejected.


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

    CHARACTER = auto()
    """One character: a literal one, or one of a set."""
    START = auto()
    BOUND = auto()
    END = auto()
    GROUP = auto()
    REPEATED = auto()
    AHEAD = auto()
    BEHIND = auto()


ANYTHING: Final = "(?s:.)*"


@dataclass(frozen=True, slots=True)
class Item:
    """A part of an alternative, with its text for RE2."""

    kind: ItemKind
    text: str
    inside: Alternatives = ()
    literal: str = ""
    holds: bool = True
    """For lookaheads and lookbehinds: True if it must match, False if it must not match."""

    def has(self, *kinds: ItemKind) -> bool:
        """Return True if this item, or one inside of it, is of one of these kinds."""
        return self.kind in kinds or any(item.has(*kinds) for items in self.inside for item in items)

    @property
    def takes_steps_once(self) -> bool:
        """True if each part of it matches at least one character, and no part is repeated."""
        if self.kind is ItemKind.GROUP:
            return all(items and all(item.takes_steps_once for item in items) for items in self.inside)
        return self.kind is ItemKind.CHARACTER


Alternatives: TypeAlias = Sequence[Sequence[Item]]


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
            return Item(ItemKind.CHARACTER, "(?s:.)")
        case "kind":
            return Item(ItemKind.CHARACTER, text)
        case "bound":
            return Item(ItemKind.END if text == "$" else ItemKind.BOUND, text)
        case "start":
            return Item(ItemKind.START, text)
        case "set":
            return Item(ItemKind.CHARACTER, _set(text))
        case "broken":
            raise BrokenExpressionError(f"{text!r:.20} is incomplete")
    begins = token.string[token.start() : token.start() + 8]
    raise UnevaluableExpressionError(f"it has a part that only Java supports: {begins!r}")


@lru_cache(maxsize=128)  # of ASCII
def _literal(character: str) -> Item:
    return Item(ItemKind.CHARACTER, _quoted(character), literal=character)


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
    times = _times(repeat) if repeat.startswith("{") else None
    if times is None and (not items or items[-1].kind is ItemKind.REPEATED):
        raise BrokenExpressionError(f"{repeat} has nothing to repeat")
    if manner == "+" or not items or items[-1].kind not in (ItemKind.CHARACTER, ItemKind.GROUP):
        raise UnevaluableExpressionError(f"it has a repetition that only Java supports: {repeat}{manner}")
    if times is not None and times > 1 and items[-1].has(ItemKind.START, ItemKind.BOUND, ItemKind.END):
        # Java ends a repetition as soon as it consumes no character.
        raise UnevaluableExpressionError(f"it repeats a boundary {times} times")
    last = items.pop()
    text = last.text + (repeat if times is None else f"{{{times}}}")  # to RE2, `{02}` is literal text
    items.append(replace(last, kind=ItemKind.REPEATED, text=text, literal=""))


def _times(repeat: str) -> int:
    """Return the number in `{n}`."""
    times = int(repeat[1:-1].lstrip("0")[:12] or 0)
    if times > _MOST_REPEATS:
        raise BrokenExpressionError(f"{repeat:.20} is too large a number")
    return times


def _group(opening: str, inside: Alternatives) -> Item:
    group = Item(ItemKind.GROUP, f"(?:{text_of(inside)})", inside)
    if opening in ("(", "(?:"):
        return group
    if group.has(ItemKind.AHEAD, ItemKind.BEHIND):
        raise UnevaluableExpressionError("it has a lookahead or lookbehind inside another")
    behind = "<" in opening
    if behind and group.has(ItemKind.REPEATED):
        # Java releases differ in the repetitions that a lookbehind may contain.
        raise UnevaluableExpressionError("it has a repetition in a lookbehind")
    return replace(group, kind=ItemKind.BEHIND if behind else ItemKind.AHEAD, holds=opening[-1] == "=")


def text_of(alternatives: Alternatives) -> str:
    """Return the text of the alternatives for RE2."""
    return "|".join("".join(item.text for item in items) for items in alternatives)


# The alternatives of an expression as choices: a text for RE2, with lookaheads and lookbehinds as conditions.
#
# RE2 supports neither lookaheads nor lookbehinds. At the start or the end of an alternative, they are conditions on
# the whole name, so RE2 can check them one by one.


class Condition(NamedTuple):
    """A text that the whole name must match, or must not match."""

    text: str
    holds: bool


class Choice(NamedTuple):
    """One alternative: the name must match the text, and meet each condition."""

    text: str
    literal: str | None = None
    """The characters of an alternative without any syntax."""
    is_quick: bool = False
    """True if matching a name never takes more steps than the text has characters."""
    is_start: bool = False
    """True if a quick alternative is followed by `.*`, which is left out of the literal."""
    conditions: tuple[Condition, ...] = ()


def choices_of(alternatives: Alternatives) -> Iterator[Choice]:
    """Yield the choices: a group with conditions inside has several."""
    for items in alternatives:
        start, end = 0, len(items)
        while start < end and items[start].kind in (ItemKind.START, ItemKind.AHEAD):
            start += 1
        while end > start and items[end - 1].kind in (ItemKind.END, ItemKind.BEHIND):
            end -= 1
        ahead = [item for item in items[:start] if item.kind is ItemKind.AHEAD]
        behind = [item for item in items[end:] if item.kind is ItemKind.BEHIND]
        around = (
            *(Condition(item.text + ANYTHING, item.holds) for item in ahead),
            *(Condition(ANYTHING + item.text, item.holds) for item in behind),
        )
        for choice in _between(items[start:end]):
            yield choice._replace(conditions=(*around, *choice.conditions))


def _between(items: Sequence[Item]) -> Iterator[Choice]:
    if not any(item.has(ItemKind.AHEAD, ItemKind.BEHIND) for item in items):
        is_start = bool(items) and items[-1].text == ANYTHING
        begins = items[:-1] if is_start else items
        literal = "".join(item.literal for item in begins) if all(item.literal for item in begins) else None
        yield Choice(text_of([items]), literal, all(item.takes_steps_once for item in begins), is_start)
    elif len(items) == 1 and items[0].kind is ItemKind.GROUP:
        yield from choices_of(items[0].inside)
    elif len(items) == 1 and (absent := _absent(items[0])) is not None:
        yield Choice(ANYTHING, conditions=(Condition(f"{ANYTHING}{absent}{ANYTHING}", holds=False),))
    else:
        raise UnevaluableExpressionError("it has a lookahead that is not at the start, or a lookbehind not at the end")


def _absent(item: Item) -> str | None:
    """Return the text of the lookahead in `((?! ).)*`, which must not match anywhere in the name."""
    if item.kind is not ItemKind.REPEATED or not item.text.endswith(")*") or len(item.inside) != 1:
        return None
    match item.inside[0]:
        case [Item(kind=ItemKind.AHEAD, holds=False) as ahead, Item(text="(?s:.)")]:
            # With these, it may match the empty string at the end of the name, where no character is left.
            return None if ahead.has(ItemKind.BOUND, ItemKind.END) else ahead.text
    return None
