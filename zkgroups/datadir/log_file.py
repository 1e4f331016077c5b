"""Read one transaction log: its records in order, up to the last complete one.

    header      "ZKLG", version 2, an id: 16 bytes
    record      checksum (Adler-32) in 8 bytes, length in 4, the transaction, and "B"
    zeros       files are preallocated, and filled later

A killed server may leave a partial record, followed by zeros. After a restart it begins a new file with the transaction
after the last complete one. So a file may end within a record. A record with an end mark but a wrong checksum, or an
invalid record followed by valid ones, is damage.

A running server appends to its last file. A record that is incomplete or wrong is read again, because it may have been
read while it was written.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final

from ..exceptions import DamagedDataError
from .files import LONGEST, open_regular
from .transaction_format import HEAD, HEAD_BYTES

HEADER: Final = b"ZKLG\0\0\0\2"
HEADER_BYTES: Final = 16

_FRAME: Final = Struct(">qi")
_END_OF_RECORD: Final = b"B"
_AROUND: Final = _FRAME.size + len(_END_OF_RECORD)
_SHORTEST: Final = _FRAME.size + HEAD_BYTES
_CHUNK: Final = 2**20
_MOST_SEARCHED: Final = 2**30
"""The limit of bytes to checksum in the search for records. A torn record needs far fewer."""


@dataclass(slots=True)
class LogFile:
    """Iterates over the records of a file; raises DamagedDataError for damage.

    Each record begins with the head of a transaction (`transaction_format.py`). Afterwards, `torn` tells whether the
    file ends within a record.
    """

    path: Path
    before: int
    """The last zxid that was read before this file. Errors name it, or the last one in this file if that is higher."""
    torn: bool = field(init=False, default=False)

    def __iter__(self) -> Iterator[bytes]:
        with open_regular(self.path) as stream:
            header = stream.read(HEADER_BYTES)
            if len(header) < HEADER_BYTES:
                self.torn = True
            elif not header.startswith(HEADER):
                raise self._damaged("it has no valid header of a transaction log", self.before)
            else:
                yield from self._records(stream)

    def _records(self, stream: BinaryIO) -> Iterator[bytes]:
        position, last, unpack, adler32 = HEADER_BYTES, b"", _FRAME.unpack_from, zlib.adler32
        was_read_again = False
        while True:
            buffer = _chunk(stream, position)
            at, size, record = 0, len(buffer), last
            while (start := at + 12) <= size:
                checksum, length = unpack(buffer, at)
                end = start + length
                if end >= size or length < HEAD_BYTES or buffer[end] != 66:  # "B"
                    break
                record = buffer[start:end]
                if adler32(record) != checksum:
                    break
                at = end + 1
                last = record
                yield record
            position += at
            if at or not was_read_again:
                was_read_again = not at
            elif self._is_end(stream, position, last, has_bad_checksum=record is not last):
                return

    def _is_end(self, stream: BinaryIO, at: int, last: bytes, *, has_bad_checksum: bool) -> bool:
        """Check the rest of a file after the last valid record: it may hold a partial record, but no complete ones.

        Returns False if the server has completed the record meanwhile.
        """
        zxid = max(self.before, int(HEAD.unpack_from(last)[2])) if last else self.before
        if has_bad_checksum:
            raise self._damaged("a record has a wrong checksum", zxid)
        end = _last_byte(stream, at)
        self.torn = end > at
        if self.torn:
            with mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
                if _is_record(data, at):
                    return False
                if _has_record(data, at, end, zxid):
                    raise self._damaged(f"an invalid record after 0x{zxid:x} is followed by valid ones", zxid)
        return True

    def _damaged(self, reason: str, last: int) -> DamagedDataError:
        return DamagedDataError(str(self.path), reason, last_zxid=last)


def _chunk(stream: BinaryIO, position: int) -> bytes:
    """Read the next bytes of a file, with at least one whole record if there is one."""
    stream.seek(position)
    chunk = stream.read(_CHUNK)
    if len(chunk) < _FRAME.size:
        return chunk
    missing = _FRAME.unpack_from(chunk)[1] + _AROUND - len(chunk)
    if not 0 < missing < LONGEST or missing > os.fstat(stream.fileno()).st_size - stream.tell():
        return chunk
    return chunk + stream.read(missing)


def _last_byte(stream: BinaryIO, at: int) -> int:
    """Return where the trailing zeros of the file begin."""
    stream.seek(at)
    end = at
    while chunk := stream.read(len(_ZEROS)):
        at += len(chunk)
        if chunk != _ZEROS[: len(chunk)]:
            end = at - len(chunk) + len(chunk.rstrip(b"\0"))
    return end


_ZEROS: Final = bytes(2**20)
_MAYBE_RECORD: Final = re.compile(rb"(?=\0{4}.{4}[\0-\x0f].{3})", re.DOTALL)


def _has_record(data: mmap, at: int, end: int, last: int) -> bool:
    """Return whether a complete record with a later zxid follows, or so many candidates that the search stops."""
    left = _MOST_SEARCHED
    for match in _MAYBE_RECORD.finditer(data, at, end):
        if (found := _candidate(data, match.start())) is not None:
            checksum, record = found
            left -= len(record)
            if left < 0 or (zlib.adler32(record) == checksum and int(HEAD.unpack_from(record)[2]) > last):
                return True
    return False


def _is_record(data: mmap, at: int) -> bool:
    """Return whether a complete record begins here."""
    found = _candidate(data, at)
    return found is not None and zlib.adler32(found[1]) == found[0]


def _candidate(data: mmap, at: int) -> tuple[int, bytes] | None:
    """Return the checksum and the bytes of a record that may begin here, if it is long enough and has an end mark."""
    if at + _SHORTEST > len(data):
        return None
    checksum, length = _FRAME.unpack_from(data, at)
    start = at + _FRAME.size
    end = start + length
    if length < HEAD_BYTES or data[end : end + 1] != _END_OF_RECORD:
        return None
    return checksum, data[start:end]
