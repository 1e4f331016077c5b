"""The pieces of an audit: folders with the commits of consecutive batches (`zkgroups/spark/audit/journal.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

_NAME: Final = re.compile("([0-9]+)-([0-9]{12})-([0-9]{12})")


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """The commits of consecutive batches."""

    first: int
    last: int
    level: int = 0

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Return the piece in a folder of this name; None for other folders."""
        match = _NAME.fullmatch(name)
        return cls(int(match[2]), int(match[3]), int(match[1])) if match else None

    @property
    def name(self) -> str:
        """The name of the folder that holds the piece: its level, its first and its last batch."""
        return f"{self.level}-{self.first:012d}-{self.last:012d}"

    def has(self, other: Piece) -> bool:
        """Return whether another piece was merged into this one."""
        return self.level > other.level and self.first <= other.first and other.last <= self.last


def outermost(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces that no other piece contains, sorted.

    >>> outermost([Piece(0, 3, level=1), Piece(0, 0), Piece(2, 2), Piece(4, 4)])
    [Piece(first=0, last=3, level=1), Piece(first=4, last=4, level=0)]
    """
    found = sorted(pieces)
    return [piece for piece in found if not any(other.has(piece) for other in found)]
