"""Convert the dataclass rows of a migration to Arrow columns and back. The schema is derived from the fields."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
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

from ...core.migration.lazy_rows import Rows
from ...exceptions import DamagedFileError

T = TypeVar("T")
W = TypeVar("W", bound=str)

ROWS: Final = 10_000
"""The number of rows per batch. More rows are not faster."""

_STRINGS: Final = pa.list_(pa.field("element", pa.string(), nullable=False))
_KINDS: Final[dict[Any, tuple[DataType, Any]]] = {
    str: (StringType(), pa.string()),
    int: (LongType(), pa.int64()),
    float: (DoubleType(), pa.float64()),
    bool: (BooleanType(), pa.bool_()),
    tuple: (ArrayType(StringType(), False), _STRINGS),
}


def _columns(kind: type[Any]) -> tuple[tuple[str, Any, bool], ...]:
    """Return the name of each field, its type, and whether it may be None."""
    hints = get_type_hints(kind)
    return tuple((each.name, *_without_none(hints[each.name])) for each in fields(kind))


def _without_none(hint: Any) -> tuple[Any, bool]:
    optional = get_origin(hint) is types.UnionType
    [plain] = [each for each in get_args(hint) if each is not types.NoneType] if optional else [hint]
    return get_origin(plain) or plain, optional


def _of(plain: Any) -> tuple[DataType, Any]:
    return _KINDS[str if issubclass(plain, StrEnum) else plain]


def schema(kind: type[Any]) -> StructType:
    """Return the Spark schema of a row class."""
    return StructType([StructField(name, _of(plain)[0], optional) for name, plain, optional in _columns(kind)])


def arrow_schema(kind: type[Any]) -> Any:
    """Return the Arrow schema that Spark expects for a row class."""
    return pa.schema([pa.field(name, _of(plain)[1], optional) for name, plain, optional in _columns(kind)])


def batches(kind: type[T], rows: Iterable[T]) -> Iterator[Any]:
    """Convert rows to Arrow batches."""
    return split(table(kind, rows if isinstance(rows, Rows) else Rows.of(kind, rows)))


def table(kind: type[T], rows: Rows[T]) -> Any:
    """Convert rows to an Arrow table."""
    columns = arrow_schema(kind)
    return pa.Table.from_arrays([pa.array(rows.columns[each.name], each.type) for each in columns], schema=columns)


def split(rows: Any) -> Iterator[Any]:
    """Split a table into batches."""
    return iter(rows.to_batches(max_chunksize=ROWS))


def rows(kind: type[T], batch: Any) -> Iterator[T]:
    """Iterate over the rows of an Arrow batch or table; unknown columns are ignored."""
    return LazyColumns(kind, batch, {}).rows(kind)


class LazyColumns(dict[str, list[Any]]):
    """The columns of an Arrow batch or table, each converted to a list on first access.

    `constants` are columns with one value for all rows, which are not in the batch.
    """

    def __init__(self, kind: type[Any], batch: Any, constants: Mapping[str, Any]) -> None:
        super().__init__((name, [value] * len(batch)) for name, value in constants.items())
        self._kinds = {name: plain for name, plain, _ in _columns(kind)}
        self._batch = batch

    def rows(self, kind: type[T]) -> Iterator[T]:
        """Iterate over the rows."""
        lists = [self[name] for name in self._kinds]
        return (kind(**dict(zip(self._kinds, values, strict=True))) for values in zip(*lists, strict=True))

    def __missing__(self, name: str) -> list[Any]:
        column = self._batch.column(name)
        combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        self[name] = values = _values(self._kinds[name], combined)
        return values


def _values(plain: Any, column: Any) -> list[Any]:
    if plain is tuple:
        lengths = pc.list_value_length(column)
        if not column.null_count and not pc.max(lengths).as_py():
            return [()] * len(column)
        return [None if each is None else tuple(each) for each in column.to_pylist()]
    if plain is int and len(column) and not column.null_count:
        return memoryview(column.buffers()[1]).cast("q")[column.offset : column.offset + len(column)].tolist()
    if not issubclass(plain, str):
        return list(column.to_pylist())
    encoded = column.dictionary_encode()
    words = [parse_enum(plain, each) for each in encoded.dictionary.to_pylist()]
    return [None if n is None else words[n] for n in encoded.indices.to_pylist()]


def parse_enum(kind: type[W], text: str) -> W:
    """Convert a text of a column to its enum. Raise DamagedFileError for an unknown value."""
    try:
        return kind(text)
    except ValueError as error:
        raise DamagedFileError(
            f"{text!r} is not a known {kind.__name__.lower()}: the file was changed, or a later version wrote it"
        ) from error


def collect_rows(kind: type[T], table: DataFrame) -> list[T]:
    """Collect all rows of a small table on the driver."""
    return list(rows(kind, table.select(*[name for name, _, _ in _columns(kind)]).toArrow()))
