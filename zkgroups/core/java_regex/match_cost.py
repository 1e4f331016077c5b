"""How many steps RE2 may need to match one topic name, computed from the expression.

A time limit would not work: all members of a group must get the same result, also on busy machines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Final

from .parser import Alternatives, Item, ItemKind

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
