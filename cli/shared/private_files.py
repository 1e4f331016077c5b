"""Files that hold state of the user: complete or not there at all, and readable only by the user.

A file is written under a random name beside its target, saved on the disk, and then given its name. So a symbolic link
that another user has put at the target is never followed.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from zkgroups.exceptions import RefusedError, StorageError

from .parameter_types import usage_error

_PREFIX = ".zkgroups-"


def create_file(file: Path, lines: Iterable[str]) -> None:
    """Write a new file. Raise FileExistsError if there is one, also if it is a broken link."""
    with _scratch(file) as (scratch, out):
        out.writelines(lines)
        _save(out)
        try:
            os.link(scratch, file)
        except FileExistsError:
            raise
        except OSError:  # this file system has no hard links
            file.touch(mode=0o600, exist_ok=False)
            scratch.replace(file)
    sync_folder(file)


def replace_file(file: Path, text: str, *, or_shorten: bool = False) -> None:
    """Write a file, or replace it and keep its permissions.

    With `or_shorten`, an existing file that is longer is overwritten where it is if the disk is full.
    """
    try:
        _replace(file, text)
    except OSError as error:
        if not or_shorten or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "r+", encoding="utf-8", newline="\n") as out:
            out.write(text)
            out.flush()
            out.truncate()
            _save(out)


def _replace(file: Path, text: str) -> None:
    with _scratch(file) as (scratch, out):
        out.write(text)
        with suppress(FileNotFoundError):
            found = file.lstat().st_mode
            if stat.S_ISREG(found):
                os.fchmod(out.fileno(), stat.S_IMODE(found))
        _save(out)
        scratch.replace(file)
    sync_folder(file)


def sync_folder(file: Path) -> None:
    """Make the name of a new file durable: `fsync` of the file alone saves only its contents."""
    descriptor = os.open(file.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold the lock of this file during the block."""
    import fcntl

    with os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_private_folder(folder: Path) -> None:
    """Create a folder that only the user can open, with those above it."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(0o700, exist_ok=True)


@contextmanager
def _scratch(file: Path) -> Iterator[tuple[Path, IO[str]]]:
    descriptor, name = tempfile.mkstemp(prefix=_PREFIX, dir=file.absolute().parent)
    scratch = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as out:
            yield scratch, out
    finally:
        scratch.unlink(missing_ok=True)


def _save(out: IO[str]) -> None:
    out.flush()
    os.fsync(out.fileno())


# New files that save offsets before they are changed: complete and on the disk, or not there at all.


def file_exists(file: Path) -> RefusedError:
    """Return the error for a file that must be new."""
    return RefusedError(f"{file} already exists and is not overwritten: choose another name")


def write_new_file(file: Path, lines: Iterable[str]) -> None:
    """Write lines to a new file, and return only when it is on the disk. After an error it does not exist."""
    try:
        create_file(file, (f"{line}\n" for line in lines))
    except FileExistsError as error:
        raise file_exists(file) from error
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise usage_error(f"{file}: {error.strerror}") from error
    except OSError as error:
        raise StorageError(f"{file} could not be written: {error.strerror}; no offset was changed") from error
