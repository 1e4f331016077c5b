"""Which files a server has left: snapshots of its tree, and logs of the transactions, each named after a zxid.

    DIR/version-2/snapshot.<zxid>      or .gz or .snappy: the tree, as it was written down while it changed
    DIR/version-2/log.<zxid>           the transactions from that one on, until the next file begins

A server may keep its logs in another directory (`dataLogDir`), which may be given, too. Either may be the folder
`version-2` itself.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from ..exceptions import NotFoundError

VERSION: Final = "version-2"

_SNAPSHOT: Final = re.compile(r"snapshot\.([0-9a-f]{1,16})(?:\.(?:gz|snappy))?")
_LOG: Final = re.compile(r"log\.([0-9a-f]{1,16})")

LONGEST: Final = 2**28
"""No server accepts a request of this size; a greater length means damage."""

COUNTER_BITS: Final = 32
COUNTER: Final = (1 << COUNTER_BITS) - 1


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file, and the zxid in its name: of a snapshot the last that is surely in it, of a log its first."""

    path: Path
    zxid: int


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The snapshots, newest first, and the logs, oldest first."""

    folder: str
    snapshots: tuple[DataFile, ...]
    logs: tuple[DataFile, ...]

    def logs_after(self, zxid: int) -> tuple[DataFile, ...]:
        """Those that may have transactions after this one, without any that surely have none."""
        older = [log for log in self.logs if log.zxid <= zxid + 1]
        return self.logs[max(0, len(older) - 1) :]


def data_files(folder: str, log_folder: str | None = None) -> DataFiles:
    """What there is; an error where there is no directory, or nothing in it."""
    snapshots = _found(_directory(folder, _SNAPSHOT), _SNAPSHOT)
    logs = _found(_directory(log_folder or folder, _LOG), _LOG)
    if not snapshots and not logs:
        raise NotFoundError(f"{folder} is no data directory of ZooKeeper: it has no {VERSION}/snapshot.* and no log.*")
    return DataFiles(folder, tuple(reversed(snapshots)), tuple(logs))


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; raise OSError for a pipe, a device or a directory, without waiting for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def _directory(folder: str, wanted: re.Pattern[str]) -> Path:
    """The folder that has the files, which may be the one that was named."""
    path = Path(folder)
    if not path.is_dir():
        raise NotFoundError(f"there is no directory {folder}")
    below = path / VERSION
    return below if below.is_dir() and not _found(path, wanted) else path


def _found(directory: Path, wanted: re.Pattern[str]) -> list[DataFile]:
    matches = ((path, wanted.fullmatch(path.name)) for path in directory.iterdir())
    return sorted((DataFile(path, int(match[1], 16)) for path, match in matches if match), key=_by_zxid)


def _by_zxid(file: DataFile) -> tuple[int, str]:
    return file.zxid, file.path.name


def follows(before: int, zxid: int) -> bool:
    """Whether no transaction can be missing between these two, as far as their numbers tell.

    A zxid is the number of a leader's time and a count within it, which begins anew with the next leader. That a
    leader's last transactions are missing cannot be seen here: digests tell it, which there are since ZooKeeper 3.6.

    >>> follows(7, 8), follows(7, 9), follows(7, 1 << 32 | 1), follows(7, 1 << 32 | 2)
    (True, False, True, False)
    """
    return zxid == before + 1 or (zxid >> COUNTER_BITS > before >> COUNTER_BITS and zxid & COUNTER <= 1)


def is_first(zxid: int) -> bool:
    """Whether it is the first that there ever was: of a server alone, or of the first leader of an ensemble."""
    return zxid in (1, 1 << COUNTER_BITS, 1 << COUNTER_BITS | 1)
