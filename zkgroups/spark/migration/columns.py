"""The rows of a migration as columns: what a dataclass says of its fields is all that Spark and Arrow need to know."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from enum import StrEnum
from itertools import islice
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

T = TypeVar("T")

ROWS: Final = 10_000
"""Of a batch: more gain nothing."""

_STRINGS: Final = pa.list_(pa.field("element", pa.string(), nullable=False))
_KINDS: Final[dict[Any, tuple[DataType, Any]]] = {
    str: (StringType(), pa.string()),
    int: (LongType(), pa.int64()),
    float: (DoubleType(), pa.float64()),
    bool: (BooleanType(), pa.bool_()),
    tuple: (ArrayType(StringType(), False), _STRINGS),
}


def _columns(kind: type[Any]) -> tuple[tuple[str, Any, bool], ...]:
    """The name of each field, its type, and whether it may be None."""
    hints = get_type_hints(kind)
    return tuple((each.name, *_without_none(hints[each.name])) for each in fields(kind))


def _without_none(hint: Any) -> tuple[Any, bool]:
    optional = get_origin(hint) is types.UnionType
    [plain] = [each for each in get_args(hint) if each is not types.NoneType] if optional else [hint]
    return get_origin(plain) or plain, optional


def _of(plain: Any) -> tuple[DataType, Any]:
    return _KINDS[str if issubclass(plain, StrEnum) else plain]


def schema(kind: type[Any]) -> StructType:
    """The columns of such rows, for Spark."""
    return StructType([StructField(name, _of(plain)[0], optional) for name, plain, optional in _columns(kind)])


def arrow_schema(kind: type[Any]) -> Any:
    """The same for Arrow, exactly as Spark expects it of what it is given."""
    return pa.schema([pa.field(name, _of(plain)[1], optional) for name, plain, optional in _columns(kind)])


def batches(kind: type[T], rows: Iterable[T]) -> Iterator[Any]:
    """These rows as Arrow batches; none of no rows."""
    waiting, columns = iter(rows), arrow_schema(kind)
    while some := list(islice(waiting, ROWS)):
        arrays = [pa.array([getattr(row, each.name) for row in some], each.type) for each in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)


def rows(kind: type[T], batch: Any) -> Iterator[T]:
    """The rows of an Arrow batch, or of a table; columns that such rows do not have are passed over."""
    made = _columns(kind)
    columns = [_values(plain, batch.column(name).to_pylist()) for name, plain, _ in made]
    names = [name for name, _, _ in made]
    return (kind(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True))


def _values(plain: Any, values: list[Any]) -> Iterable[Any]:
    made: Callable[[Any], Any] | None = {tuple: tuple}.get(plain) or (plain if issubclass(plain, StrEnum) else None)
    return values if made is None else (None if each is None else made(each) for each in values)


def collected(kind: type[T], table: DataFrame) -> list[T]:
    """All rows of a table, here: for what is small."""
    return list(rows(kind, table.select(*[name for name, _, _ in _columns(kind)]).toArrow()))
