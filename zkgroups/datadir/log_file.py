"""Read transaction logs: all records in order, without gaps, up to the last complete one.

    header      "ZKLG", version 2, an id: 16 bytes
    record      checksum (Adler-32) in 8 bytes, length in 4, the transaction, and "B"
    zeros       files are preallocated, and filled later

A killed server may leave a partial record, followed by zeros. After a restart it begins a new file with the transaction
after the last complete one. So a file may end within a record. A record with an end mark but a wrong checksum, or an
invalid record followed by valid ones, is damage.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final, NamedTuple

from ..exceptions import DamagedDataError
from .files import COUNTER_BITS, LONGEST, DataFile, follows, is_first, open_regular

HEADER: Final = b"ZKLG\0\0\0\2"
HEADER_BYTES: Final = 16

_FRAME: Final = Struct(">qi")
_END_OF_RECORD: Final = b"B"
_HEAD: Final = Struct(">qiqqi")
HEAD_BYTES: Final = _HEAD.size
_SHORTEST: Final = _FRAME.size + HEAD_BYTES
_LARGE: Final = 2**20
_MOST_SEARCHED: Final = 2**30
"""The limit of bytes to checksum in the search for records. A torn record needs far fewer."""


class Transaction(NamedTuple):
    """The session, zxid, time and type of a transaction, the whole record, which begins with them, and its file."""

    session: int
    zxid: int
    time_ms: int
    kind: int
    record: bytes
    log: Path


@dataclass(slots=True)
class TransactionLog:
    """Iterates over the transactions after a zxid, in order; raises DamagedDataError for a gap or a damaged record.

    The iteration ends with `until`, or with the last complete transaction. Afterwards `zxid` is the last transaction,
    `reached` the last one including skipped ones, `has_more` tells whether a later one exists, `leaders` holds the
    zxids before and after each change of leader, and `torn` is the last file if it ends within a record.
    """

    files: Sequence[DataFile]
    after: int | None
    """The zxid of the snapshot; None to read all transactions."""
    until: int | None = None
    zxid: int = field(init=False)
    reached: int = field(init=False, default=0)
    leaders: list[tuple[int, int]] = field(init=False, default_factory=list)
    has_more: bool = field(init=False, default=False)
    torn: Path | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.zxid = self.after or 0

    def __iter__(self) -> Iterator[Transaction]:
        for file in self.files:
            if self.zxid == self.until:  # later records may be damaged
                return
            with open_regular(file.path) as stream:
                for found in self._in_file(file.path, stream):
                    self.reached = max(self.reached, found.zxid)
                    if self.after is not None and found.zxid <= self.after == self.zxid:
                        continue
                    self._check_follows(found.zxid, file.path)
                    if found.zxid >> COUNTER_BITS > self.zxid >> COUNTER_BITS:
                        self.leaders.append((self.zxid, found.zxid))
                    if self.until is not None and found.zxid > self.until:
                        self.has_more = True
                        return
                    self.zxid = found.zxid
                    yield found
                    if self.zxid == self.until:
                        return

    def _check_follows(self, zxid: int, path: Path) -> None:
        """Raise DamagedDataError for a gap. Without a snapshot, the logs must start with the first transaction ever."""
        if follows(self.zxid, zxid) and (self.after is not None or self.zxid or is_first(zxid)):
            return
        reason = f"0x{zxid:x} follows 0x{self.zxid:x}: transactions are missing or out of order"
        raise DamagedDataError(str(path), reason, last_zxid=self.zxid)

    def _in_file(self, path: Path, stream: BinaryIO) -> Iterator[Transaction]:
        self.torn = None
        header = stream.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            self.torn = path
            return
        if not header.startswith(HEADER):
            raise DamagedDataError(str(path), "it has no valid header of a transaction log", last_zxid=self.zxid)
        at = HEADER_BYTES
        while (record := _next(stream, path, self.zxid)) is not None:
            session, _cxid, zxid, time_ms, kind = _HEAD.unpack_from(record)
            at += _FRAME.size + len(record) + len(_END_OF_RECORD)
            yield Transaction(session, zxid, time_ms, kind, record, path)
        self._end(path, stream, at)

    def _end(self, path: Path, stream: BinaryIO, at: int) -> None:
        """Check the rest of a file after the last valid record: it may hold a partial record, but no complete ones."""
        end = _last_byte(stream, at)
        if end <= at:
            return
        self.torn = path
        with mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            if _has_record(data, at, end, self.zxid):
                reason = f"an invalid record after 0x{self.zxid:x} is followed by valid ones"
                raise DamagedDataError(str(path), reason, last_zxid=self.zxid)


def _next(stream: BinaryIO, path: Path, last: int) -> bytes | None:
    """Read the next record; return None if it is incomplete."""
    frame = stream.read(_FRAME.size)
    if len(frame) < _FRAME.size:
        return None
    checksum, length = _FRAME.unpack(frame)
    if not HEAD_BYTES <= length < LONGEST or (length > _LARGE and length > _left(stream)):
        return None
    record = stream.read(length)
    if stream.read(1) != _END_OF_RECORD:
        return None
    if zlib.adler32(record) != checksum:
        raise DamagedDataError(str(path), "a record has a wrong checksum", last_zxid=last)
    return record


def _left(stream: BinaryIO) -> int:
    """Return the number of bytes left in the file."""
    return os.fstat(stream.fileno()).st_size - stream.tell()


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
        start = match.start()
        if start + _SHORTEST > len(data):
            break
        checksum, length = _FRAME.unpack_from(data, start)
        start += _FRAME.size
        if length < HEAD_BYTES or data[start + length : start + length + 1] != _END_OF_RECORD:
            continue
        left -= length
        record = data[start : start + length]
        if left < 0 or (zlib.adler32(record) == checksum and int(_HEAD.unpack_from(record)[2]) > last):
            return True
    return False
