"""The alternatives of an expression as choices: a text for RE2, with lookaheads and lookbehinds as conditions.

RE2 supports neither lookaheads nor lookbehinds. At the start or the end of an alternative, they are conditions on the
whole name, so RE2 can check them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from .errors import UnevaluableExpressionError
from .match_cost import (
    AT_START,
    EVERYWHERE,
    LONGEST_NAME,
    STEPS_OF_A_CALL,
    steps_of_alternative,
    steps_of_alternatives,
    steps_of_glob,
)
from .parser import ANYTHING, Alternatives, Item, ItemKind, text_of


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
