"""The snapshots of a destination: each appears completely or not at all. Write, list and choose them."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from ..core.layouts.legacy import LEGACY
from ..core.table_columns import Table
from ..exceptions import InvalidOptionError, SparkJobError, StorageError, ZkgroupsException
from ..storage.atomic_folder import MARK, UNFINISHED
from ..storage.files import parse_timestamp, timestamp_text
from ..storage.snapshot_folder import (
    IN_ORDER,
    LATEST,
    PREVIOUS,
    SUMMARY,
    SnapshotFolder,
    Summary,
    find_snapshot,
    is_name,
    place,
)

# Writing snapshots: each appears completely or not at all. `storage/snapshot_folder.py` finds and checks them.
#
#     DEST/_unfinished/<time>-<random>/table=...       written here first, where no reader looks
#     DEST/table=owners/snapshot=<time>/part-*.parquet
#     DEST/table=members/snapshot=<time>/part-*.parquet
#     DEST/table=offsets/snapshot=<time>/part-*.parquet
#     DEST/table=offsets/snapshot=<time>/_SUMMARY.json       the counts and files of all tables: see
#     `snapshot_folder.py`
#     DEST/table=offsets/snapshot=<time>/_SUCCESS
#
# The folders are moved into place one after the other, the offsets last. The snapshot exists once `_SUCCESS` is
# created at the end. On a file system with rename, each folder appears at once, so other readers of `table=offsets`
# see no partial data either.
#
# A failed run moves its folders back. A killed run leaves its folder in `_unfinished`. A run a week later deletes
# that folder, and the tables of the same time that have no `_SUCCESS`.


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


# List the snapshots of a destination, with the counts from their summaries.
#
# Snapshots of earlier versions have no summary, so their rows are counted. The number of groups is then unknown,
# because groups without rows count, too.


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """A snapshot with its start time, cluster and counts; None if unknown.

    `problems` is the number of rows for unreadable nodes. `size` is the size of the files in bytes. `lag` is the sum of
    the known lags, and `unknown_lags` the number of offsets whose lag is unknown; None for a snapshot without log ends.
    """

    name: str
    time: datetime
    cluster: str | None
    groups: int | None
    offsets: int | None
    owners: int | None
    members: int | None
    problems: int | None
    size: int
    zxid: int | None = None
    """The zxid of the state, if it was read from files."""
    lag: int | None = None
    unknown_lags: int | None = None


def listing(layout: SnapshotFolder) -> list[ListedSnapshot]:
    """Return the snapshots of a destination, oldest first. Raise NotFoundError if it does not exist."""
    layout.check_exists()
    return [
        _without_summary(layout, name) if summary is None else _with_summary(name, summary)
        for name, summary in ((name, _summary(layout, name)) for name in layout.snapshots())
    ]


def _summary(layout: SnapshotFolder, name: str) -> Summary | None:
    with suppress(SparkJobError, StorageError):  # a damaged summary must not prevent a listing: see `verify.py`
        return layout.summary(name)
    return None


def _with_summary(name: str, summary: Summary) -> ListedSnapshot:
    tables = summary.tables
    return ListedSnapshot(
        name,
        parse_timestamp(name),
        summary.cluster,
        summary.groups,
        offsets=tables[Table.OFFSETS].rows,
        owners=tables[Table.OWNERS].rows,
        members=tables[Table.MEMBERS].rows,
        problems=sum(each.problems for each in tables.values()),
        size=sum(sum(each.files.values()) for each in tables.values()),
        zxid=summary.zxid,
        lag=None if summary.lag is None else summary.lag.total,
        unknown_lags=None if summary.lag is None else summary.lag.unknown,
    )


def _without_summary(layout: SnapshotFolder, name: str) -> ListedSnapshot:
    from .local_snapshot import ArrowLayout  # importing Arrow takes longer than reading summaries

    reader = ArrowLayout.of(layout)
    files = {table: layout.files(table, name) for table in Table}
    counts: dict[Table, Mapping[str, Any]] = {}
    for table in (table for table, found in files.items() if found):
        with suppress(SparkJobError, StorageError):
            counts[table] = reader.count_rows(table, name)
    rows = {table: counts[table]["rows"] if table in counts else None for table in Table}
    return ListedSnapshot(
        name,
        parse_timestamp(name),
        cluster=next((each["cluster"] for each in counts.values() if each["cluster"] is not None), None),
        groups=None,
        offsets=rows[Table.OFFSETS],
        owners=rows[Table.OWNERS],
        members=rows[Table.MEMBERS],
        problems=sum(each["problems"] for each in counts.values()) if len(counts) == len(Table) else None,
        size=sum(sum(each.values()) for each in files.values()),
    )


# Read snapshots whatever reads their files, and choose one of a cluster when a destination holds those of several.


@dataclass(frozen=True, slots=True)
class ChosenSnapshot:
    """One snapshot of one cluster. The cluster is None for an empty snapshot of an earlier version."""

    destination: str
    name: str
    cluster: str | None
    zxid: int | None = None
    """The zxid of the state, if it was read from files."""
    has_log_ends: bool = False
    layout: str = LEGACY.text

    def __str__(self) -> str:
        return f"snapshot {self.name} in {self.destination}"


@dataclass(frozen=True, slots=True)
class SnapshotPair:
    """Two snapshots of one cluster to compare."""

    before: ChosenSnapshot
    after: ChosenSnapshot

    @property
    def without_log_ends(self) -> list[ChosenSnapshot]:
        """Those of the two without log ends, so that no lag is known."""
        return [each for each in (self.before, self.after) if not each.has_log_ends]


class SnapshotReader(SnapshotLayout):
    """The snapshots of one destination, whose offsets can be read."""

    @abstractmethod
    def offsets(self, names: Sequence[str], columns: Sequence[str], groups: Collection[str] | None = None) -> Any:
        """Return these columns of the offsets of several snapshots of any version, as an Arrow table.

        It has the column `snapshot`, too, with the name of the snapshot. With `groups`, only their rows are read.
        """

    def choose_in_cluster(
        self, at: str | None = None, *, cluster: str | None = None, address: str | None = None
    ) -> ChosenSnapshot:
        """Return the snapshot for `at` (see `snapshot_folder.py`), of this cluster or else of the one at the address.

        If the destination holds no snapshot of the address, all snapshots must belong to one cluster.
        """
        text = LATEST if at is None else at.strip()
        self.check_exists()
        wanted = address if cluster is None else cluster
        clusters = cache(self._clusters)
        if name := find_snapshot(self.latest_first(), text, lambda name: wanted in clusters(name)):
            return self._choice(name, wanted)
        name = find_snapshot(self.latest_first(), text)
        # A name identifies one snapshot. A time selects within one cluster, whose snapshots may all be later.
        names = [name] if name is None or is_name(text) else self.latest_first()
        there = {each for name in names if name is not None for each in clusters(name)}
        if name is None or cluster is not None or wanted in there:
            of = f" of {wanted}" if cluster is not None or wanted in there else ""
            raise self.no_snapshot(f"{f' {at}' if at else ''}{of}")
        if len(there) > 1:
            raise InvalidOptionError(
                "cluster", None, f"{self} holds snapshots of {', '.join(sorted(there))}: choose one"
            )
        return self._choice(name, next(iter(there), None))

    def choose_pair(
        self, before: str = PREVIOUS, after: str = LATEST, *, cluster: str | None = None, address: str | None = None
    ) -> SnapshotPair:
        """Choose two snapshots of the named cluster, or of the one at the address, or of the only one."""
        last = self.choose_in_cluster(after, cluster=cluster, address=address)
        return SnapshotPair(self.choose_in_cluster(before, cluster=cluster or last.cluster), last)

    def _clusters(self, name: str) -> set[str]:
        """Return the clusters in a snapshot: one, or none if it is empty and of an earlier version."""
        if (summary := self.summary(name)) is not None:
            return {summary.cluster}
        self.check_intact(Table.OFFSETS, name, None)
        return set(self.offsets([name], ["cluster"]).column("cluster").unique().to_pylist())

    def _choice(self, name: str, cluster: str | None) -> ChosenSnapshot:
        summary = self.summary(name)
        if summary is None:
            return ChosenSnapshot(str(self), name, cluster)
        return ChosenSnapshot(str(self), name, cluster, summary.zxid, summary.lag is not None, summary.layout)

    def outdated(self, before: datetime, on_damaged: Callable[[ZkgroupsException], object]) -> list[str]:
        """Return the names of the snapshots from before this time, oldest first, without the latest of each cluster.

        Remains of killed runs count as snapshots, but not what a run is still writing. A snapshot whose cluster cannot
        be read is left out: `on_damaged` gets the error.
        """
        limit, written = timestamp_text(before), set(self.unfinished())  # before the names: it may finish meanwhile
        complete, seen = set(self.snapshots()), set[str]()
        found = [name for name in self.started_names() if name not in complete | written]
        for name in sorted(complete, reverse=True):
            try:
                clusters = self._clusters(name)
            except ZkgroupsException as error:
                on_damaged(error)
                continue
            if seen and clusters <= seen:
                found.append(name)
            seen |= clusters
        return sorted(name for name in found if name < limit)

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot. Readers stop finding it at once: it begins with the mark."""
        with self.translated(f"snapshot {name} in {self} could not be deleted"):
            self.delete(*place(Table.OFFSETS, name), MARK)
            for table in reversed(IN_ORDER):
                self.delete(*place(table, name))

    def unfinished_after(self, choice: ChosenSnapshot) -> list[str]:
        """Return the names of later snapshots that are incomplete, and so could not be chosen."""
        return [name for name in self.started_names() if name > choice.name and not self.has(name)]
