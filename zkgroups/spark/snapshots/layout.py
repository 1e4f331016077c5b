"""The snapshots of a destination as tables of Spark. `zkgroups/snapshots/layout.py` describes the files."""

from __future__ import annotations

from pyspark.sql import DataFrame

from ...core.tables import Table
from ...snapshots.layout import SnapshotLayout
from ..errors import translated
from ..source.table_versions import strict_reader, to_current_columns
from ..storage.spark_folder import SparkFolder


class Layout(SparkFolder, SnapshotLayout):
    """The snapshots of one destination, as tables of Spark."""

    def read_intact(self, table: Table, name: str) -> DataFrame:
        """Check the files of a table, and return its rows in the columns of this version."""
        self.check_intact(table, name, self.summary(name))
        return to_current_columns(self.read_as_written(table, name), table, f"snapshot {name} in {self}")

    def read_as_written(self, table: Table, name: str) -> DataFrame:
        """Return the rows of a table with the columns that it was written with."""
        with translated(f"snapshot {name} cannot be read"):
            return strict_reader(self._spark).parquet(self.table(table, name))
