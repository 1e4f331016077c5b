"""A snapshot file: whether it is whole, what its end says, and its bytes as a stream.

    header      "ZKSN", version 2, an id: 16 bytes
    sessions    their number, and of each its id and timeout
    ACLs        their number, and of each its number and entries
    nodes       path, data, number of the ACL, stat of 60 bytes: each parent before its children, what is below it
                before its next sibling; the path "/" ends them
    seal        checksum (Adler-32) of all that comes before, and "/"
    digest      zxid, version, digest of the tree at that zxid; a seal       since 3.6, unless it is switched off
    last zxid   the last that was in the tree when all was written; a seal   since 3.9

A tree is written down while it changes. So there may be nodes in it that are newer than the zxid in the file's name:
none is newer than what the end says, where it says so.
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
"""How digests are made; other ways than this one there were none in any release."""

_CHUNK: Final = 2**22

_MOST_FOR_EACH: Final = 100
"""How many bytes each compressed byte may become. Real nodes, with different times and zxids, reach about ten."""
_MOST_OF_SMALL: Final = 2**26

_SNAPPY_HEADER: Final = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
_LENGTH: Final = Struct(">i")

UNREADABLE: Final = (OSError, EOFError, zlib.error, ValueError)
"""What is raised where bytes are not what they should be."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A number made of all nodes of the tree, at a zxid."""

    zxid: int
    value: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A snapshot that is whole: how far its nodes reach, and the digest in it."""

    file: DataFile
    digest: Digest | None


def examine(file: DataFile) -> Whole | None:
    """What its end says; None where any of it is not as it was written."""
    try:
        end, checksum = _end_of(chunks(file.path))
    except UNREADABLE:
        return None
    return next((Whole(file, _digest(end, parts)) for parts in _ENDS if _is_sealed(end, parts, checksum)), None)


def chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a snapshot, unpacked, some millions at a time."""
    with open_regular(path) as stream:
        if path.suffix == ".snappy":
            yield from _gathered(_unsnapped(stream))
        elif path.suffix == ".gz":
            yield from _unzipped(stream)
        else:
            while chunk := stream.read(_CHUNK):
                yield chunk


def _unzipped(stream: BinaryIO) -> Iterator[bytes]:
    """Decompress a file, but not a bomb: a real tree of nodes cannot be compressed that much."""
    most = _MOST_FOR_EACH * os.fstat(stream.fileno()).st_size + _MOST_OF_SMALL
    with gzip.open(stream) as unzipped:
        while chunk := unzipped.read(_CHUNK):
            most -= len(chunk)
            if most < 0:
                raise ValueError(f"it unpacks to more than {_MOST_FOR_EACH} times its size")
            yield chunk


_ENDS: Final[tuple[tuple[Struct, ...], ...]] = ((), (_DIGEST,), (_ZXID,), (_DIGEST, _ZXID))
"""What comes between the first seal and the end, each part with a seal of its own."""

_LONGEST_END: Final = len(END_OF_NODES) + 3 * _SEAL.size + _DIGEST.size + _ZXID.size


def _end_of(found: Iterator[bytes]) -> tuple[bytes, int]:
    """The last bytes, and the checksum of all that come before them."""
    end, checksum = next(found, b""), 1
    if not end.startswith(HEADER):
        raise ValueError("no snapshot")
    for chunk in chain(found, [b""]):
        checksum = zlib.adler32(end[:-_LONGEST_END], checksum)
        end = end[-_LONGEST_END:] + chunk
    return end, checksum


def _is_sealed(end: bytes, parts: tuple[Struct, ...], checksum: int) -> bool:
    """Whether an end with these parts has all its seals."""
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


def _digest(end: bytes, parts: tuple[Struct, ...]) -> Digest | None:
    if _DIGEST not in parts:
        return None
    zxid, version, value = _DIGEST.unpack_from(end, _end_of_nodes(end, parts) + _SEAL.size)
    return Digest(zxid, value) if version == DIGEST_VERSION and zxid else None


# Snappy, as Java writes it: a header, and pieces each with its length in front


def _unsnapped(stream: BinaryIO) -> Iterator[bytes]:
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise MissingDependencyError("a snapshot in snappy needs pyarrow: pip install 'zkgroups[spark]'") from error
    if stream.read(len(_SNAPPY_HEADER)) != _SNAPPY_HEADER:
        raise ValueError("no snappy of Java's")
    while start := stream.read(_LENGTH.size):
        [length] = _LENGTH.unpack(start.ljust(_LENGTH.size, b"\xff"))
        if not 0 < length <= 2 * _CHUNK or len(piece := stream.read(length)) != length:
            raise EOFError
        yield pa.decompress(piece, _unpacked_length(piece), "snappy", asbytes=True)


def _unpacked_length(piece: bytes) -> int:
    """A piece begins with it, seven bits in each byte."""
    length = 0
    for place, byte in enumerate(piece[:5]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    if length > _CHUNK:
        raise ValueError("too long a piece")
    return length


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer and longer pieces."""
    some: list[bytes] = []
    size = 0
    for piece in pieces:
        some.append(piece)
        size += len(piece)
        if size >= _CHUNK:
            yield b"".join(some)
            some, size = [], 0
    yield b"".join(some)
