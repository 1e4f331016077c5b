"""Where a snapshot lies, and how it comes to be there whole or not at all.

    DEST/_unfinished/<time>-<random>/table=...       written here first, where no reader looks
    DEST/table=owners/snapshot=<time>/part-*.parquet
    DEST/table=members/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/_SUMMARY.json       what is in all of them: see `summary.py`
    DEST/table=offsets/snapshot=<time>/_SUCCESS

Folders are moved into place one after the other, the offsets last, and `_SUCCESS` is made when all is done: a snapshot
is there when that file is. On a file system that renames, each folder also appears in one moment, so that whoever reads
`table=offsets` by other means sees no half of it either. An object store copies, and there the file alone decides.

A run that fails takes back what it had moved. One that is killed leaves its folder in `_unfinished`, which says that
tables of that time without a `_SUCCESS` are its own: a later run throws all of it away, when it is a week old.

Times are UTC with milliseconds, in a form that sorts, has no colon, and is taken for text by everybody.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ...exceptions import DamagedFileError, NotFoundError
from ..errors import translated
from ..source.tables import Table
from ..storage.files import file_lengths, java, read_text, resolve, write_text
from .summary import Summary

MARK: Final = "_SUCCESS"
SUMMARY: Final = "_SUMMARY.json"
UNFINISHED: Final = "_unfinished"
IN_ORDER: Final = (Table.OWNERS, Table.MEMBERS, Table.OFFSETS)
"""The order in which tables are written and moved into place."""

ABANDONED_AFTER: Final = timedelta(days=7)
"""What was not finished by then never will be."""

_FORMAT: Final = "%Y%m%dT%H%M%S"
NAME: Final = r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z"
_IN_PLACE: Final = re.compile(f"snapshot=({NAME})")
_IN_UNFINISHED: Final = re.compile(f"({NAME})-[0-9a-f]{{8}}")


def snapshot_name(at: datetime) -> str:
    """What a snapshot of that time is called.

    >>> snapshot_name(datetime(2026, 1, 31, 12, 0, 7, 5000, UTC))
    '20260131T120007.005Z'
    >>> snapshot_name(datetime(206, 1, 31, tzinfo=UTC))
    '02060131T000000.000Z'
    """
    utc = at.astimezone(UTC)
    return f"{utc.year:04d}{utc:%m%dT%H%M%S}.{utc.microsecond // 1000:03d}Z"  # %Y has no zeros before it


def snapshot_time(name: str) -> datetime:
    """The time in the name of a snapshot.

    >>> snapshot_time("20260131T120007.005Z").isoformat()
    '2026-01-31T12:00:07.005000+00:00'
    """
    return datetime.strptime(name, f"{_FORMAT}.%fZ").replace(tzinfo=UTC)


class Layout:
    """One destination, on whatever file system Spark writes to."""

    def __init__(self, spark: SparkSession, destination: str) -> None:
        self._spark = spark
        self._jvm: Any = java(spark)
        self._files, self._root = resolve(spark, destination)

    def __str__(self) -> str:
        return str(self._root.toString())

    def check_exists(self) -> None:
        """Raise an error where there is no such folder."""
        with translated(f"{self} cannot be read"):
            if not self._files.isDirectory(self._root):
                raise NotFoundError(f"there is no folder {self}")

    def snapshots(self) -> list[str]:
        """The names of the snapshots that are there, oldest first."""
        return [name for name in self._names() if self.has(name)]

    def latest(self) -> str | None:
        """The name of the newest, if there is one."""
        return next(self.latest_first(), None)

    def latest_first(self) -> Iterator[str]:
        """The names of the snapshots, as far as somebody wants to know them."""
        return (name for name in reversed(self._names()) if self.has(name))

    def has(self, name: str) -> bool:
        """Whether that snapshot is there."""
        if not re.fullmatch(NAME, name):
            return False
        with translated(f"{self} cannot be read"):
            return bool(self._files.exists(self._path(*_place(Table.OFFSETS, name), MARK)))

    def _names(self) -> list[str]:
        """Those that are there, and those that may become so."""
        with translated(f"{self} cannot be read"):
            return sorted(match[1] for match in map(_IN_PLACE.fullmatch, self._list(f"table={Table.OFFSETS}")) if match)

    def table(self, table: Table, name: str) -> str:
        """Where a table of a snapshot is."""
        return str(self._path(*_place(table, name)).toString())

    def summary(self, name: str) -> Summary | None:
        """What a snapshot says of itself; None where it is of an earlier version, and says nothing."""
        path = self._path(*_place(Table.OFFSETS, name), SUMMARY)
        with translated(f"{path.toString()} cannot be read"):
            if not self._files.exists(path):
                return None
            text = read_text(self._spark, self._files, path)
        try:
            return Summary.from_json(text)
        except ValueError as error:
            raise DamagedFileError(f"{path.toString()} cannot be read: {error}") from error

    def files(self, table: Table, name: str) -> dict[str, int]:
        """The files of a table with their lengths; none where it is not there."""
        with translated(f"{self} cannot be read"):
            return file_lengths(self._files, self._path(*_place(table, name)))

    def started_names(self) -> list[str]:
        """The names that have something in place, whether or not it is a snapshot by now; oldest first."""
        with translated(f"{self} cannot be read"):
            found = [_IN_PLACE.fullmatch(each) for table in IN_ORDER for each in self._list(f"table={table}")]
            return sorted({match[1] for match in found if match})

    def unfinished(self) -> list[str]:
        """The names of those that are being written, or were when somebody died; oldest first."""
        with translated(f"{self} cannot be read"):
            found = map(_IN_UNFINISHED.fullmatch, self._list(UNFINISHED))
            return sorted({match[1] for match in found if match})

    def begin(self, at: datetime) -> UnfinishedSnapshot:
        """Make room for a new snapshot of this time, and throw away what was left lying long ago.

        Where another run has begun one in the same millisecond, it is of the next one that is free: each makes its
        folder before it looks, so that at least one of two sees the other.
        """
        with translated(f"{self} cannot be written to"):
            self._throw_away_abandoned(at - ABANDONED_AFTER)
            while True:
                name = snapshot_name(at)
                folder = f"{name}-{uuid.uuid4().hex[:8]}"
                if not self._files.mkdirs(self._path(UNFINISHED, folder)):
                    raise OSError("no folder can be made there")
                if not self._is_taken(name, folder):
                    return UnfinishedSnapshot(self, name, folder)
                self._files.delete(self._path(UNFINISHED, folder), True)
                at += timedelta(milliseconds=random.randint(1, 50))

    def _is_taken(self, name: str, mine: str) -> bool:
        """Folders first and tables second: who finishes moves its tables before its folder goes."""
        if any(each != mine and each.startswith(f"{name}-") for each in self._list(UNFINISHED)):
            return True
        return any(self._files.exists(self._path(*_place(table, name))) for table in IN_ORDER)

    def _throw_away_abandoned(self, before: datetime) -> None:
        for folder in self._list(UNFINISHED):
            if match := _IN_UNFINISHED.fullmatch(folder):  # whatever is not named as ours is not ours
                with suppress(ValueError):
                    if snapshot_time(match[1]) < before:
                        UnfinishedSnapshot(self, match[1], folder, moved=IN_ORDER).discard()

    def _list(self, name: str) -> list[str]:
        folder = self._path(name)
        found = self._files.listStatus(folder) if self._files.exists(folder) else ()
        return [each.getPath().getName() for each in found]

    def _path(self, *names: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, "/".join(names))


class UnfinishedSnapshot:
    """A snapshot that is being written, or was when somebody died."""

    def __init__(self, layout: Layout, name: str, folder: str, *, moved: Sequence[Table] = ()) -> None:
        self.name = name
        self._layout = layout
        self._files = layout._files
        self._folder = folder
        self._moved = list(moved)

    def table(self, table: Table) -> str:
        """Where to write a table."""
        return str(self._here(table).toString())

    def files(self, table: Table) -> dict[str, int]:
        """The files that were written of a table, with their lengths."""
        with translated(f"{self._here(table).toString()} cannot be read"):
            return file_lengths(self._files, self._here(table))

    def summarize(self, summary: Summary) -> None:
        """Write down what is in it, to be moved with the offsets."""
        path = self._layout._path(UNFINISHED, self._folder, f"table={Table.OFFSETS}", SUMMARY)
        with translated(f"{path.toString()} could not be written"):
            write_text(self._files, path, summary.to_json())

    def finish(self) -> None:
        """Move everything into place; the last step makes it a snapshot."""
        with translated(f"the snapshot could not be moved into {self._layout}"):
            for table in IN_ORDER:
                self._move(table)
            self._files.create(self._there(Table.OFFSETS, MARK), False).close()
        self.discard()

    def _move(self, table: Table) -> None:
        here, there = self._here(table), self._there(table)
        self._files.mkdirs(there.getParent())
        if self._files.exists(there):  # it would be moved into that folder
            raise FileExistsError(f"{there.toString()} is there already")
        self._moved.append(table)  # before it is: who is interrupted does not know
        if not self._files.rename(here, there):
            raise OSError(f"{here.toString()} was not renamed to {there.toString()}")

    def discard(self) -> None:
        """Throw away what is still here; and what was moved, unless all of it was and the snapshot is there."""
        with suppress(Py4JError, OSError):
            if not self._files.exists(self._there(Table.OFFSETS, MARK)):
                for table in reversed(self._moved):
                    self._take_back(table)
        with suppress(Py4JError, OSError):
            self._files.delete(self._layout._path(UNFINISHED, self._folder), True)

    def _take_back(self, table: Table) -> None:
        """Moved first and then deleted with all the rest, because it is seen until it is away."""
        if self._files.exists(self._there(table)):
            self._files.rename(self._there(table), self._here(table))

    def _here(self, table: Table) -> Any:
        return self._layout._path(UNFINISHED, self._folder, f"table={table}")

    def _there(self, table: Table, *names: str) -> Any:
        return self._layout._path(*_place(table, self.name), *names)


def _place(table: Table, name: str) -> tuple[str, str]:
    return f"table={table}", f"snapshot={name}"
