"""Where a snapshot lies, and how it comes to be there whole or not at all.

    DEST/_unfinished/<time>-<random>/table=...       written here first, where no reader looks
    DEST/table=owners/snapshot=<time>/part-*.parquet
    DEST/table=members/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/_SUCCESS

Folders are moved into place one after the other, the offsets last, and `_SUCCESS` is made when all is done: a snapshot
is there when that file is. On a file system that renames, each folder also appears in one moment, so that whoever reads
`table=offsets` by other means sees no half of it either. An object store copies, and there the file alone decides.

Times are UTC with milliseconds, in a form that sorts, has no colon, and is taken for text by everybody.
"""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from .errors import translated
from .tables import Table

MARK: Final = "_SUCCESS"
UNFINISHED: Final = "_unfinished"
IN_ORDER: Final = (Table.OWNERS, Table.MEMBERS, Table.OFFSETS)
"""The order in which tables are written and moved into place."""

ABANDONED_AFTER: Final = timedelta(days=7)
"""What was not finished by then never will be."""

_FORMAT: Final = "%Y%m%dT%H%M%S"
_NAME: Final = re.compile(r"snapshot=([0-9]{8}T[0-9]{6}\.[0-9]{3}Z)")


def snapshot_name(at: datetime) -> str:
    """What a snapshot of that time is called.

    >>> snapshot_name(datetime(2026, 1, 31, 12, 0, 7, 5000, UTC))
    '20260131T120007.005Z'
    """
    utc = at.astimezone(UTC)
    return f"{utc:{_FORMAT}}.{utc.microsecond // 1000:03d}Z"


def snapshot_time(name: str) -> datetime:
    """The time in the name of a snapshot.

    >>> snapshot_time("20260131T120007.005Z").isoformat()
    '2026-01-31T12:00:07.005000+00:00'
    """
    return datetime.strptime(name, f"{_FORMAT}.%fZ").replace(tzinfo=UTC)


def java(spark: SparkSession) -> Any:
    """Java's side of a session, by which files are reached wherever Spark can write."""
    return spark.sparkContext._jvm


class Layout:
    """One destination, on whatever file system Spark writes to."""

    def __init__(self, spark: SparkSession, destination: str) -> None:
        self._jvm: Any = java(spark)
        with translated(f"{destination} cannot be used"):
            root = self._jvm.org.apache.hadoop.fs.Path(destination)
            self._files = root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
            self._root = self._files.makeQualified(root)

    def __str__(self) -> str:
        return str(self._root.toString())

    def snapshots(self) -> list[str]:
        """The names of the snapshots that are there, oldest first."""
        with translated(f"{self} cannot be read"):
            offsets = self._path(f"table={Table.OFFSETS}")
            found = self._files.listStatus(offsets) if self._files.exists(offsets) else ()
            names = (match[1] for each in found if (match := _NAME.fullmatch(each.getPath().getName())))
            return sorted(name for name in names if self.has(name))

    def has(self, name: str) -> bool:
        """Whether that snapshot is there."""
        return bool(self._files.exists(self._path(*_place(Table.OFFSETS, name), MARK)))

    def table(self, table: Table, name: str) -> str:
        """Where a table of a snapshot is."""
        return str(self._path(*_place(table, name)).toString())

    def begin(self, name: str) -> Unfinished:
        """Make room for a new snapshot, and throw away what was left lying long ago."""
        with translated(f"{self} cannot be written to"):
            self._throw_away_abandoned(snapshot_time(name) - ABANDONED_AFTER)
        return Unfinished(self, name)

    def _throw_away_abandoned(self, before: datetime) -> None:
        unfinished = self._path(UNFINISHED)
        for each in self._files.listStatus(unfinished) if self._files.exists(unfinished) else ():
            with suppress(ValueError):  # whatever is not named as ours is not ours
                if snapshot_time(each.getPath().getName().partition("-")[0]) < before:
                    self._files.delete(each.getPath(), True)

    def _path(self, *names: str) -> Any:
        path = self._root
        for name in names:
            path = self._jvm.org.apache.hadoop.fs.Path(path, name)
        return path


class Unfinished:
    """A snapshot that is being written."""

    def __init__(self, layout: Layout, name: str) -> None:
        self._layout = layout
        self._files = layout._files
        self.name = name
        self._folder = layout._path(UNFINISHED, f"{name}-{uuid.uuid4().hex[:8]}")

    def table(self, table: Table) -> str:
        """Where to write a table."""
        return str(self._layout._jvm.org.apache.hadoop.fs.Path(self._folder, f"table={table}").toString())

    def finish(self) -> None:
        """Move everything into place; the last step makes it a snapshot."""
        with translated(f"the snapshot could not be moved into {self._layout}"):
            for table in IN_ORDER:
                self._move(table)
            self._files.create(self._layout._path(*_place(Table.OFFSETS, self.name), MARK), False).close()
        self.discard()

    def _move(self, table: Table) -> None:
        target = self._layout._path(*_place(table, self.name))
        self._files.mkdirs(target.getParent())
        # A rename onto a folder that exists would move this one into it.
        if self._files.exists(target) or not self._files.rename(self._path(table), target):
            raise FileExistsError(str(target.toString()))

    def _path(self, table: Table) -> Any:
        return self._layout._jvm.org.apache.hadoop.fs.Path(self._folder, f"table={table}")

    def discard(self) -> None:
        """Throw away what is still here."""
        with suppress(Py4JJavaError):
            self._files.delete(self._folder, True)


def _place(table: Table, name: str) -> tuple[str, str]:
    return f"table={table}", f"snapshot={name}"
