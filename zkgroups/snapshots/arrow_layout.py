"""The snapshots of a folder of this machine as Arrow tables."""

from __future__ import annotations

from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from ..core.table_columns import COLUMNS
from ..core.tables import Table
from ..storage.files import LocalFiles, join
from ..tables.parquet_files import arrow_errors, read_parquet, to_columns
from .clusters import ChosenSnapshot, choose_in_cluster
from .layout import SnapshotLayout


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
            return pa.concat_tables(read_parquet(join(folder, file)) for file in sorted(self.files(table, name)))
