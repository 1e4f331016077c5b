"""Java's regular expressions for RE2, which needs linear time. What RE2 reads differently is translated or refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from itertools import zip_longest
from typing import Final, TypeAlias

# Why an expression cannot be evaluated.


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


# How many steps RE2 may need to match one topic name, computed from the expression.
#
# A time limit would not work: all members of a group must get the same result, also on busy machines.


LONGEST_NAME: Final = 249
STEPS_OF_A_CALL: Final = 100


def steps_of_glob(literals: Sequence[str]) -> int:
    """Return 0 for a name or the start of a name: the filter looks up all of them together."""
    if len(literals) == 1 or (len(literals) == 2 and not literals[1]):
        return 0
    return sum(LONGEST_NAME * (1 + len(part) // _CHARACTERS) for part in literals[1:])


_CHARACTERS: Final = 16
"""Searching this many literal characters takes no longer than comparing one part of a regular expression."""

AT_START: Final = 1
EVERYWHERE: Final = (1 << LONGEST_NAME + 1) - 1


def steps_of_alternative(items: Sequence[Item]) -> int:
    r"""The steps for one alternative, from the start of the name.

    `[a-z]+\.` leaves only one place, because `.` does not belong to the set. So the rest is not searched for.
    """
    places, steps = AT_START, 0
    for item, following in zip_longest(items, items[1:]):
        if places & (places - 1) == 0 and _ends_at_one_place(item, following):
            places, more = places << item.text.endswith("+"), LONGEST_NAME
        else:
            places, more = _steps_of(item, places)
        steps += more
    return steps


def _ends_at_one_place(item: Item, following: Item | None) -> bool:
    """True for a repetition such as `[a-z]+`, if no character in it can start the following item."""
    if item.kind is not ItemKind.REPEATED or item.inside or item.text[-1] not in "*+":
        return False
    if following is None:
        return True
    repeated = following.kind is ItemKind.REPEATED and not following.inside and following.text.endswith("+")
    if not repeated and following.kind not in (ItemKind.NAME, ItemKind.PART):
        return False
    begins = following.text[:-1] if repeated else following.text
    return _characters(item.text[:-1]).isdisjoint(_characters(begins))


@lru_cache(maxsize=256)
def _characters(text: str) -> frozenset[str]:
    """Return the characters of topic names that match the text, in either case."""
    return frozenset(filter(re.compile(text, re.ASCII | re.IGNORECASE).fullmatch, map(chr, range(0x21, 0x7F))))


def steps_of_alternatives(alternatives: Alternatives, places: int) -> tuple[int, int]:
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


def _steps_of(item: Item, places: int) -> tuple[int, int]:
    match item.kind:
        case ItemKind.NAME | ItemKind.PART:
            return places << 1 & EVERYWHERE, _count(places)
        case ItemKind.GROUP:
            return steps_of_alternatives(item.inside, places)
        case ItemKind.REPEATED:
            return _steps_of_repetition(item, places)
    return places, 1


def _steps_of_repetition(item: Item, places: int) -> tuple[int, int]:
    if item.text.endswith("}") and not item.inside:
        reached = [places << number & EVERYWHERE for number in range(min(item.times, LONGEST_NAME) + 1)]
        return reached[-1], item.times + sum(map(_count, reached))
    onwards = EVERYWHERE & -(places & -places)
    steps = steps_of_alternatives(item.inside, onwards)[1] if item.inside else 0
    return onwards, item.times * (steps + 2 * _count(onwards))


def _count(places: int) -> int:
    """Count the steps of one item. Unreachable parts count, too: they belong to RE2's program."""
    return 2 * places.bit_count() if places & (places - 1) else 1


# The alternatives of an expression as choices: a text for RE2, with lookaheads and lookbehinds as conditions.
#
# RE2 supports neither lookaheads nor lookbehinds. At the start or the end of an alternative, they are conditions on
# the whole name, so RE2 can check them one by one.


class MatchShape(Enum):
    """How an alternative can be matched."""

    LITERAL = auto()
    """Literal characters and `.*`."""
    WHOLE = auto()
    """Without repetitions."""
    START = auto()
    """The start of the name, without repetitions, followed by `.*`."""
    ANY = auto()
    """With repetitions."""
    GUARDED = auto()
    """With conditions."""


