"""The files of snapshots, and how a snapshot appears completely or not at all.

    DEST/_unfinished/<time>-<random>/table=...       written here first, where no reader looks
    DEST/table=owners/snapshot=<time>/part-*.parquet
    DEST/table=members/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/_SUMMARY.json       the counts and files of all tables: see `summary.py`
    DEST/table=offsets/snapshot=<time>/_SUCCESS

The folders are moved into place one after the other, the offsets last. The snapshot exists once `_SUCCESS` is created
at the end. On a file system with rename, each folder appears at once, so other readers of `table=offsets` see no
partial data either.

A failed run moves its folders back. A killed run leaves its folder in `_unfinished`, which shows that tables of that
time without a `_SUCCESS` belong to it. A run a week later deletes both.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from ...exceptions import DamagedFileError, NotFoundError, ZkgroupsException
from ...storage.atomic_folder import MARK, UNFINISHED
from ...storage.file_list import join_problems, missing_files
from ...storage.timestamps import TIMESTAMP, timestamp_text
from ..errors import translated
from ..source.table_versions import strict_reader, to_current_columns
from ..source.tables import Table
from ..storage.spark_folder import SparkFolder
from .summary import Summary

SUMMARY: Final = "_SUMMARY.json"
IN_ORDER: Final = (Table.OWNERS, Table.MEMBERS, Table.OFFSETS)
"""The order in which tables are written and moved into place."""

_IN_PLACE: Final = re.compile(f"snapshot=({TIMESTAMP})")


class Layout(SparkFolder):
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
        return bool(re.fullmatch(TIMESTAMP, name)) and self.is_complete(*_place(Table.OFFSETS, name))

    def no_snapshot(self, wanted: str = "") -> NotFoundError:
        """Return the error for a missing snapshot. `wanted` follows the word, e.g. " of a cluster"."""
        names = self.snapshots()
        cure = f"the oldest is {names[0]}, the latest {names[-1]}" if names else "write one with `zkgroups snapshot`"
        return NotFoundError(f"no snapshot{wanted} in {self}: {cure}")

    def started_names(self) -> list[str]:
        """Return the names with any table in place, complete or not, oldest first."""
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
        return self.path(*_place(table, name))

    def files(self, table: Table, name: str) -> dict[str, int]:
        """Return the files of a table with their lengths; empty if the table is missing."""
        return self.file_lengths(*_place(table, name))

    def summary(self, name: str) -> Summary | None:
        """Return the summary of a snapshot; None if it was written by an earlier version."""
        names = (*_place(Table.OFFSETS, name), SUMMARY)
        if not self.exists(*names):
            return None
        with translated(f"{self.path(*names)} cannot be read"):
            text = self.read_text(*names)
        try:
            return Summary.from_json(text)
        except ValueError as error:
            raise DamagedFileError(f"{self.path(*names)} cannot be read: {error}") from error

    def check_intact(self, table: Table, name: str, summary: Summary | None) -> None:
        """Raise DamagedFileError if a file of a table is missing or truncated; if all are, without a summary."""
        found = self.files(table, name)
        if summary is not None:
            problems = missing_files(found, summary.tables[table].files, of=f" of table={table}")
        else:
            problems = [] if found else [f"table={table} has no file"]
        if problems:
            shown = join_problems(problems)
            raise DamagedFileError(f"snapshot {name} in {self} is damaged: {shown}; restore it, or choose another one")

    def read_intact(self, table: Table, name: str) -> DataFrame:
        """Check the files of a table, and return its rows in the columns of this version."""
        self.check_intact(table, name, self.summary(name))
        return to_current_columns(self.read_as_written(table, name), table, f"snapshot {name} in {self}")

    def read_as_written(self, table: Table, name: str) -> DataFrame:
        """Return the rows of a table with the columns that it was written with."""
        with translated(f"snapshot {name} cannot be read"):
            return strict_reader(self._spark).parquet(self.table(table, name))

    # Writing

    def begin(self, at: datetime) -> UnfinishedSnapshot:
        """Create the folder for a new snapshot of this time, and delete abandoned ones.

        If another run started a snapshot in the same millisecond, choose a later time. Each run creates its folder
        before it checks, so that at least one of two runs sees the other.
        """
        with translated(f"{self} cannot be written to"):
            for name, folder in self.abandoned(at):
                UnfinishedSnapshot(self, name, folder, moved=IN_ORDER).discard()
            while True:
                name = timestamp_text(at)
                folder = self.make_staging_folder(name)
                if not self._is_taken(name, folder):
                    return UnfinishedSnapshot(self, name, folder)
                self.delete(UNFINISHED, folder)
                at += timedelta(milliseconds=random.randint(1, 50))

    def _is_taken(self, name: str, own_folder: str) -> bool:
        """Check staging folders first: a finishing run moves its tables before it deletes its folder."""
        if any(folder != own_folder and folder.startswith(f"{name}-") for folder in self.children(UNFINISHED)):
            return True
        return any(self.exists(*_place(table, name)) for table in IN_ORDER)


class UnfinishedSnapshot:
    """A snapshot that is being written, or was when its process died."""

    def __init__(self, layout: Layout, name: str, folder: str, *, moved: Sequence[Table] = ()) -> None:
        self.name = name
        self._layout = layout
        self._folder = folder
        self._moved = list(moved)

    def table(self, table: Table) -> str:
        """Return the path to write a table to."""
        return self._layout.path(*self._staged(table))

    def files(self, table: Table) -> dict[str, int]:
        """Return the written files of a table with their lengths."""
        return self._layout.file_lengths(*self._staged(table))

    def summarize(self, summary: Summary) -> None:
        """Write the summary beside the offsets."""
        names = (*self._staged(Table.OFFSETS), SUMMARY)
        with translated(f"{self._layout.path(*names)} could not be written"):
            self._layout.write_text(summary.to_json(), *names)

    def finish(self) -> None:
        """Move all tables into place, then mark the snapshot as complete."""
        with translated(f"the snapshot could not be moved into {self._layout}"):
            for table in IN_ORDER:
                self._move(table)
            self._layout.write_text("", *_place(Table.OFFSETS, self.name), MARK)
        self.discard()

    def _move(self, table: Table) -> None:
        place = _place(table, self.name)
        if self._layout.exists(*place):  # the folder would be moved into that one
            raise FileExistsError(f"{self._layout.path(*place)} already exists")
        self._moved.append(table)  # before the move, because an interrupted move may have succeeded
        self._layout.move(self._staged(table), place)

    def discard(self) -> None:
        """Delete the staging folder, with all tables that were moved, unless the snapshot is complete."""
        with suppress(ZkgroupsException, Py4JError, OSError):
            if not self._layout.has(self.name):
                for table in reversed(self._moved):
                    self._move_back(table)
        with suppress(Py4JError, OSError):
            self._layout.delete(UNFINISHED, self._folder)

    def _move_back(self, table: Table) -> None:
        """Move a table back before its deletion, because readers see it until it is moved."""
        if self._layout.exists(*_place(table, self.name)):
            self._layout.move(_place(table, self.name), self._staged(table))

    def _staged(self, table: Table) -> tuple[str, ...]:
        return UNFINISHED, self._folder, f"table={table}"


def _place(table: Table, name: str) -> tuple[str, str]:
    return f"table={table}", f"snapshot={name}"
