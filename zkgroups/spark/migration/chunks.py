"""Whole groups out of a stream of rows that are sorted by target: so many that asking in bulk pays, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar

from .columns import rows

GROUPS: Final = 200
OFFSETS: Final = 20_000
"""A chunk has no more of either; but a group is never split, however many offsets it has."""


class OfTarget(Protocol):
    """A row of one group."""

    @property
    def target(self) -> str:
        """What the group is called where it is moved to."""


T = TypeVar("T", bound=OfTarget)


def in_chunks(kind: type[T], batches: Iterable[Any]) -> Iterator[list[T]]:
    """The rows of Arrow batches, some whole groups at a time; those that have one target are together."""
    chunk: list[T] = []
    groups = 0
    stream = chain.from_iterable(rows(kind, batch) for batch in batches)
    for _target, its in groupby(stream, attrgetter("target")):
        group = list(its)
        if chunk and (groups == GROUPS or len(chunk) + len(group) > OFFSETS):
            yield chunk
            chunk, groups = [], 0
        chunk += group
        groups += 1
    if chunk:
        yield chunk
