"""Read only what is complete: every file is there, with the length that it was written with.

A snapshot lists its files in its `_SUMMARY.json`. Every other folder that Spark writes here (a plan, a report, a piece
of an audit) has the list in its `_SUCCESS`, with the number of rows. `write_and_list` puts the list into the folder
under another name, and `mark_written` renames it when the folder is in its place, so that the mark is never seen
without its list. Folders of earlier versions have an empty mark: for them only the mark is checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession

from ...exceptions import DamagedFileError
from ..errors import translated
from ..snapshots.layout import MARK, Layout
from ..snapshots.summary import Summary
from ..source.table_versions import read_as_written, to_current_columns
from ..source.tables import Table
from .files import file_lengths, java, read_text, resolve, write_text
from .writing import ROWS, write

_LIST: Final = "_FILES.json"
"""The list of files, before it is renamed to the mark."""

_SHOWN: Final = 5
"""How many files to name in an error."""


# Snapshots


def read_intact(spark: SparkSession, layout: Layout, table: Table, name: str) -> DataFrame:
    """A table of a snapshot, in the columns of this version; an error if a file of it is not there, or was cut."""
    check_intact(layout, table, name, layout.summary(name))
    return to_current_columns(read_as_written(spark, layout, table, name), table)


def check_intact(layout: Layout, table: Table, name: str, summary: Summary | None) -> None:
    """Raise an error if a file of a table is not as it was written."""
    if lost := _lost_files(layout, table, name, summary):
        raise DamagedFileError(f"snapshot {name} in {layout} is not whole: {_told(lost)}")


def _lost_files(layout: Layout, table: Table, name: str, summary: Summary | None) -> list[str]:
    """Describe the files that are missing or cut. A snapshot without a summary must only have some file."""
    there = layout.files(table, name)
    if summary is None:
        return [] if there else [f"table={table} has no file"]
    return _lost(there, summary.tables[table].files, of=f" of table={table}")


def _lost(there: Mapping[str, int], written: Mapping[str, int], of: str = "") -> list[str]:
    """Describe the files that are missing, or do not have the length that they were written with."""
    gone = [f"{file}{of} is missing" for file in written if file not in there]
    cut = [
        f"{file}{of} has {there[file]} bytes, not {length}"
        for file, length in written.items()
        if there.get(file, length) != length
    ]
    return gone + cut


def _told(faults: list[str]) -> str:
    more = len(faults) - _SHOWN
    return "; ".join(faults[:_SHOWN] + [f"and {more} more"] * (more > 0))


# Other folders


@dataclass(frozen=True, slots=True)
class FileList:
    """The contents of a folder: the number of its rows, and its files with their lengths."""

    rows: int
    files: Mapping[str, int]

    def to_json(self) -> str:
        """The text of the list."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> FileList:
        """The list in a text; ValueError if the text is not a list of files."""
        try:
            fields: dict[str, Any] = json.loads(text)
            return cls(int(fields["rows"]), {str(name): int(length) for name, length in fields["files"].items()})
        except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a list of files: {error!r}") from error


def write_and_list(rows: DataFrame, path: str, *counts: Column, without: str = "") -> dict[str, Any]:
    """Write rows as `write` does, and add the list of files, for `mark_written`."""
    found = write(rows, path, *counts, without=without)
    files, folder = resolve(rows.sparkSession, path)
    listed = FileList(int(found[ROWS] or 0), file_lengths(files, folder))
    write_text(files, _child(rows.sparkSession, folder, _LIST), listed.to_json())
    return found


def mark_written(spark: SparkSession, files: Any, folder: Any) -> None:
    """Make a folder count that is in its place: its list becomes its `_SUCCESS`."""
    if not files.rename(_child(spark, folder, _LIST), _child(spark, folder, MARK)):
        raise OSError(f"{folder.toString()} could not be marked as written")


def check_written(spark: SparkSession, files: Any, folder: Any, cure: str) -> FileList | None:
    """Raise an error unless the files of a marked folder are those of its list; `cure` says what to do then.

    Returns the list, or None if an earlier version wrote the folder.
    """
    path, mark = str(folder.toString()), _child(spark, folder, MARK)
    with translated(f"{path} cannot be read"):
        text, there = read_text(spark, files, mark), file_lengths(files, folder)
    if not text:
        return None
    try:
        written = FileList.from_json(text)
    except ValueError as error:
        raise DamagedFileError(f"{mark.toString()} is damaged ({error}): {cure}") from error
    added = [f"{file} was not written with it" for file in there if file not in written.files]
    if faults := _lost(there, written.files) + added:
        raise DamagedFileError(f"{path} is not as it was written: {_told(faults)}: {cure}")
    return written


def _child(spark: SparkSession, folder: Any, name: str) -> Any:
    return java(spark).org.apache.hadoop.fs.Path(folder, name)
