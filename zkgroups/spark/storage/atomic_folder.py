"""A folder on any Hadoop file system, whose subfolders appear completely or not at all.

    DEST/_unfinished/<time>-<random>/     written here first, where no reader looks
    DEST/<folder>/part-*.parquet
    DEST/<folder>/_SUCCESS                lists the files, see `file_list.py`

A subfolder is renamed into place, and exists for readers once it has a `_SUCCESS`. An object store copies instead of
renaming, so only that mark counts. `write_and_list` stores the list of files under another name, which `publish`
renames to `_SUCCESS`: so the mark never appears without the list. Folders of earlier versions have an empty mark, and
their files are not checked. Folders of killed runs remain in `_unfinished` until a run a week later deletes them.

Methods that write raise errors of the file system. Callers convert them with `translated`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from ...exceptions import DamagedFileError, NotFoundError
from ..errors import translated
from ..pyspark_internals import hadoop_path, literal_paths
from .file_list import FileList, added_files, join_problems, missing_files
from .files import file_lengths, read_text, resolve, write_text
from .timestamps import TIMESTAMP, parse_timestamp, timestamp_text
from .writing import ROWS, write

MARK: Final = "_SUCCESS"
UNFINISHED: Final = "_unfinished"
ABANDONED_AFTER: Final = timedelta(days=7)

_LIST: Final = "_FILES.json"
"""The list of files, before it is renamed to the mark."""

_REPLACEMENT: Final = ".new"
"""The suffix of a small file that is about to replace an older one."""

_STAGED: Final = re.compile(f"({TIMESTAMP})-[0-9a-f]{{8}}")


def write_and_list(rows: DataFrame, path: str, *counts: Column, without: str = "") -> dict[str, Any]:
    """Write rows as `write` does, and add the list of files that `publish` needs."""
    found = write(rows, path, *counts, without=without)
    files, folder = resolve(rows.sparkSession, path)
    listed = FileList(int(found[ROWS] or 0), file_lengths(files, folder))
    write_text(files, hadoop_path(rows.sparkSession, folder, _LIST), listed.to_json())
    return found


class AtomicFolder:
    """A folder; all names are relative to it."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._files, self._root = resolve(spark, folder)

    def __str__(self) -> str:
        return str(self._root.toString())

    def path(self, *names: str) -> str:
        """Return the full path of a file or folder."""
        return str(self._path(*names).toString())

    def local_path(self) -> str | None:
        """Return the path on the local file system, if the destination is there."""
        uri = self._root.toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    def _path(self, *names: str) -> Any:
        path = self._root
        for name in names:
            path = hadoop_path(self._spark, path, name)
        return path

    # Reading

    def check_exists(self) -> None:
        """Raise NotFoundError if the folder does not exist."""
        with translated(f"{self} cannot be read"):
            if not self._files.isDirectory(self._root):
                raise NotFoundError(f"the folder {self} does not exist")

    def children(self, *names: str) -> list[str]:
        """Return the names in a folder; empty if it does not exist."""
        folder = self._path(*names)
        with translated(f"{self} cannot be read"):
            found = self._files.listStatus(folder) if self._files.exists(folder) else ()
            return [str(each.getPath().getName()) for each in found]

    def exists(self, *names: str) -> bool:
        """Return whether a file or folder exists."""
        with translated(f"{self} cannot be read"):
            return bool(self._files.exists(self._path(*names)))

    def is_complete(self, *names: str) -> bool:
        """Return whether a folder exists and is completely written."""
        return self.exists(*names, MARK)

    def file_lengths(self, *names: str) -> dict[str, int]:
        """Return the lengths of the data files in a folder; empty if it does not exist."""
        with translated(f"{self.path(*names)} cannot be read"):
            return file_lengths(self._files, self._path(*names))

    def read_text(self, *names: str) -> str:
        """Read a small file. Errors of the file system are not converted."""
        return read_text(self._spark, self._files, self._path(*names))

    def check_files(self, *names: str, cure: str) -> FileList | None:
        """Raise DamagedFileError, with advice on the `cure`, unless the files of a folder are those of its list.

        Returns the list, or None if an earlier version wrote the folder.
        """
        path = self.path(*names)
        with translated(f"{path} cannot be read"):
            text = self.read_text(*names, MARK)
        found = self.file_lengths(*names)
        if not text:
            return None
        try:
            listed = FileList.from_json(text)
        except ValueError as error:
            raise DamagedFileError(f"{path}/{MARK} is damaged ({error}): {cure}") from error
        if problems := missing_files(found, listed.files) + added_files(found, listed.files):
            raise DamagedFileError(f"{path} is damaged: {join_problems(problems)}: {cure}")
        return listed

    def read_folders(self, folders: Sequence[Sequence[str]], schema: StructType, cure: str) -> DataFrame:
        """Check the files of complete folders, and read their rows."""
        if not folders:
            return self._spark.createDataFrame([], schema)
        for names in folders:
            self.check_files(*names, cure=cure)
        with translated(f"{self} cannot be read"):  # with a schema, because inferring one needs a job
            reader = literal_paths(self._spark.read.schema(schema))
            return reader.parquet(*(self.path(*names) for names in folders))

    # Writing folders

    @contextmanager
    def staging(self, at: datetime) -> Iterator[str]:
        """Yield the path of a new folder to write. At the end of the block, delete what was not published."""
        with translated(f"{self} cannot be written to"):
            for _time, folder in self.abandoned(at):
                self.delete(UNFINISHED, folder)
            folder = self.make_staging_folder(timestamp_text(at))
        try:
            yield self.path(UNFINISHED, folder, "rows")  # not the folder itself: Spark requires a new one
        finally:
            with suppress(Py4JError, OSError):
                self.delete(UNFINISHED, folder)

    def make_staging_folder(self, time: str) -> str:
        """Create a folder in `_unfinished`, and return its name."""
        folder = f"{time}-{uuid.uuid4().hex[:8]}"
        if not self._files.mkdirs(self._path(UNFINISHED, folder)):
            raise OSError("the folder could not be created")
        return folder

    def check_space(self, staged: str, size: int) -> None:
        """Write and delete a file beside a staged folder, to detect a full disk before the work begins."""
        probe = hadoop_path(self._spark, f"{staged}-probe")
        write_text(self._files, probe, " " * size)
        self._files.delete(probe, False)

    def write_staged(self, text: str, staged: str, name: str) -> None:
        """Write a small file to a staged folder."""
        write_text(self._files, hadoop_path(self._spark, staged, name), text)

    def staged(self) -> list[tuple[str, str]]:
        """Return the times and names of the folders in `_unfinished`. Names of another form are ignored."""
        found = map(_STAGED.fullmatch, self.children(UNFINISHED))
        return sorted((match[1], match[0]) for match in found if match)

    def abandoned(self, now: datetime) -> list[tuple[str, str]]:
        """Return the times and names of the folders in `_unfinished` that were left by killed runs."""
        found = []
        for time, folder in self.staged():
            with suppress(ValueError):  # an impossible date
                if parse_timestamp(time) < now - ABANDONED_AFTER:
                    found.append((time, folder))
        return found

    def publish(self, staged: str, *names: str) -> None:
        """Move a folder written by `write_and_list` into place, and mark it as complete. Replaces an existing one."""
        self.delete_folder(*names)
        folder = self._path(*names)
        self._move(hadoop_path(self._spark, staged), folder)
        self._move(self._path(*names, _LIST), self._path(*names, MARK))

    def delete_folder(self, *names: str) -> None:
        """Delete the mark of a folder first, because the other files may be deleted in any order."""
        self.delete(*names, MARK)
        self.delete(*names)

    # Writing files

    def write_text(self, text: str, *names: str) -> None:
        """Write a new small file."""
        write_text(self._files, self._path(*names), text)

    def replace_text(self, text: str, *names: str) -> None:
        """Replace a small file. If the run is killed, `read_replaced` returns either the old or the new text.

        Not every file system can rename to an existing name. So the old file is deleted after its replacement is
        complete.
        """
        path, staged = self._path(*names), self._path(UNFINISHED, uuid.uuid4().hex)
        replacement = path.suffix(_REPLACEMENT)
        write_text(self._files, staged, text)
        if not self._files.exists(path) and self._files.exists(replacement):  # a run was killed before its last step
            self._move(replacement, path)
        self._files.delete(replacement, False)
        self._move(staged, replacement)
        self._files.delete(path, False)
        self._move(replacement, path)

    def read_replaced(self, *names: str) -> str:
        """Read a small file that `replace_text` writes."""
        with translated(f"{self.path(*names)} cannot be read"):
            return read_text(self._spark, self._files, self._replaced(*names) or self._path(*names))

    def exists_replaced(self, *names: str) -> bool:
        """Return whether a small file that `replace_text` writes exists."""
        with translated(f"{self.path(*names)} cannot be read"):
            return self._replaced(*names) is not None

    def _replaced(self, *names: str) -> Any:
        path = self._path(*names)
        for each in (path, path.suffix(_REPLACEMENT), path):  # it may have been renamed between the first two checks
            if self._files.exists(each):
                return each
        return None

    def move(self, here: Sequence[str], there: Sequence[str]) -> None:
        """Rename a file or folder to a name that does not exist."""
        self._move(self._path(*here), self._path(*there))

    def _move(self, here: Any, there: Any) -> None:
        self._files.mkdirs(there.getParent())
        if not self._files.rename(here, there):
            raise OSError(f"{here.toString()} was not renamed to {there.toString()}")

    def delete(self, *names: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""
        self._files.delete(self._path(*names), True)
