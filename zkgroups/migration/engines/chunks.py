"""Chunks of whole groups from a stream of rows sorted by target, for bulk requests in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ...core.columns import Columns
from .arrow_rows import rows

MAX_GROUPS: Final = 200
MAX_OFFSETS: Final = 20_000
"""The limits of a chunk. A single group may exceed them, because groups are never split."""

T = TypeVar("T")


class _TargetRun(NamedTuple):
    """Consecutive rows of one target in a batch."""

    target: str
    batch: Any
    start: int
    stop: int


def group_chunks(kind: type[T], batches: Iterable[Any], same: Mapping[str, Any] | None = None) -> Iterator[Columns[T]]:
    """Yield the rows of Arrow batches, some whole groups at a time. All rows of a target must be consecutive.

    `same` has the values of columns that are not in the batches because they are the same in all rows.
    """
    return (rows(kind, table, same) for table in group_tables(batches))


def group_tables(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the same rows as tables, some whole groups at a time."""
    chunk: list[_TargetRun] = []
    groups = offsets = 0
    for group in _groups(batches):
        size = sum(run.stop - run.start for run in group)
        if chunk and (groups == MAX_GROUPS or offsets + size > MAX_OFFSETS):
            yield _table(chunk)
            chunk, groups, offsets = [], 0, 0
        chunk += group
        groups, offsets = groups + 1, offsets + size
    if chunk:
        yield _table(chunk)


def are_consecutive(batches: Iterable[Any]) -> bool:
    """Return whether all rows of each target are consecutive."""
    targets: set[str] = set()
    for [first, *_more] in _groups(batches):
        if first.target in targets:
            return False
        targets.add(first.target)
    return True


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
    """Join runs to a table; consecutive runs of a batch become one slice."""
    slices: list[_TargetRun] = []
    for run in runs:
        if slices and slices[-1].batch is run.batch:
            slices[-1] = slices[-1]._replace(stop=run.stop)
        else:
            slices.append(run)
    return pa.Table.from_batches([each.batch.slice(each.start, each.stop - each.start) for each in slices])
