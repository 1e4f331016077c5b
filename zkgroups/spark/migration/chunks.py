"""Split a stream of rows, sorted by target, into chunks of whole groups for bulk requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from .arrow_rows import LazyColumns

GROUPS: Final = 200
OFFSETS: Final = 20_000
"""The limits of a chunk. A group is never split, so a large group may exceed them."""

T = TypeVar("T")


Slots = tuple[LazyColumns, int, int]


class Chunk(Generic[T]):
    """The rows of some whole groups, created on access."""

    def __init__(self, kind: type[T], table: Any, sizes: Mapping[str, int], constants: Mapping[str, Any]) -> None:
        self._columns = LazyColumns(kind, table, constants)
        self._kind = kind
        self._count = len(table)
        self._sizes = sizes

    def slices(self) -> Iterator[tuple[str, Slots]]:
        """Yield each target with the columns and the range of its rows."""
        start = 0
        for target, size in self._sizes.items():
            yield target, (self._columns, start, start + size)
            start += size

    def __iter__(self) -> Iterator[T]:
        return self._columns.rows(self._kind)

    def __len__(self) -> int:
        return self._count


class _TargetRun(NamedTuple):
    """Consecutive rows of one target in a batch."""

    target: str
    batch: Any
    start: int
    stop: int


def group_chunks(
    kind: type[T], batches: Iterable[Any], constants: Mapping[str, Any] | None = None
) -> Iterator[Chunk[T]]:
    """Split Arrow batches into chunks. The rows of one target must be consecutive.

    `constants` are columns with one value for all rows, which are not in the batches.
    """
    chunk: list[_TargetRun] = []
    sizes: dict[str, int] = {}
    for group in _groups(batches):
        size = sum(run.stop - run.start for run in group)
        if chunk and (len(sizes) == GROUPS or sum(sizes.values()) + size > OFFSETS):
            yield Chunk(kind, _table(chunk), sizes, constants or {})
            chunk, sizes = [], {}
        chunk += group
        sizes[group[0].target] = size
    if chunk:
        yield Chunk(kind, _table(chunk), sizes, constants or {})


def _groups(batches: Iterable[Any]) -> Iterator[list[_TargetRun]]:
    group: list[_TargetRun] = []
    for run in _runs(batches):
        if group and run.target != group[0].target:
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _runs(batches: Iterable[Any]) -> Iterator[_TargetRun]:
    for batch in batches:
        runs, start = pc.run_end_encode(batch.column("target")), 0
        for target, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield _TargetRun(target, batch, start, stop)
            start = stop


def _table(runs: Iterable[_TargetRun]) -> Any:
    """Combine runs to a table. Consecutive runs of a batch become one slice."""
    slices: list[_TargetRun] = []
    for run in runs:
        if slices and slices[-1].batch is run.batch:
            slices[-1] = slices[-1]._replace(stop=run.stop)
        else:
            slices.append(run)
    return pa.Table.from_batches([each.batch.slice(each.start, each.stop - each.start) for each in slices])
