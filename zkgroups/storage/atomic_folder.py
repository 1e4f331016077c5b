"""A folder on any file system, whose subfolders appear completely or not at all.

    DEST/_unfinished/<time>-<random>/     written here first, where no reader looks
    DEST/<folder>/part-*.parquet
    DEST/<folder>/_SUCCESS                lists the files, see `files.py`

A subfolder is renamed into place, and exists for readers once it has a `_SUCCESS`. An object store copies instead of
renaming, so only that mark counts. `write_list` stores the list of files under another name, which `publish` renames to
`_SUCCESS`: so the mark never appears without the list. Folders of earlier versions have an empty mark, and
their files are not checked. Folders of killed runs remain in `_unfinished` until a run a week later deletes them.

Methods that write raise errors of the file system. Callers convert them with `translated`.
"""

from __future__ import annotations

import os
import random
import re
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timedelta
from typing import Final

from ..exceptions import DamagedFileError, NotFoundError, RefusedError
from ..input_errors import ZkgroupsException
from .files import (
    TIMESTAMP,
    FileList,
    Files,
    added_files,
    join,
    join_problems,
    missing_files,
    parse_timestamp,
    timestamp_text,
)

MARK: Final = "_SUCCESS"
UNFINISHED: Final = "_unfinished"
ABANDONED_AFTER: Final = timedelta(days=7)

_LIST: Final = "_FILES.json"
"""The list of files, before it is renamed to the mark."""

_REPLACEMENT: Final = ".new"
"""The suffix of a small file that is about to replace an older one."""

_STAGED: Final = re.compile(f"({TIMESTAMP})-[0-9a-f]{{8}}")


def write_list(files: Files, path: str, rows: int) -> None:
    """Write the list of the files in a new folder. `publish` needs it."""
    files.write_text(join(path, _LIST), FileList(rows, files.lengths(path)).to_json())


