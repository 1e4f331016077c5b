"""Archives of loaded classes, with which a Java server starts in two thirds of the time.

A start mostly loads and checks classes. Java can write them to a file when a process ends, and map this file at the
next start. To make the archive of a class path, a server of the same kind is started, used, and stopped. This costs
several starts, so it happens only after that many starts of any processes.

The archives are in `~/.cache/zkgroups/classes`, or under `XDG_CACHE_HOME`. Java ignores an archive that does not fit.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from .java import zkgroups_cache

# The requests to a server that is rehearsed: see `class_archives.py`.


def write_and_read(address: str) -> None:
    """Send requests of the usual kinds, so that the server loads the classes that they need."""
    from kazoo.client import KazooClient

    client = KazooClient(address)
    try:
        client.start()
        client.create("/rehearsal/node", b"data", ephemeral=True, makepath=True)
        client.get("/rehearsal/node", watch=lambda _: None)
        transaction = client.transaction()
        transaction.set_data("/rehearsal/node", b"more")
        transaction.commit()
        client.get_children("/rehearsal")
        client.sync("/rehearsal")
        client.delete("/rehearsal", recursive=True)
    finally:
        client.stop()
        client.close()


Rehearse = Callable[[str], None]
"""Start a server with one more option for Java, use it, and stop it with SIGTERM."""

_STARTS = 4
"""An archive costs about as much time as it saves in this number of starts."""

_UNUSED = 30 * 24 * 3600.0
"""In seconds. Archives of former releases are deleted after this time."""

# By default, Java prints why it ignores an archive.
_SILENT = "-Xlog:cds*=off,class+path=off"


def archive_options(java: Path, class_path: Sequence[Path], rehearse: Rehearse) -> list[str]:
    """Return the options for Java that use the archive of this class path; without an archive, none."""
    try:
        archive = zkgroups_cache() / "classes" / f"{_identity(java, class_path)}.jsa"
        if not archive.exists() and _is_due(archive):
            _make(archive, java, class_path, rehearse)
        os.utime(archive)
    except (OSError, RuntimeError):  # no archive, or no folder for it
        return []
    return [f"-XX:SharedArchiveFile={archive}", _SILENT]


def _identity(java: Path, class_path: Sequence[Path]) -> str:
    """Return a digest that changes with Java and with each jar, because Java does so, too."""
    real = java.resolve()
    home = real.parent.parent
    files = [real, home / "release", home / "lib" / "server" / "libjvm.so", *class_path]
    return hashlib.sha256("\n".join(map(_state, files)).encode()).hexdigest()[:24]


def _state(path: Path) -> str:
    with suppress(FileNotFoundError):
        found = path.stat()
        return f"{path} {found.st_size} {found.st_mtime_ns}"
    return str(path)


def _is_due(archive: Path) -> bool:
    """Count this start, and return True after enough starts."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with _starts(archive).open("ab") as starts:
        starts.write(b".")
        return starts.tell() > _STARTS


def _make(archive: Path, java: Path, class_path: Sequence[Path], rehearse: Rehearse) -> None:
    with _try_lock(archive) as locked:
        # The rehearsed server itself also comes here, but without the lock.
        if not locked or archive.exists():
            return
        _remove_unused(archive)
        with TemporaryDirectory(prefix=_scratch_prefix(archive), dir=archive.parent) as scratch:
            made = Path(scratch, archive.name)
            with suppress(Exception):  # the server itself may start all the same
                rehearse(f"-XX:ArchiveClassesAtExit={made}")
            _starts(archive).unlink(missing_ok=True)  # after a failure, try again after as many starts
            if _is_complete(made, java, class_path):
                made.rename(archive)


def _is_complete(made: Path, java: Path, class_path: Sequence[Path]) -> bool:
    """Let Java read all of the archive, and keep it on the disk. Java crashes if the end of an archive is missing."""
    with made.open("rb") as file:
        os.fsync(file.fileno())
    options = ("-Xshare:on", "-XX:+VerifySharedSpaces", "-XX:+UseSerialGC", f"-XX:SharedArchiveFile={made}")
    command = [str(java), *options, "-cp", os.pathsep.join(map(str, class_path)), "-version"]
    return subprocess.run(command, capture_output=True, cwd=made.parent).returncode == 0


@contextmanager
def _try_lock(archive: Path) -> Iterator[bool]:
    """Yield whether this process has the lock. The lock of a process that dies is released at once."""
    with archive.with_name(f".{archive.stem}.lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _starts(archive: Path) -> Path:
    """The file with one byte for each start without the archive."""
    return archive.with_name(f".{archive.stem}.starts")


def _scratch_prefix(archive: Path) -> str:
    return f".{archive.stem}.part-"


def _remove_unused(archive: Path) -> None:
    """Delete old archives, and scratch folders of processes that were killed. The caller holds the lock."""
    for leftover in archive.parent.glob(f"{_scratch_prefix(archive)}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    oldest = _starts(archive).stat().st_mtime - _UNUSED  # this start was written down a moment ago
    for path in archive.parent.glob("*.jsa"):
        with suppress(OSError):  # another process deletes it, too
            if path.stat().st_mtime < oldest:
                path.unlink()
