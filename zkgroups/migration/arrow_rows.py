"""Convert rows, which are named tuples, to Arrow columns and back. The types of the fields define the schema."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc

from ..core.columns import Columns, column
from ..exceptions import DamagedFileError

T = TypeVar("T")
W = TypeVar("W", bound=StrEnum)

TIME: Final = pa.timestamp("us", tz="UTC")
"""The type of times in snapshots."""

_PRIMITIVES: Final[dict[Any, Any]] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: TIME,
}


# Schemas


def _columns(kind: type[Any]) -> tuple[tuple[str, Any, bool], ...]:
    """Return the name of each field, its type, and whether it may be None."""
    return _cached_columns(kind)  # type: ignore[arg-type]


@cache  # it takes as long as the conversion of hundreds of rows
def _cached_columns(kind: type[Any]) -> tuple[tuple[str, Any, bool], ...]:
    return tuple((name, *_without_none(hint)) for name, hint in get_type_hints(kind).items())


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) is not types.UnionType:
        return hint, False
    [plain] = [each for each in get_args(hint) if each is not types.NoneType]
    return plain, True


def _type(hint: Any) -> Any:
    if get_origin(hint) is tuple:
        return pa.list_(pa.field("element", _type(get_args(hint)[0]), nullable=False))
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return pa.struct(list(arrow_schema(hint)))
    return _PRIMITIVES[str if issubclass(hint, StrEnum) else hint]


def arrow_schema(kind: type[Any]) -> Any:
    """Return the columns of these rows, exactly as Spark expects them."""
    return pa.schema([pa.field(name, _type(hint), optional) for name, hint, optional in _columns(kind)])


# From rows to tables


def batches(kind: type[T], rows: Sequence[T]) -> Iterator[Any]:
    """Convert rows to one Arrow batch; none if there are no rows.

    With several batches, those of other threads could come between them, and split a group.
    """
    return iter(table(kind, rows).to_batches())


def table(kind: type[T], rows: Sequence[T]) -> Any:
    """Convert rows to an Arrow table."""
    schema = arrow_schema(kind)
    return pa.Table.from_arrays([_array(column(rows, each.name), each.type) for each in schema], schema=schema)


def _array(values: Sequence[Any], kind: Any) -> Any:
    if values and values[0] == values[-1] and values.count(values[0]) == len(values):
        return _repeated(values[0], len(values), kind)  # the usual case, and faster
    if not pa.types.is_list(kind):
        return pa.array(values, kind)
    known = {value: number for number, value in enumerate(dict.fromkeys(values))}  # many rows share a value
    return pa.array(map(_to_arrow, known), kind).take(pa.array(map(known.__getitem__, values), pa.int32()))


def _repeated(value: Any, count: int, kind: Any) -> Any:
    if value is None:
        return pa.nulls(count, kind)
    if pa.types.is_list(kind):  # `repeat` takes a hundred times as long
        return pa.array([_to_arrow(value)], kind).take(pa.repeat(pa.scalar(0, pa.int32()), count))
    return pa.repeat(pa.scalar(value, kind), count)


def _to_arrow(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_arrow(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _to_arrow(getattr(value, each.name)) for each in fields(value)}
    return value


# From tables to rows


def rows(kind: type[T], table: Any, same: Mapping[str, Any] | None = None) -> Columns[T]:
    """Return the rows of an Arrow batch or table; other columns are ignored.

    `same` has the values of columns that are not in the table because they are the same in all rows. Raise
    DamagedFileError if the table has a value that its enum lacks.
    """
    known = dict(same or {})
    hints = {name: hint for name, hint, _ in _columns(kind)}

    def load(name: str) -> list[Any]:
        return [known[name]] * len(table) if name in known else _values(hints[name], table.column(name))

    found = Columns(kind, len(table), load)
    for name in (name for name, hint in hints.items() if hint not in _PRIMITIVES):
        found.column(name)  # check the values now: a caller must not fail after it has begun to write
    return found


def parse_value(hint: Any, value: Any) -> Any:
    """Convert one value, as Arrow returns it, to the type of a field."""
    if value is None:
        return None
    if get_origin(hint) is tuple:
        return tuple(parse_value(get_args(hint)[0], each) for each in value)
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return hint(**{name: parse_value(inner, value[name]) for name, inner, _ in _columns(hint)})
    return parse_enum(hint, value) if issubclass(hint, StrEnum) else value


def _values(hint: Any, column: Any) -> list[Any]:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if get_origin(hint) is tuple:
        if not whole.null_count and not pc.max(pc.list_value_length(whole)).as_py():
            return [()] * len(whole)
        return [parse_value(hint, value) for value in whole.to_pylist()]
    if not issubclass(hint, str):
        return list(whole.to_pylist())
    encoded = whole.dictionary_encode()
    words = [parse_value(hint, each) for each in encoded.dictionary.to_pylist()]
    return [None if n is None else words[n] for n in encoded.indices.to_pylist()]


def parse_enum(kind: type[W], text: str) -> W:
    """Convert a text to a value of an enum. Raise DamagedFileError if the enum does not have it."""
    try:
        return kind(text)
    except ValueError as error:
        raise DamagedFileError(
            f"{text!r} is not a known {kind.__name__}: restore the folder from a backup, or use the version of "
            "zkgroups that wrote it"
        ) from error


@contextmanager
def located(failure: str) -> Iterator[None]:
    """Add the name of the file or folder to errors about its rows; `failure` begins the new message."""
    try:
        yield
    except DamagedFileError as error:
        raise DamagedFileError(f"{failure}: {error}") from error


# Chunks of whole groups from a stream of rows sorted by target, for bulk requests in bounded memory.


MAX_GROUPS: Final = 200
MAX_OFFSETS: Final = 20_000
"""The limits of a chunk. A single group may exceed them, because groups are never split."""


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
