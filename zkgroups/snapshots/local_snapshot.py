"""Write a snapshot in this process, without Spark, to a folder of this machine. Spark can read it, and the reverse.

See `layout.py` for the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from ..core.selection import Selection
from ..core.table_columns import COLUMNS, columns_json
from ..core.tables import Table
from ..storage.files import LocalFiles, join, local_path
from ..storage.snapshot_folder import IN_ORDER
from ..tables import data_dir_reader
from ..tables.arrow_schema import arrow_schema
from ..tables.source_options import SourceOptions
from ..tables.table_reader import TableReader
from .digest import digest
from .layout import SnapshotLayout, UnfinishedSnapshot
from .snapshot import Snapshot, WrittenTable, as_options, begin, begin_connected, write_snapshot

_FILE: Final = "part-00000.snappy.parquet"
_ROWS: Final = 250_000
"""The rows of a row group, which are in memory together."""

_SPARK_COLUMNS: Final = "org.apache.spark.sql.parquet.row.metadata"
"""The key under which Spark looks for the comments of the columns."""

Batches: TypeAlias = Callable[[SourceOptions], Iterable[Any]]
"""Reads a table as Arrow batches."""


def take_snapshot(
    destination: str, source: SourceOptions | str, *, on_progress: Callable[[str], None] | None = None
) -> Snapshot:
    """Read all offsets, owners and members, and write them to a new snapshot in a folder of this machine."""
    layout = SnapshotLayout(LocalFiles(), destination)
    source = replace(as_options(source), parallelism=1)
    told = on_progress or (lambda _step: None)
    if source.files is None:
        with source.connect() as registry:
            registry.sync()
            start = begin_connected(registry, source)
            reader = TableReader(registry, Selection(source.groups, source.topics))
            return write_snapshot(layout, start, partial(_write_all, source, reader.read), told)
    start = begin(source)
    return write_snapshot(layout, start, partial(_write_all, start.source, _from_files), told)


def _from_files(source: SourceOptions) -> Iterator[Any]:
    assert source.files is not None
    state = data_dir_reader.find_state(source.files, source.zxid)
    return data_dir_reader.read_batches(source, Selection(source.groups, source.topics), state)


def _write_all(source: SourceOptions, read: Batches, unfinished: UnfinishedSnapshot) -> Mapping[Table, WrittenTable]:
    files = LocalFiles()
    written = {}
    for table in IN_ORDER:
        path = unfinished.table(table)
        with files.translated(f"the table {table} could not be written"):
            files.make_folder(path)
            written[table] = write_table(table, read(replace(source, table=table)), join(path, _FILE))
    return written


def write_table(table: Table, batches: Iterable[Any], path: str) -> WrittenTable:
    """Write a table to one file, and count its rows."""
    columns = columns_json(COLUMNS[table])
    schema = arrow_schema(table)
    rows = problems = forbidden = 0
    digests = 0
    options = {"compression": "snappy", "store_schema": False, "write_page_checksum": True}
    with closing(parquet.ParquetWriter(str(local_path(path)), schema, **options)) as file:
        for each in _row_groups(batches):
            file.write_table(each)
            problem = each.column("problem")
            rows += len(each)
            problems += len(each) - problem.null_count
            forbidden += pc.sum(pc.and_(pc.is_valid(problem), pc.is_null(each.column("raw")))).as_py() or 0
            digests ^= int(digest(each.to_batches()), 16)
        file.add_key_value_metadata({_SPARK_COLUMNS: columns})
    return WrittenTable(rows, problems, forbidden, f"{digests:X}", columns)


def _row_groups(batches: Iterable[Any]) -> Iterator[Any]:
    """Join batches to tables of about `_ROWS` rows."""
    together: list[Any] = []
    for batch in batches:
        together.append(batch)
        if sum(map(len, together)) >= _ROWS:
            yield pa.Table.from_batches(together).combine_chunks()
            together = []
    if together:
        yield pa.Table.from_batches(together).combine_chunks()