class AtomicFolder:
    """A folder; all names are relative to it."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._root = files.resolve(folder)

    def __str__(self) -> str:
        return self._root

    @property
    def file_system(self) -> Files:
        """Where the folder is."""
        return self._files

    def path(self, *names: str) -> str:
        """Return the full path of a file or folder."""
        return join(self._root, *names) if names else self._root

    def local_path(self) -> str | None:
        """Return the path on the local disk; None on another file system."""
        return self._files.local_path(self._root)

    def translated(self, failure: str) -> AbstractContextManager[None]:
        """Convert errors of the file system; `failure` begins the new message."""
        return self._files.translated(failure)

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The errors of the file system, which methods that write raise."""
        return self._files.errors

    def check_exists(self) -> None:
        """Raise NotFoundError if the folder does not exist."""
        with self.translated(f"{self} cannot be read"):
            if not self._files.is_folder(self._root):
                raise NotFoundError(f"the folder {self} does not exist")

    def children(self, *names: str) -> list[str]:
        """Return the names in a folder; empty if it does not exist."""
        with self.translated(f"{self} cannot be read"):
            return self._files.names(self.path(*names))

    def exists(self, *names: str) -> bool:
        """Return whether a file or folder exists."""
        with self.translated(f"{self} cannot be read"):
            return self._files.exists(self.path(*names))

    def is_complete(self, *names: str) -> bool:
        """Return whether a folder exists and is completely written."""
        return self.exists(*names, MARK)

    def file_lengths(self, *names: str) -> dict[str, int]:
        """Return the lengths of the data files in a folder; empty if it does not exist."""
        with self.translated(f"{self.path(*names)} cannot be read"):
            return self._files.lengths(self.path(*names))

    def read_text(self, *names: str) -> str:
        """Read a small file. Errors of the file system are not converted."""
        return self._files.read_text(self.path(*names))

    def check_files(self, *names: str, cure: str) -> FileList | None:
        """Raise DamagedFileError, with advice on the `cure`, unless the files of a folder are those of its list.

        Returns the list, or None if an earlier version wrote the folder.
        """
        path = self.path(*names)
        with self.translated(f"{path} cannot be read"):
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

    # Writing folders

    @contextmanager
    def staging(self, at: datetime) -> Iterator[str]:
        """Yield the path of a new folder to write. At the end of the block, delete what was not published."""
        with self.translated(f"{self} cannot be written to"):
            for _time, folder in self.abandoned(at):
                self.delete(UNFINISHED, folder)
            folder = self.make_staging_folder(timestamp_text(at))
        try:
            yield self.path(UNFINISHED, folder, "rows")  # not the folder itself: Spark requires a new one
        finally:
            with suppress(*self._files.errors):
                self.delete(UNFINISHED, folder)

    def delete_unused(self) -> None:
        """Delete `_unfinished` if it is empty. Call this only if no other run uses the folder."""
        with suppress(*self._files.errors):
            if not self._files.names(self.path(UNFINISHED)):
                self.delete(UNFINISHED)

    def make_staging_folder(self, time: str) -> str:
        """Create a folder in `_unfinished`, and return its name."""
        folder = f"{time}-{uuid.uuid4().hex[:8]}"
        self._files.make_folder(self.path(UNFINISHED, folder))
        return folder

    def check_space(self, staged: str, size: int) -> None:
        """Write and delete a file beside a staged folder, to detect a full disk before the work begins."""
        probe = f"{staged}-probe"
        self._files.write_text(probe, " " * size)
        self._files.delete(probe)

    def write_staged(self, text: str, staged: str, name: str) -> None:
        """Write a small file to a staged folder."""
        self._files.write_text(join(staged, name), text)

    def staged(self) -> list[tuple[str, str]]:
        """Return the times and names of the folders in `_unfinished`. Names of another form are ignored."""
        found = map(_STAGED.fullmatch, self.children(UNFINISHED))
        return sorted((match[1], match[0]) for match in found if match)

    def abandoned(self, now: datetime) -> list[tuple[str, str]]:
        """Return the times and names of the folders in `_unfinished` that were left by killed runs."""
        found = []
        for begun, folder in self.staged():
            with suppress(ValueError):  # an impossible date
                if parse_timestamp(begun) < now - ABANDONED_AFTER:
                    found.append((begun, folder))
        return found

    def publish(self, staged: str, *names: str) -> None:
        """Move a folder with its list of files into place, and mark it as complete. Replaces an existing one."""
        self.delete_folder(*names)
        self._files.move(staged, self.path(*names))
        self._files.move(self.path(*names, _LIST), self.path(*names, MARK))

    def delete_folder(self, *names: str) -> None:
        """Delete the mark of a folder first, because the other files may be deleted in any order."""
        self.delete(*names, MARK)
        self.delete(*names)

    # Writing files

    def write_text(self, text: str, *names: str) -> None:
        """Write a new small file."""
        self._files.write_text(self.path(*names), text)

    def replace_text(self, text: str, *names: str) -> None:
        """Replace a small file. If the run is killed, `read_replaceable` returns either the old or the new text.

        Not every file system can rename to an existing name. So the old file is deleted after its replacement is
        complete.
        """
        path, staged = self.path(*names), self.path(UNFINISHED, uuid.uuid4().hex)
        replacement = f"{path}{_REPLACEMENT}"
        self._files.write_text(staged, text)
        if not self._files.exists(path) and self._files.exists(replacement):  # a run was killed before its last step
            self._files.move(replacement, path)
        self._files.delete(replacement)
        self._files.move(staged, replacement)
        self._files.delete(path)
        self._files.move(replacement, path)

    def read_replaceable(self, *names: str) -> str:
        """Read a small file that `replace_text` writes."""
        with self.translated(f"{self.path(*names)} cannot be read"):
            return self._files.read_text(self._current(*names) or self.path(*names))

    def exists_replaceable(self, *names: str) -> bool:
        """Return whether a small file that `replace_text` writes exists."""
        with self.translated(f"{self.path(*names)} cannot be read"):
            return self._current(*names) is not None

    def _current(self, *names: str) -> str | None:
        path = self.path(*names)
        for each in (path, f"{path}{_REPLACEMENT}", path):  # it may have been renamed between the first two checks
            if self._files.exists(each):
                return each
        return None

    def move(self, here: Sequence[str], there: Sequence[str]) -> None:
        """Rename a file or folder to a name that does not exist."""
        self._files.move(self.path(*here), self.path(*there))

    def delete(self, *names: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""
        self._files.delete(self.path(*names))


# A lock for the moment in which files are moved into a folder, on any file system.
#
#     DEST/_unfinished/publishing-<random>-<process>-<host>
#
# Each run creates its file before it looks for those of other runs. So of two runs at least one sees the other,
# deletes its own file, and tries again. A run that was killed leaves its file. Runs on the same host see that its
# process has ended, and delete it. A run on another host cannot see this, and refuses to go on after some time.


_PATIENCE: Final = 30.0
"""In seconds. Moving files takes milliseconds on a disk, and seconds on an object store."""

_NAME: Final = re.compile("publishing-[0-9a-f]{8}-([0-9]+)-(.*)", re.DOTALL)


@contextmanager
def publishing(folder: AtomicFolder, patience: float = _PATIENCE) -> Iterator[None]:
    """Run the block while no other run is in such a block for this folder."""
    own = f"publishing-{uuid.uuid4().hex[:8]}-{os.getpid()}-{socket.gethostname()}"
    _take(folder, own, time.monotonic() + patience)
    try:
        yield
    finally:
        with suppress(ZkgroupsException), folder.translated(f"{folder} cannot be written to"):
            folder.delete(UNFINISHED, own)


def _take(folder: AtomicFolder, own: str, until: float) -> None:
    while True:
        with folder.translated(f"{folder} cannot be written to"):
            folder.write_text("", UNFINISHED, own)
            others = [name for name in folder.children(UNFINISHED) if _NAME.fullmatch(name) and name != own]
            living = [name for name in others if not _has_ended(name)]
            if not living:
                for name in others:
                    folder.delete(UNFINISHED, name)
                return
            folder.delete(UNFINISHED, own)
        if time.monotonic() > until:
            raise RefusedError(
                f"another run is moving its files into {folder}: wait until it has ended. If no run is active, it was "
                f"killed: delete {folder.path(UNFINISHED, living[0])}"
            )
        time.sleep(random.uniform(0.01, 0.2))  # noqa: S311 -- not a secret


def _has_ended(name: str) -> bool:
    """Return whether the run of this name was a process on this host that has ended."""
    found = _NAME.fullmatch(name)
    if found is None or found[2] != socket.gethostname():
        return False
    try:
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False