@dataclass(frozen=True, slots=True)
class Condition:
    text: str
    holds: bool
    steps: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One alternative: the name must match the text, and meet each condition."""

    text: str
    shape: MatchShape
    steps: int
    steps_of_regex: int
    """The steps if the whole alternative is matched as a regular expression."""
    literals: Sequence[str] = ()
    """The text between each two `.*`."""
    conditions: tuple[Condition, ...] = ()


_REST: Final = Item(ItemKind.REPEATED, ANYTHING)


def choices_of(alternatives: Alternatives) -> Iterator[Choice]:
    """Yield the choices: a group with conditions inside has several."""
    for items in alternatives:
        start, end = _edges(items)
        around = (
            *(_condition(item, behind=False) for item in items[:start] if item.kind is ItemKind.AHEAD),
            *(_condition(item, behind=True) for item in items[end:] if item.kind is ItemKind.BEHIND),
        )
        for choice in _between(items[start:end]):
            yield _guarded(choice, around)


def _condition(item: Item, *, behind: bool) -> Condition:
    text = ANYTHING + item.text if behind else item.text + ANYTHING
    _, steps = steps_of_alternatives(item.inside, EVERYWHERE if behind else AT_START)
    return Condition(text, item.holds, STEPS_OF_A_CALL + LONGEST_NAME + steps)


def _guarded(choice: Choice, conditions: tuple[Condition, ...]) -> Choice:
    """Return the choice with additional conditions."""
    if not conditions:
        return choice
    conditions = (*conditions, *choice.conditions)
    if choice.shape is MatchShape.GUARDED:
        return replace(choice, conditions=conditions)
    text = f"{choice.text}{ANYTHING}" if choice.shape is MatchShape.START else choice.text
    steps = STEPS_OF_A_CALL + choice.steps_of_regex
    return replace(choice, text=text, shape=MatchShape.GUARDED, steps=steps, conditions=conditions)


def _edges(items: Sequence[Item]) -> tuple[int, int]:
    """Return where the conditions at the start of an alternative end, and where the conditions at its end begin."""
    start, end = 0, len(items)
    while start < end and items[start].kind in (ItemKind.START, ItemKind.AHEAD):
        start += 1
    while end > start and items[end - 1].kind in (ItemKind.END, ItemKind.BEHIND):
        end -= 1
    return start, end


def _between(items: Sequence[Item]) -> Iterator[Choice]:
    if all(item.plain for item in items):
        yield _plain(items)
    elif len(items) == 1 and items[0].kind is ItemKind.GROUP:
        yield from choices_of(items[0].inside)
    elif len(items) == 1 and (absent := _absent(items[0])) is not None:
        _, steps = steps_of_alternatives(absent.inside, EVERYWHERE)
        text = f"{ANYTHING}{absent.text}{ANYTHING}"
        yield _guarded(
            _plain([_REST]),
            (Condition(text, holds=False, steps=STEPS_OF_A_CALL + 2 * LONGEST_NAME + steps),),
        )
    else:
        raise UnevaluableExpressionError("it has a lookahead that is not at the start, or a lookbehind not at the end")


def _plain(items: Sequence[Item]) -> Choice:
    text, regex = text_of([items]), steps_of_alternative(items)
    if items and all(item.kind is ItemKind.NAME or item.text == ANYTHING for item in items):
        literals = _literals_between(items)
        return Choice(text, MatchShape.LITERAL, steps_of_glob(literals), regex, literals)
    if all(item.single for item in items):
        return Choice(text, MatchShape.WHOLE, regex, regex)
    *start, last = items
    if last.text == ANYTHING and all(item.single for item in start):
        return Choice(text_of([start]), MatchShape.START, steps_of_alternative(start), regex)
    return Choice(text, MatchShape.ANY, regex, regex)


def _literals_between(items: Sequence[Item]) -> tuple[str, ...]:
    return tuple("".join(item.literal or "," for item in items).split(","))


def _absent(item: Item) -> Item | None:
    """Return the lookahead of `((?! ).)*`, which must not match anywhere in the name."""
    if item.kind is not ItemKind.REPEATED or not item.text.endswith(")*") or len(item.inside) != 1:
        return None
    match item.inside[0]:
        case [Item(kind=ItemKind.AHEAD, holds=False, text=text) as ahead, Item(text="(?s:.)")]:
            # With these, it may match the empty string at the end of the name, where no character is left.
            return None if any(part in text for part in ("$", r"\b", r"\B")) else ahead
    return None
