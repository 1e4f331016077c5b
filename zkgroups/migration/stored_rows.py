"""The rows of plans and reports in their files, read in this process from any file system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ..storage.files import Files, join
from ..tables.parquet_files import arrow_errors, parquet_reader
from .arrow_rows import arrow_schema, located, rows

T = TypeVar("T")

ORDER: Final = ("target", "group", "topic", "partition")

_SORTED_ROWS: Final = 10_000
"""The rows to convert at a time. More are not faster."""


@contextmanager
def read_errors(failure: str) -> Iterator[None]:
    """Convert errors of the file system, of Arrow and of rows. `failure` is the beginning of the new message."""
    with arrow_errors(failure), located(failure):
        yield


def data_files(files: Files, folder: str) -> list[str]:
    """Return the data files of a folder, in order."""
    return [join(folder, name) for name in sorted(files.lengths(folder))]


def schema_of(kind: type[Any], columns: Sequence[str] = ()) -> Any:
    """Return the schema of some columns, or of all."""
    schema = arrow_schema(kind)
    return pa.schema([schema.field(name) for name in columns]) if columns else schema


def read_table(files: Files, file: str, schema: Any) -> Any:
    """Read these columns of a file."""
    with parquet_reader(files, file) as opened:
        return _completed(opened.read([name for name in schema.names if name in opened.schema_arrow.names]), schema)


def _completed(found: Any, schema: Any) -> Any:
    """Return all columns. One that an earlier version did not write is null."""
    for field in schema:
        if field.name not in found.column_names:
            found = found.append_column(field, pa.nulls(len(found), field.type))
    return found.select(schema.names).cast(schema)


def stored_tables(files: Files, folders: Iterable[str], kind: type[Any], columns: Sequence[str] = ()) -> Iterator[Any]:
    """Yield the rows of these folders with some columns, or with all, one file at a time."""
    schema = schema_of(kind, columns)
    return (read_table(files, file, schema) for folder in folders for file in data_files(files, folder))


def first_stored(files: Files, folder: str, kind: type[T]) -> T | None:
    """Return any row of a folder."""
    for file in data_files(files, folder):
        with parquet_reader(files, file) as opened:
            for batch in opened.iter_batches(1):
                return rows(kind, _completed(pa.Table.from_batches([batch]), arrow_schema(kind)))[0]
    return None


def sorted_rows(tables: Iterable[Any], kind: type[T]) -> Iterator[T]:
    """Yield the rows of these tables in order."""
    found = in_order(pa.concat_tables([arrow_schema(kind).empty_table(), *tables]))
    for batch in found.to_batches(max_chunksize=_SORTED_ROWS):
        yield from rows(kind, batch)


def in_order(found: Any) -> Any:
    """Sort by target as Spark does: null first, and texts by their bytes."""
    keys = [key for key in ORDER if key in found.column_names]
    filled = pa.table({key: _without_null(found.column(key)) for key in keys})
    return found.take(pc.sort_indices(filled, [(key, "ascending") for key in keys]))


def _without_null(column: Any) -> Any:
    return column.fill_null("" if pa.types.is_string(column.type) else -(2**63))
