"""List the files of a data directory: snapshots of the tree and transaction logs, each named after a zxid.

    DIR/version-2/snapshot.<zxid>      also .gz or .snappy: the tree, written while it may have changed
    DIR/version-2/log.<zxid>           the transactions from that zxid on, up to the next file

The logs may be in another directory (`dataLogDir`). Either directory may be given as `version-2` itself.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from ..exceptions import NotFoundError

VERSION: Final = "version-2"

_SNAPSHOT: Final = re.compile(r"snapshot\.([0-9a-f]{1,16})(?:\.(?:gz|snappy))?")
_LOG: Final = re.compile(r"log\.([0-9a-f]{1,16})")

LONGEST: Final = 2**28
"""No server accepts a request of this size, so a greater length means damage."""

COUNTER_BITS: Final = 32
COUNTER: Final = (1 << COUNTER_BITS) - 1


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file and the zxid in its name: the last one certainly in a snapshot, or the first one of a log."""

    path: Path
    zxid: int


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The snapshots, newest first, and the logs, oldest first."""

    folder: str
    snapshots: tuple[DataFile, ...]
    logs: tuple[DataFile, ...]

    def logs_after(self, zxid: int) -> tuple[DataFile, ...]:
        """Return the logs that may contain transactions after `zxid`."""
        older = [log for log in self.logs if log.zxid <= zxid + 1]
        return self.logs[max(0, len(older) - 1) :]


def data_files(folder: str, log_folder: str | None = None) -> DataFiles:
    """List the files. Raise NotFoundError if the directory is missing or has no such files."""
    snapshots = _found(_directory(folder, _SNAPSHOT), _SNAPSHOT)
    logs = _found(_directory(log_folder or folder, _LOG), _LOG)
    if not snapshots and not logs:
        raise NotFoundError(f"{folder} is not a ZooKeeper data directory: it has no {VERSION}/snapshot.* and no log.*")
    return DataFiles(folder, tuple(reversed(snapshots)), tuple(logs))


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raise OSError for a pipe, a device or a directory, without blocking."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


@contextmanager
def readable(folder: str) -> Iterator[None]:
    """Raise NotFoundError if a file cannot be read in the block."""
    try:
        yield
    except OSError as error:
        raise NotFoundError(f"{error.filename or folder} cannot be read: {error.strerror or error}") from error


def _directory(folder: str, wanted: re.Pattern[str]) -> Path:
    """Return the folder with the files: `version-2` below the given one, or the given one itself."""
    path = Path(folder)
    if not path.is_dir():
        raise NotFoundError(f"the directory {folder} does not exist")
    below = path / VERSION
    return below if below.is_dir() and not _found(path, wanted) else path


def _found(directory: Path, wanted: re.Pattern[str]) -> list[DataFile]:
    matches = ((path, wanted.fullmatch(path.name)) for path in directory.iterdir())
    return sorted((DataFile(path, int(match[1], 16)) for path, match in matches if match), key=_by_zxid)


def _by_zxid(file: DataFile) -> tuple[int, str]:
    return file.zxid, file.path.name


def follows(before: int, zxid: int) -> bool:
    """Return whether the second zxid can directly follow the first.

    A zxid consists of the leader's epoch and a counter that restarts with each epoch. So the last transactions of an
    epoch may be missing without a gap. Digests detect that since ZooKeeper 3.6.

    >>> follows(7, 8), follows(7, 9), follows(7, 1 << 32 | 1), follows(7, 1 << 32 | 2)
    (True, False, True, False)
    """
    return zxid == before + 1 or (zxid >> COUNTER_BITS > before >> COUNTER_BITS and zxid & COUNTER <= 1)


def is_first(zxid: int) -> bool:
    """Return whether the zxid can be the first ever: of a standalone server, or of the first leader."""
    return zxid in (1, 1 << COUNTER_BITS, 1 << COUNTER_BITS | 1)
