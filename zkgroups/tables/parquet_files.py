"""Parquet files on any file system, as Spark writes and reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from ..core.table_columns import TableColumn, columns_json
from ..exceptions import DamagedFileError, StorageError
from ..storage.files import Files, local_path
from .arrow import arrow_schema

FILE_NAME: Final = "part-{:05d}.snappy.parquet"
"""The name of a file in a folder, by its number."""

_SPARK_COLUMNS: Final = "org.apache.spark.sql.parquet.row.metadata"
"""The key under which Spark looks for the comments of the columns."""

_RESTORE: Final = "restore it from a backup"


@contextmanager
def parquet_writer(files: Files, path: str, columns: Sequence[TableColumn]) -> Iterator[Any]:
    """Create a file with these columns, and yield its writer."""
    options = {"compression": "snappy", "store_schema": False, "write_page_checksum": True}
    with (
        files.writable(path) as here,
        closing(parquet.ParquetWriter(here, arrow_schema(columns), **options)) as writer,
    ):
        yield writer
        writer.add_key_value_metadata({_SPARK_COLUMNS: columns_json(columns)})


@contextmanager
def parquet_reader(files: Files, path: str) -> Iterator[Any]:
    """Open a file. An error of Arrow gets the name of the file as a note: see `arrow_errors`."""
    try:
        with (
            files.readable(path) as here,
            parquet.ParquetFile(here, page_checksum_verification=True) as opened,
        ):
            yield opened
    except (pa.ArrowException, OSError) as error:
        error.add_note(str(local_path(path) or path))
        raise


def read_parquet(files: Files, path: str, columns: Collection[str] | None = None) -> Any:
    """Return all rows of a file, with these columns as far as it has them, or with all."""
    with parquet_reader(files, path) as file:
        there = file.schema_arrow.names
        wanted = None if columns is None else [name for name in there if name in columns]
        return file.read(wanted).replace_schema_metadata(None)


def read_row_groups(
    files: Files,
    path: str,
    columns: Sequence[TableColumn],
    *,
    groups: Collection[str] | None = None,
    latest_first: bool = False,
) -> Iterator[Any]:
    """Yield these columns of a file of any version, some rows at a time; with `groups`, only the rows of these groups.

    Parts of the file that have no such rows are not read.
    """
    names = {each.name for each in columns} | {"group"}
    with parquet_reader(files, path) as file:
        wanted = [name for name in file.schema_arrow.names if name in names]
        numbers = range(file.num_row_groups)
        for number in reversed(numbers) if latest_first else numbers:
            if groups is None or _may_have(file.metadata.row_group(number), groups):
                found = file.read_row_group(number, wanted).replace_schema_metadata(None)
                if groups is not None:
                    found = found.filter(pc.is_in(found.column("group"), value_set=pa.array(groups, pa.string())))
                yield to_columns(found, columns, path)


def _may_have(part: Any, groups: Collection[str]) -> bool:
    """Return whether a part of a file may have rows of one of these groups, by the first and the last name in it."""
    for each in map(part.column, range(part.num_columns)):
        if each.path_in_schema == "group" and (found := each.statistics) is not None and found.has_min_max:
            return any(found.min <= group <= found.max for group in groups)
    return True


@contextmanager
def arrow_errors(failure: str) -> Iterator[None]:
    """Convert errors of the file system and of Arrow; `failure` begins the new message."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"{failure}: {error}") from error
        file = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
        raise DamagedFileError(f"{failure} because a file is damaged: {file}{error}; {_RESTORE}") from error


def to_columns(found: Any, columns: Sequence[TableColumn], origin: str) -> Any:
    """Convert a table to these columns: missing ones become null, others are dropped. Errors name the `origin`."""
    return pa.table({field.name: _column(found, field, origin) for field in arrow_schema(columns)})


def _column(found: Any, wanted: Any, origin: str) -> Any:
    if wanted.name not in found.column_names:
        return pa.nulls(len(found), wanted.type)
    column = found.column(wanted.name)
    kinds = (column.type, wanted.type)
    if column.type == wanted.type or kinds == (pa.int64(), pa.int32()):
        return column  # a later version may use a wider type
    if kinds == (pa.int32(), pa.int64()) or all(map(pa.types.is_timestamp, kinds)) or all(map(pa.types.is_map, kinds)):
        return column.cast(wanted.type)
    raise DamagedFileError(
        f"{origin} has a column {wanted.name} of type {column.type}, not {wanted.type}: the files were changed, or "
        "written by a later version of zkgroups"
    )
