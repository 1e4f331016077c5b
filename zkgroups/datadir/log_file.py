"""The logs of transactions: one record after the other, none missing, up to the last that is whole.

    header      "ZKLG", version 2, an id: 16 bytes
    record      checksum (Adler-32) in 8 bytes, length in 4, the transaction, and "B"
    zeros       a file is made long at once, and filled later

A server that is killed leaves a record half written, with zeros from there on; its next start begins a new file with
the transaction that follows the last whole one. So a file may end in the midst of a record. But a record that has its
end and not its checksum was written whole, and so was what has whole records behind it: that is damage.
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
"""How many bytes of possible records are compared with their checksums. A torn record needs far fewer."""


class Transaction(NamedTuple):
    """What a record says: whose it is, its number, time and kind; and all of it, which begins with that."""

    session: int
    zxid: int
    time_ms: int
    kind: int
    record: bytes


@dataclass(slots=True)
class Log:
    """The transactions after a zxid, each once and in their order; an error where one is missing or damaged.

    They end with `until`, or with the last whole one. When all are read, `zxid` says which was the last, `reached` the
    same with those that did not count, `goes_on` whether there is a later one, `leaders` where another leader began,
    and `torn` where the last file ends in the midst of a record, if it does.
    """

    files: Sequence[DataFile]
    after: int | None
    """None where there is nothing to begin from: then all of them count."""
    until: int | None = None
    zxid: int = field(init=False)
    reached: int = field(init=False, default=0)
    leaders: list[tuple[int, int]] = field(init=False, default_factory=list)
    goes_on: bool = field(init=False, default=False)
    torn: Path | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.zxid = self.after or 0

    def __iter__(self) -> Iterator[Transaction]:
        for file in self.files:
            if self.zxid == self.until:  # what comes after it may be damaged
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
                        self.goes_on = True
                        return
                    self.zxid = found.zxid
                    yield found
                    if self.zxid == self.until:
                        return

    def _check_follows(self, zxid: int, path: Path) -> None:
        """With nothing to begin from, it must be the first of all."""
        if follows(self.zxid, zxid) and (self.after is not None or self.zxid or is_first(zxid)):
            return
        what = "goes back to" if zxid <= self.zxid else "goes on with"
        reason = f"it {what} 0x{zxid:x} after 0x{self.zxid:x}, so that transactions are missing or in disorder"
        raise DamagedDataError(str(path), reason, last_zxid=self.zxid)

    def _in_file(self, path: Path, stream: BinaryIO) -> Iterator[Transaction]:
        self.torn = None
        header = stream.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            self.torn = path
            return
        if not header.startswith(HEADER):
            raise DamagedDataError(str(path), "it does not begin as a log", last_zxid=self.zxid)
        at = HEADER_BYTES
        while (record := _next(stream, path, self.zxid)) is not None:
            session, _cxid, zxid, time_ms, kind = _HEAD.unpack_from(record)
            at += _FRAME.size + len(record) + len(_END_OF_RECORD)
            yield Transaction(session, zxid, time_ms, kind, record)
        self._end(path, stream, at)

    def _end(self, path: Path, stream: BinaryIO, at: int) -> None:
        """Behind the last record there is nothing; or a part of one; or some that should have been read."""
        end = _last_byte(stream, at)
        if end <= at:
            return
        self.torn = path
        with mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            if _has_record(data, at, end, self.zxid):
                reason = f"there are whole records behind one that is none, after 0x{self.zxid:x}"
                raise DamagedDataError(str(path), reason, last_zxid=self.zxid)


def _next(stream: BinaryIO, path: Path, last: int) -> bytes | None:
    """The next record; None where there is no whole one."""
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
        raise DamagedDataError(str(path), "a record in it is not what was written", last_zxid=last)
    return record


def _left(stream: BinaryIO) -> int:
    """How many bytes are left in the file."""
    return os.fstat(stream.fileno()).st_size - stream.tell()


def _last_byte(stream: BinaryIO, at: int) -> int:
    """Where the zeros begin that go on to the end of the file."""
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
    """Whether a whole record with a later zxid follows, or so many false ones that the search stops."""
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
