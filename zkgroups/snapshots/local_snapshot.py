"""Write a snapshot in this process, without Spark, to a folder of this machine. Spark can read it, and the reverse.

See `layout.py` for the files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core.selection import Selection
from ..core.table_columns import COLUMNS, ColumnType, Table, TableColumn, columns_json
from ..storage.files import LocalFiles, join
from ..storage.snapshot_folder import IN_ORDER, SnapshotFolder
from ..tables import data_dir_reader
from ..tables.parquet_files import FILE_NAME, arrow_errors, parquet_writer, read_parquet, read_row_groups, to_columns
from ..tables.source_options import SourceOptions
from ..tables.table_reader import TableReader, with_log_ends
from .layout import ChosenSnapshot, SnapshotLayout, SnapshotReader, UnfinishedSnapshot
from .snapshot import Snapshot, TableCounts, WrittenTable, as_options, begin, begin_connected, write_snapshot

# The snapshots of a destination as Arrow tables.


_SNAPSHOT: Final = TableColumn("snapshot", ColumnType.STRING, "the name of the snapshot", nullable=False)


class ArrowLayout(SnapshotReader):
    """The snapshots of one destination, as Arrow tables."""

    @classmethod
    def at(cls, destination: str) -> Self:
        """Return the layout of a folder of this machine. Raise NotFoundError if it does not exist."""
        layout = cls(LocalFiles(), destination)
        layout.check_exists()
        return layout

    @classmethod
    def of(cls, folder: SnapshotFolder) -> Self:
        """Return the layout of the same folder."""
        return cls(folder.file_system, str(folder))

    def offsets(self, names: Sequence[str], columns: Sequence[str], groups: Collection[str] | None = None) -> Any:
        wanted = [each for each in COLUMNS[Table.OFFSETS] if each.name in columns]
        found = [to_columns(pa.table({"snapshot": pa.array([], pa.string())}), (*wanted, _SNAPSHOT), "nothing")]
        for name in names:
            folder = self.table(Table.OFFSETS, name)
            with arrow_errors(f"snapshot {name} cannot be read"):
                for file in sorted(self.files(Table.OFFSETS, name)):
                    for rows in read_row_groups(self._files, join(folder, file), wanted, groups=groups):
                        found.append(rows.append_column("snapshot", pa.repeat(name, len(rows))))
        return pa.concat_tables(found)

    def read_chosen(self, table: Table, at: str | None, cluster: str | None) -> Any:
        """Return a table of the snapshot for `at`, of this cluster if one is named."""
        if cluster is None:
            return self.read_intact(table, self.choose(at))
        return self.rows(table, self.choose_in_cluster(at, cluster=cluster))

    def rows(self, table: Table, choice: ChosenSnapshot) -> Any:
        """Return the rows of the chosen cluster."""
        found = self.read_intact(table, choice.name)
        if choice.cluster is None:
            return found
        is_of_cluster = pc.equal(found.column("cluster"), choice.cluster)
        return found if pc.all(is_of_cluster).as_py() else found.filter(is_of_cluster)

    def read_intact(self, table: Table, name: str) -> Any:
        """Check the files of a table, and return its rows in the columns of this version."""
        self.check_intact(table, name, self.summary(name))
        return to_columns(self.read_as_written(table, name), COLUMNS[table], f"snapshot {name} in {self}")

    def count_rows(self, table: Table, name: str) -> dict[str, Any]:
        """Return the cluster, the number of rows, and the number of problems of a table of any version."""
        found = to_columns(self.read_as_written(table, name), COLUMNS[table], f"snapshot {name} in {self}")
        problems = len(found) - found.column("problem").null_count
        return {"cluster": pc.max(found.column("cluster")).as_py(), "rows": len(found), "problems": problems}

    def read_as_written(self, table: Table, name: str) -> Any:
        """Return the rows of a table with the columns that it was written with."""
        folder = self.table(table, name)
        with arrow_errors(f"snapshot {name} cannot be read"):
            names = sorted(self.files(table, name))
            return pa.concat_tables(read_parquet(self._files, join(folder, file)) for file in names)


_ROWS: Final = 250_000
"""The rows of a row group, which are in memory together."""

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
            return write_snapshot(layout, start, partial(_write_all, start.source, reader.read), told)
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
            of_table = replace(source, table=table)
            batches = with_log_ends(iter(read(of_table)), of_table)
            written[table] = write_table(table, batches, join(path, FILE_NAME.format(0)))
    return written


def write_table(table: Table, batches: Iterable[Any], path: str) -> WrittenTable:
    """Write a table to one file, and count its rows."""
    columns = COLUMNS[table]
    counts = TableCounts()
    with parquet_writer(LocalFiles(), path, columns) as file:
        for each in _row_groups(batches):
            file.write_table(each)
            counts += TableCounts.of(each)
    return WrittenTable(counts, columns_json(columns))


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
