"""Read snapshot files: check that one is intact, and stream its bytes.

    header      "ZKSN", version 2, an id: 16 bytes
    sessions    a count, then the id and timeout of each
    ACLs        a count, then the number and entries of each
    nodes       path, data, number of the ACL, stat of 60 bytes; depth first; the path "/" ends them
    seal        checksum (Adler-32) of all preceding bytes, and "/"
    digest      zxid, version, digest of the tree at that zxid; a seal       since 3.6, unless disabled
    last zxid   the last transaction in the tree; a seal                     since 3.9

The server writes a snapshot while the tree changes. So nodes may be newer than the zxid in the file's name, but never
newer than the zxid at the end of the file, if it has one.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final

from ..exceptions import MissingDependencyError
from .files import DataFile, open_regular

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
            "reading a .snappy snapshot needs pyarrow: pip install 'zkgroups[spark]'"
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
