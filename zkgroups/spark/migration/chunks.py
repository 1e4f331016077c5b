"""Whole groups out of a stream of rows that are sorted by target: so many that asking in bulk pays, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from .arrow_rows import Lists

GROUPS: Final = 200
OFFSETS: Final = 20_000
"""A chunk has no more of either; but a group is never split, however many offsets it has."""

T = TypeVar("T")


Slots = tuple[Lists, int, int]


class Chunk(Generic[T]):
    """Some whole groups: their rows, each made when somebody looks at it."""

    def __init__(self, kind: type[T], table: Any, sizes: Mapping[str, int], same: Mapping[str, Any]) -> None:
        self._columns = Lists(kind, table, same)
        self._kind = kind
        self._count = len(table)
        self._sizes = sizes

    def slices(self) -> Iterator[tuple[str, Slots]]:
        """By targets the columns of all, and which rows are theirs."""
        start = 0
        for target, size in self._sizes.items():
            yield target, (self._columns, start, start + size)
            start += size

    def __iter__(self) -> Iterator[T]:
        return self._columns.rows(self._kind)

    def __len__(self) -> int:
        return self._count


class _Run(NamedTuple):
    """Rows of one target that stand together in a batch."""

    target: str
    batch: Any
    start: int
    stop: int


def in_chunks(kind: type[T], batches: Iterable[Any], same: Mapping[str, Any] | None = None) -> Iterator[Chunk[T]]:
    """The rows of Arrow batches, some whole groups at a time; those that have one target are together.

    What is the `same` in all rows need not be in the batches.
    """
    chunk: list[_Run] = []
    sizes: dict[str, int] = {}
    for group in _groups(batches):
        size = sum(run.stop - run.start for run in group)
        if chunk and (len(sizes) == GROUPS or sum(sizes.values()) + size > OFFSETS):
            yield Chunk(kind, _table(chunk), sizes, same or {})
            chunk, sizes = [], {}
        chunk += group
        sizes[group[0].target] = size
    if chunk:
        yield Chunk(kind, _table(chunk), sizes, same or {})


def _groups(batches: Iterable[Any]) -> Iterator[list[_Run]]:
    group: list[_Run] = []
    for run in _runs(batches):
        if group and run.target != group[0].target:
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _runs(batches: Iterable[Any]) -> Iterator[_Run]:
    for batch in batches:
        runs, start = pc.run_end_encode(batch.column("target")), 0
        for target, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield _Run(target, batch, start, stop)
            start = stop


def _table(runs: Iterable[_Run]) -> Any:
    """Of runs that follow each other in a batch one slice is made."""
    slices: list[_Run] = []
    for run in runs:
        if slices and slices[-1].batch is run.batch:
            slices[-1] = slices[-1]._replace(stop=run.stop)
        else:
            slices.append(run)
    return pa.Table.from_batches([each.batch.slice(each.start, each.stop - each.start) for each in slices])
