"""Writing snapshots: each appears completely or not at all. `storage/snapshot_folder.py` finds and checks them.

    DEST/_unfinished/<time>-<random>/table=...       written here first, where no reader looks
    DEST/table=owners/snapshot=<time>/part-*.parquet
    DEST/table=members/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/_SUMMARY.json       the counts and files of all tables: see `snapshot_summary.py`
    DEST/table=offsets/snapshot=<time>/_SUCCESS

The folders are moved into place one after the other, the offsets last. The snapshot exists once `_SUCCESS` is created
at the end. On a file system with rename, each folder appears at once, so other readers of `table=offsets` see no
partial data either.

A failed run moves its folders back. A killed run leaves its folder in `_unfinished`. A run a week later deletes that
folder, and the tables of the same time that have no `_SUCCESS`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from ..core.tables import Table
from ..exceptions import ZkgroupsException
from ..storage.atomic_folder import MARK, UNFINISHED
from ..storage.snapshot_folder import IN_ORDER, SUMMARY, SnapshotFolder, place
from ..storage.snapshot_summary import Summary
from ..storage.timestamps import timestamp_text


class SnapshotLayout(SnapshotFolder):
    """The snapshots of one destination, and those that are being written."""

    def begin(self, at: datetime) -> UnfinishedSnapshot:
        """Create the folder for a new snapshot of this time, and delete abandoned ones.

        If another run started a snapshot in the same millisecond, choose a later time. Each run creates its folder
        before it checks, so that at least one of two runs sees the other.
        """
        with self.translated(f"{self} cannot be written to"):
            for name, folder in self.abandoned(at):
                UnfinishedSnapshot(self, name, folder, moved=IN_ORDER).discard()
            while True:
                name = timestamp_text(at)
                folder = self.make_staging_folder(name)
                if not self._is_taken(name, folder):
                    return UnfinishedSnapshot(self, name, folder)
                self.delete(UNFINISHED, folder)
                at += timedelta(milliseconds=random.randint(1, 50))  # noqa: S311 -- not a secret

    def _is_taken(self, name: str, own_folder: str) -> bool:
        """Check staging folders first: a finishing run moves its tables before it deletes its folder."""
        if any(folder != own_folder and folder.startswith(f"{name}-") for folder in self.children(UNFINISHED)):
            return True
        return any(self.exists(*place(table, name)) for table in IN_ORDER)


class UnfinishedSnapshot:
    """A snapshot that is being written, or was when its process died."""

    def __init__(self, layout: SnapshotLayout, name: str, folder: str, *, moved: Sequence[Table] = ()) -> None:
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
        with self._layout.translated(f"{self._layout.path(*names)} could not be written"):
            self._layout.write_text(summary.to_json(), *names)

    def finish(self) -> None:
        """Move all tables into place, then mark the snapshot as complete."""
        with self._layout.translated(f"the snapshot could not be moved into {self._layout}"):
            for table in IN_ORDER:
                self._move(table)
            self._layout.write_text("", *place(Table.OFFSETS, self.name), MARK)
        self.discard()

    def _move(self, table: Table) -> None:
        there = place(table, self.name)
        if self._layout.exists(*there):  # the folder would be moved into that one
            raise FileExistsError(f"{self._layout.path(*there)} already exists")
        self._moved.append(table)  # before the move, because an interrupted move may have succeeded
        self._layout.move(self._staged(table), there)

    def discard(self) -> None:
        """Delete the staging folder, with all tables that were moved, unless the snapshot is complete."""
        with suppress(ZkgroupsException, *self._layout.errors):
            if not self._layout.has(self.name):
                for table in reversed(self._moved):
                    self._move_back(table)
        with suppress(*self._layout.errors):
            self._layout.delete(UNFINISHED, self._folder)

    def _move_back(self, table: Table) -> None:
        """Move a table back before its deletion, because readers see it until it is moved."""
        if self._layout.exists(*place(table, self.name)):
            self._layout.delete(*self._staged(table))  # an interrupted move has copied some files of an object store
            self._layout.move(place(table, self.name), self._staged(table))

    def _staged(self, table: Table) -> tuple[str, ...]:
        return UNFINISHED, self._folder, f"table={table}"
