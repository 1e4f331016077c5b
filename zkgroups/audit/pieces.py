"""The folders of an audit's commits, and which of them count."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MERGE_FACTOR: Final = 16
"""The number of pieces to merge. A million batches then make at most 60 pieces."""

_NAME: Final = re.compile("([0-9]+)-([0-9]{12})-([0-9]{12})")


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """The commits of some batches, from the first to the last."""

    first: int
    last: int
    level: int = 0

    @property
    def name(self) -> str:
        """The name of the folder that holds the piece: its level, its first and its last batch.

        >>> Piece(0, 15, level=1).name
        '1-000000000000-000000000015'
        """
        return f"{self.level}-{self.first:012d}-{self.last:012d}"

    @classmethod
    def named(cls, name: str) -> Piece | None:
        """Return the piece of this name; None for other names."""
        match = _NAME.fullmatch(name)
        return None if match is None else cls(int(match[2]), int(match[3]), int(match[1]))

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
