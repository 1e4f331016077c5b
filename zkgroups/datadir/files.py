"""The files of a data directory: their names, and how to check and read a snapshot."""

from __future__ import annotations

import errno
import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final

from ..exceptions import MissingDependencyError, NotFoundError

# List the files of a data directory: snapshots of the tree and transaction logs, each named after a zxid.
#
#     DIR/version-2/snapshot.<zxid>      also .gz or .snappy: the tree, written while it may have changed
#     DIR/version-2/log.<zxid>           the transactions from that zxid on, up to the next file
#
# The logs may be in another directory (`dataLogDir`). Either directory may be given as `version-2` itself.


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


# Read snapshot files: check that one is intact, and stream its bytes.
#
#     header      "ZKSN", version 2, an id: 16 bytes
#     sessions    a count, then the id and timeout of each
#     ACLs        a count, then the number and entries of each
#     nodes       path, data, number of the ACL, stat of 60 bytes; depth first; the path "/" ends them
#     seal        checksum (Adler-32) of all preceding bytes, and "/"
#     digest      zxid, version, digest of the tree at that zxid; a seal       since 3.6, unless disabled
#     last zxid   the last transaction in the tree; a seal                     since 3.9
#
# The server writes a snapshot while the tree changes. So nodes may be newer than the zxid in the file's name, but
# never newer than the zxid at the end of the file, if it has one.


HEADER: Final = b"ZKSN\0\0\0\2"
HEADER_BYTES: Final = 16
END_OF_NODES: Final = b"\0\0\0\1/"

_SEAL: Final = Struct(">q5s")
_DIGEST: Final = Struct(">qiQ")
_ZXID: Final = Struct(">q")
DIGEST_VERSION: Final = 2
"""The version of the digest algorithm; no release used another."""

_CHUNK: Final = 2**22

_MAX_RATIO: Final = 100
"""The limit of the compression ratio. Real snapshots reach about ten."""
_RATIO_FREE_BYTES: Final = 2**26

_SNAPPY_HEADER: Final = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
_LENGTH: Final = Struct(">i")

UNREADABLE: Final = (OSError, EOFError, zlib.error, ValueError)
"""The errors raised for damaged files."""


@dataclass(frozen=True, slots=True)
class TreeDigest:
    """The digest of all nodes of a tree, at a zxid."""

    zxid: int
    value: int


@dataclass(frozen=True, slots=True)
class IntactSnapshot:
    """An intact snapshot, and the digest at its end, if any."""

    file: DataFile
    digest: TreeDigest | None


def check_snapshot(file: DataFile) -> IntactSnapshot | None:
    """Verify the checksums of a snapshot; return None if it is damaged."""
    try:
        end, checksum = _end_of(read_chunks(file.path))
    except UNREADABLE:
        return None
    return next(
        (IntactSnapshot(file, _digest(end, parts)) for parts in _ENDS if _is_sealed(end, parts, checksum)), None
    )


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the decompressed bytes of a snapshot in chunks of a few MiB."""
    with open_regular(path) as stream:
        if path.suffix == ".snappy":
            yield from _joined(_decompress_snappy(stream))
        elif path.suffix == ".gz":
            yield from _decompress_gzip(stream)
        else:
            while chunk := stream.read(_CHUNK):
                yield chunk


def _decompress_gzip(stream: BinaryIO) -> Iterator[bytes]:
    """Decompress a gzip file. Raise ValueError for a decompression bomb."""
    most = _MAX_RATIO * os.fstat(stream.fileno()).st_size + _RATIO_FREE_BYTES
    with gzip.open(stream) as unzipped:
        while chunk := unzipped.read(_CHUNK):
            most -= len(chunk)
            if most < 0:
                raise ValueError(f"it decompresses to more than {_MAX_RATIO} times its size")
            yield chunk


_ENDS: Final[tuple[tuple[Struct, ...], ...]] = ((), (_DIGEST,), (_ZXID,), (_DIGEST, _ZXID))
"""The possible parts between the first seal and the end of the file, each followed by a seal."""

_LONGEST_END: Final = len(END_OF_NODES) + 3 * _SEAL.size + _DIGEST.size + _ZXID.size


def _end_of(found: Iterator[bytes]) -> tuple[bytes, int]:
    """Return the last bytes, and the checksum of all preceding ones."""
    end, checksum = next(found, b""), 1
    if not end.startswith(HEADER):
        raise ValueError("not a snapshot")
    for chunk in chain(found, [b""]):
        checksum = zlib.adler32(end[:-_LONGEST_END], checksum)
        end = end[-_LONGEST_END:] + chunk
    return end, checksum


def _is_sealed(end: bytes, parts: tuple[Struct, ...], checksum: int) -> bool:
    """Return whether an end with these parts has valid seals."""
    at = _end_of_nodes(end, parts)
    if not end[: max(0, at)].endswith(END_OF_NODES):
        return False
    for size in (0, *(part.size for part in parts)):
        at += size
        if _SEAL.unpack_from(end, at) != (zlib.adler32(end[:at], checksum), END_OF_NODES):
            return False
        at += _SEAL.size
    return True


def _end_of_nodes(end: bytes, parts: tuple[Struct, ...]) -> int:
    return len(end) - _SEAL.size - sum(part.size + _SEAL.size for part in parts)


def _digest(end: bytes, parts: tuple[Struct, ...]) -> TreeDigest | None:
    if _DIGEST not in parts:
        return None
    zxid, version, value = _DIGEST.unpack_from(end, _end_of_nodes(end, parts) + _SEAL.size)
    return TreeDigest(zxid, value) if version == DIGEST_VERSION and zxid else None


# Snappy as written by Java: a header, then blocks, each preceded by its length


def _decompress_snappy(stream: BinaryIO) -> Iterator[bytes]:
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "reading a .snappy snapshot needs pyarrow; from the checkout: pip install '.[spark]'"
        ) from error
    if stream.read(len(_SNAPPY_HEADER)) != _SNAPPY_HEADER:
        raise ValueError("not a Java snappy stream")
    while start := stream.read(_LENGTH.size):
        [length] = _LENGTH.unpack(start.ljust(_LENGTH.size, b"\xff"))
        if not 0 < length <= 2 * _CHUNK or len(piece := stream.read(length)) != length:
            raise EOFError
        yield pa.decompress(piece, _unpacked_length(piece), "snappy", asbytes=True)


def _unpacked_length(piece: bytes) -> int:
    """Decode the length at the start of a block, seven bits per byte."""
    length = 0
    for place, byte in enumerate(piece[:5]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    if length > _CHUNK:
        raise ValueError("the block is too long")
    return length


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join small pieces to chunks of a few MiB."""
    some: list[bytes] = []
    size = 0
    for piece in pieces:
        some.append(piece)
        size += len(piece)
        if size >= _CHUNK:
            yield b"".join(some)
            some, size = [], 0
    yield b"".join(some)
