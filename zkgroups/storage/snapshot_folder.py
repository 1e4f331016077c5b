"""Reading the folder of snapshots: their names, their files and their summaries.

    DEST/table=owners/snapshot=<time>/part-*.parquet
    DEST/table=members/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/_SUMMARY.json       the counts and files of all tables: see `snapshot_summary.py`
    DEST/table=offsets/snapshot=<time>/_SUCCESS

A snapshot exists once it has `_SUCCESS`. `zkgroups/snapshots/layout.py` writes snapshots.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ..core.tables import Table
from ..exceptions import DamagedFileError, NotFoundError
from .atomic_folder import AtomicFolder
from .choose_snapshot import LATEST, find_snapshot
from .file_list import join_problems, missing_files
from .snapshot_summary import Summary
from .timestamps import TIMESTAMP

SUMMARY: Final = "_SUMMARY.json"
IN_ORDER: Final = (Table.OWNERS, Table.MEMBERS, Table.OFFSETS)
"""The order in which tables are written and moved into place."""

_IN_PLACE: Final = re.compile(f"snapshot=({TIMESTAMP})")


class SnapshotFolder(AtomicFolder):
    """The snapshots of one destination."""

    # Snapshots

    def snapshots(self) -> list[str]:
        """Return the names of the complete snapshots, oldest first."""
        return [name for name in self._names(Table.OFFSETS) if self.has(name)]

    def latest(self) -> str | None:
        """Return the name of the latest snapshot, if any."""
        return next(self.latest_first(), None)

    def latest_first(self) -> Iterator[str]:
        """Iterate lazily over the names of the snapshots, latest first."""
        return (name for name in reversed(self._names(Table.OFFSETS)) if self.has(name))

    def has(self, name: str) -> bool:
        """Return whether a complete snapshot has this name."""
        return bool(re.fullmatch(TIMESTAMP, name)) and self.is_complete(*place(Table.OFFSETS, name))

    def choose(self, at: str | None = None) -> str:
        """Return the name of the snapshot that `at` means (see `choose_snapshot.py`); the latest by default."""
        found = find_snapshot(self.latest_first(), LATEST if at is None else at.strip())
        if found is None:
            raise self.no_snapshot(f" {at}" if at else "")
        return found

    def no_snapshot(self, wanted: str = "") -> NotFoundError:
        """Return the error for a missing snapshot. `wanted` follows "no snapshot", e.g. " of a cluster"."""
        names = self.snapshots()
        cure = f"the oldest is {names[0]}, the latest {names[-1]}" if names else "write one with `zkgroups snapshot`"
        return NotFoundError(f"no snapshot{wanted} in {self}: {cure}")

    def started_names(self) -> list[str]:
        """Return the names of which at least one table is in place, complete or not; oldest first."""
        return sorted({name for table in IN_ORDER for name in self._names(table)})

    def unfinished(self) -> list[str]:
        """Return the names of snapshots that are being written, or were when their process died; oldest first."""
        return sorted({time for time, _folder in self.staged()})

    def _names(self, table: Table) -> list[str]:
        matches = map(_IN_PLACE.fullmatch, self.children(f"table={table}"))
        return sorted(match[1] for match in matches if match)

    # Tables

    def table(self, table: Table, name: str) -> str:
        """Return the path of a table of the named snapshot."""
        return self.path(*place(table, name))

    def files(self, table: Table, name: str) -> dict[str, int]:
        """Return the files of a table with their lengths; empty if the table is missing."""
        return self.file_lengths(*place(table, name))

    def summary(self, name: str) -> Summary | None:
        """Return the summary of a snapshot; None if it was written by an earlier version."""
        names = (*place(Table.OFFSETS, name), SUMMARY)
        if not self.exists(*names):
            return None
        with self.translated(f"{self.path(*names)} cannot be read"):
            text = self.read_text(*names)
        try:
            return Summary.from_json(text)
        except ValueError as error:
            cure = "restore it from a backup, or choose another snapshot"
            raise DamagedFileError(f"{self.path(*names)} cannot be read: {error}; {cure}") from error

    def check_intact(self, table: Table, name: str, summary: Summary | None) -> None:
        """Raise DamagedFileError if a file is missing or truncated. Without a summary, check that any file exists."""
        found = self.files(table, name)
        if summary is not None:
            problems = missing_files(found, summary.tables[table].files, of=f" of table={table}")
        else:
            problems = [] if found else [f"table={table} has no file"]
        if problems:
            shown = join_problems(problems)
            raise DamagedFileError(f"snapshot {name} in {self} is damaged: {shown}; restore it, or choose another one")


def place(table: Table, name: str) -> tuple[str, str]:
    """Return the folders of a table of the named snapshot."""
    return f"table={table}", f"snapshot={name}"
