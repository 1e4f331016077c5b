"""The snapshots of a folder of this machine as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from ..core.tables import Table
from ..exceptions import DamagedFileError, StorageError
from ..storage.files import LocalFiles, join, local_path
from ..tables.arrow_schema import arrow_schema
from .clusters import ChosenSnapshot, choose_in_cluster
from .layout import SnapshotLayout

_RESTORE: Final = "restore it from a backup"


class ArrowLayout(SnapshotLayout):
    """The snapshots of one destination, as Arrow tables."""

    @classmethod
    def at(cls, destination: str) -> Self:
        """Return the layout of a folder. Raise NotFoundError if it does not exist."""
        layout = cls(LocalFiles(), destination)
        layout.check_exists()
        return layout

    def choose_in_cluster(
        self, at: str | None = None, *, cluster: str | None = None, address: str | None = None
    ) -> ChosenSnapshot:
        """Return the snapshot for `at`: see `clusters.py`."""
        return choose_in_cluster(self, self._clusters, at, cluster=cluster, address=address)

    def _clusters(self, name: str) -> set[str]:
        if (summary := self.summary(name)) is not None:
            return {summary.cluster}
        return set(pc.unique(self.read_intact(Table.OFFSETS, name).column("cluster")).to_pylist())

    def read_chosen(self, table: Table, at: str | None, cluster: str | None) -> Any:
        """Return a table of the snapshot for `at`, of this cluster if one is named."""
        if cluster is None:
            return self.read_intact(table, self.choose(at))
        return self.rows(table, self.choose_in_cluster(at, cluster=cluster))

    def rows(self, table: Table, choice: ChosenSnapshot) -> Any:
        """Return the rows of the chosen cluster."""
        found = self.read_intact(table, choice.name)
        if choice.cluster is not None:
            found = found.filter(pc.equal(found.column("cluster"), choice.cluster))
        return found

    def read_intact(self, table: Table, name: str) -> Any:
        """Check the files of a table, and return its rows in the columns of this version."""
        self.check_intact(table, name, self.summary(name))
        return to_current_columns(self.read_as_written(table, name), table, f"snapshot {name} in {self}")

    def count_rows(self, table: Table, name: str) -> dict[str, Any]:
        """Return the cluster, the number of rows, and the number of problems of a table of any version."""
        found = to_current_columns(self.read_as_written(table, name), table, f"snapshot {name} in {self}")
        problems = len(found) - found.column("problem").null_count
        return {"cluster": pc.max(found.column("cluster")).as_py(), "rows": len(found), "problems": problems}

    def read_as_written(self, table: Table, name: str) -> Any:
        """Return the rows of a table with the columns that it was written with."""
        folder = self.table(table, name)
        with arrow_errors(f"snapshot {name} cannot be read"):
            return pa.concat_tables(_read(join(folder, file)) for file in sorted(self.files(table, name)))


def _read(path: str) -> Any:
    file = str(local_path(path))
    try:
        with parquet.ParquetFile(file, page_checksum_verification=True) as opened:
            return opened.read().replace_schema_metadata(None)
    except (pa.ArrowException, OSError) as error:
        error.add_note(file)
        raise


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


def to_current_columns(found: Any, table: Table, origin: str) -> Any:
    """Convert a table to the columns of this version: missing ones become null, unknown ones are dropped."""
    columns = {field.name: _column(found, field, origin) for field in arrow_schema(table)}
    return pa.table(columns)


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
