"""Snapshots that are read only where all of their files are there."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from ...exceptions import DamagedFileError
from ..layout import Layout
from ..summary import Summary
from ..tables import Table
from ..versions import as_it_is, as_today


def whole(spark: SparkSession, layout: Layout, table: Table, name: str) -> DataFrame:
    """A table of a snapshot, in the columns of this version; an error if a file of it is not there, or was cut."""
    check_whole(layout, table, name, layout.summary(name))
    return as_today(as_it_is(spark, layout, table, name), table)


def check_whole(layout: Layout, table: Table, name: str, summary: Summary | None) -> None:
    """Raise an error if a file of a table is not as it was written."""
    if missing := lost_files(layout, table, name, summary):
        raise DamagedFileError(f"snapshot {name} in {layout} is not whole: {'; '.join(missing)}")


def lost_files(layout: Layout, table: Table, name: str, summary: Summary | None) -> list[str]:
    """What is said of files that are not as they were written; nothing of a snapshot that has no summary."""
    there = layout.files(table, name)
    if summary is None:
        return [] if there else [f"table={table} has no file"]
    written = summary.tables[table].files
    gone = [f"{file} of table={table} is missing" for file in written if file not in there]
    cut = [
        f"{file} of table={table} has {there[file]} bytes, not {length}"
        for file, length in written.items()
        if there.get(file, length) != length
    ]
    return gone + cut
