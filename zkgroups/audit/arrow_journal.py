"""The rows of an audit on the disk of this machine, as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from ..core.audit_columns import COMMITS, STANDING
from ..core.table_columns import TableColumn
from ..storage.atomic_folder import write_list
from ..storage.files import LocalFiles, join
from ..tables.arrow_schema import arrow_schema
from ..tables.parquet_files import FILE_NAME, arrow_errors, parquet_reader, parquet_writer, read_parquet, to_columns
from .journal import COMMITS as COMMITS_FOLDER
from .journal import CURE, Journal
from .pieces import Piece

_ROWS_OF_A_FILE: Final = 1_000_000


class ArrowJournal(Journal):
    """The folder of one audit, with its rows as Arrow tables."""

    @classmethod
    def at(cls, destination: str) -> Self:
        """Return the journal of a folder of this machine."""
        return cls(LocalFiles(), destination)

    # Reading

    def read(self, pieces: Iterable[Piece]) -> Any:
        """Return the commits of pieces, after a check that their files are there."""
        return self._read([(COMMITS_FOLDER, piece.name) for piece in pieces], COMMITS)

    def latest_first(self, piece: Piece, columns: Sequence[TableColumn]) -> Iterator[Any]:
        """Yield these columns of a piece, latest first, some rows at a time: it may hold nearly the whole audit."""
        with arrow_errors(f"{self} cannot be read"):
            for file in reversed(self._files_of((COMMITS_FOLDER, piece.name))):
                yield from _row_groups(file, columns, latest_first=True)

    def count(self) -> int:
        """Return the number of recorded commits, from the lists of files."""
        lists = [self.check_files(COMMITS_FOLDER, piece.name, cure=CURE) for piece in self.pieces()]
        return sum(each.rows for each in lists if each is not None)

    def known(self, first: int) -> Iterator[Any]:
        """Yield the last commits of all partitions, latest first, without those before the batch `first`.

        A partition may be in several of these tables. In each, its later rows come first.
        """
        for names in self.known_folders():
            found = self._read([names], STANDING)
            found = found.filter(pc.greater_equal(found.column("batch"), first))
            yield found.sort_by([("batch", "descending")])

    def _read(self, folders: Sequence[tuple[str, str]], columns: Sequence[TableColumn]) -> Any:
        files = list(chain.from_iterable(map(self._files_of, folders)))
        names = {each.name for each in columns}
        with arrow_errors(f"{self} cannot be read"):
            tables = [to_columns(read_parquet(file, names), columns, file) for file in files]
        return pa.concat_tables(tables) if tables else arrow_schema(columns).empty_table()

    def _files_of(self, names: tuple[str, str]) -> list[str]:
        """Check a complete folder, and return its files."""
        self.check_files(*names, cure=CURE)
        return [self.path(*names, file) for file in sorted(self.file_lengths(*names))]

    # Writing

    def write_commits(self, rows: Any, piece: Piece) -> None:
        """Add a piece."""
        with self.new_piece(piece) as path:
            _write(path, COMMITS, [rows])

    def write_standing(self, rows: Any, batch: int) -> None:
        """Add the last commit of each partition."""
        with self.new_standing(batch) as path:
            _write(path, STANDING, [rows])

    def merge(self, pieces: Sequence[Piece], into: Piece) -> None:
        """Copy the commits of pieces to another one, some at a time."""
        files = [file for piece in pieces for file in self._files_of((COMMITS_FOLDER, piece.name))]
        with self.new_piece(into) as path, arrow_errors(f"{self} cannot be read"):
            _write(path, COMMITS, chain.from_iterable(_row_groups(file, COMMITS) for file in files))


def _row_groups(file: str, columns: Sequence[TableColumn], *, latest_first: bool = False) -> Iterator[Any]:
    names = {each.name for each in columns}
    with parquet_reader(file) as opened:
        wanted = [name for name in opened.schema_arrow.names if name in names]
        numbers = range(opened.num_row_groups)
        for number in reversed(numbers) if latest_first else numbers:
            found = opened.read_row_group(number, wanted)
            yield to_columns(found.replace_schema_metadata(None), columns, file)


def _write(path: str, columns: Sequence[TableColumn], tables: Iterable[Any]) -> None:
    """Write tables to files of a new folder, and list them."""
    files = LocalFiles()
    files.make_folder(path)
    rows = 0
    left = iter(tables)
    for number, table in enumerate(left):
        in_file = 0
        with parquet_writer(join(path, FILE_NAME.format(number)), columns) as file:
            for each in chain([table], left):
                file.write_table(each)
                in_file += len(each)
                if in_file >= _ROWS_OF_A_FILE:
                    break
        rows += in_file
    write_list(files, path, rows)
