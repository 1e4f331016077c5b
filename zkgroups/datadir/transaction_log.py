"""The transaction logs of a server: their format, one file, and all files as one series without gaps."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import BinaryIO, Final, NamedTuple

from ..core.history.changes import ChangeKind, NodeChange, SessionEnd
from ..core.znodes.paths import CONSUMERS
from ..exceptions import DamagedDataError
from .files import COUNTER_BITS, DIGEST_VERSION, LONGEST, DataFile, follows, is_first, open_regular

# The format of transactions: their types, their fields, and the operations of a multi transaction.
#
#     head        session, number of the request, zxid, time, type: 32 bytes
#     body        by type: see `scan.py`
#     digest      version and digest of the tree after the transaction       since 3.6, unless disabled
#
# All numbers are in network byte order. Strings and data come after their length; -1 stands for null.


HEAD: Final = Struct(">qiqqi")
HEAD_BYTES: Final = HEAD.size

CREATE, DELETE, SET_DATA, SET_ACL, CHECK, MULTI, CREATE2, RECONFIG = 1, 2, 5, 7, 13, 14, 15, 16
CREATE_CONTAINER, DELETE_CONTAINER, CREATE_TTL = 19, 20, 21
CREATE_SESSION, CLOSE_SESSION, ERROR = -10, -11, -1

CREATES: Final = frozenset({CREATE, CREATE2, CREATE_CONTAINER, CREATE_TTL})
DELETES: Final = frozenset({DELETE, DELETE_CONTAINER})
WRITES: Final = frozenset({SET_DATA, RECONFIG})

INT: Final = Struct(">i")
FLAG_AND_INT: Final = Struct(">?i")
_PART: Final = Struct(">ii")
_DIGEST: Final = Struct(">iQ")

_EVERYBODY: Final = b"\0\0\0\1\0\0\0\x1f\0\0\0\5world\0\0\0\6anyone"
"""The ACL that nearly all nodes have."""


def operations(record: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """Return the operations of a multi transaction, each a type and a body, and where they end. Checks are left out.

    There are none if one of them failed.
    """
    at, has_failed = HEAD_BYTES + INT.size, False
    found: list[tuple[int, bytes]] = []
    for _ in range(*INT.unpack_from(record, HEAD_BYTES)):
        kind, length = _PART.unpack_from(record, at)
        at += _PART.size
        end = at + length if length > 0 else at
        if kind == ERROR:
            has_failed = True
        elif kind != CHECK:
            found.append((kind, record[at:end]))
        at = end
    return ([] if has_failed else found), at


def block(record: bytes, at: int) -> tuple[bytes, int]:
    """Return a string of the record, and where it ends."""
    end = after_data(record, at)
    return record[at + INT.size : end], end


def after_data(record: bytes, at: int) -> int:
    """Return where the data ends, which must be within the record. The length -1 stands for null."""
    length: int
    [length] = INT.unpack_from(record, at)
    end = at + INT.size + max(0, length)
    if length < -1 or end > len(record):
        raise ValueError(f"a length of {length} exceeds the {len(record) - at} bytes left")
    return end


def after_acl(record: bytes, at: int) -> int:
    """Return where the ACL ends."""
    if record.startswith(_EVERYBODY, at):
        return at + len(_EVERYBODY)
    [count] = INT.unpack_from(record, at)
    at += INT.size
    for _ in range(max(0, count)):
        at += INT.size  # the permissions
        _scheme, at = block(record, at)
        _id, at = block(record, at)
    return at


def deleted_with_session(record: bytes) -> tuple[list[bytes], int] | None:
    """Return the nodes that the end of a session deletes, and where their list ends, or None if they are not listed."""
    at = HEAD_BYTES
    if at == len(record) or digest(record, at) is not None:
        return None
    [count] = INT.unpack_from(record, at)
    at += INT.size
    paths: list[bytes] = []
    for _ in range(count):
        path, at = block(record, at)
        paths.append(path)
    return paths, at


def digest(record: bytes, at: int) -> int | None:
    """Return the digest at the end of a record, if any."""
    if len(record) - at != _DIGEST.size:
        return None
    version, value = _DIGEST.unpack_from(record, at)
    return int(value) if version == DIGEST_VERSION else None


# Read one transaction log: its records in order, up to the last complete one.
#
#     header      "ZKLG", version 2, an id: 16 bytes
#     record      checksum (Adler-32) in 8 bytes, length in 4, the transaction, and "B"
#     zeros       files are preallocated, and filled later
#
# A killed server may leave a partial record, followed by zeros. After a restart it begins a new file with the
# transaction after the last complete one. So a file may end within a record. A record with an end mark but a wrong
# checksum, or an invalid record followed by valid ones, is damage.
#
# A running server appends to its last file. A record that is incomplete or wrong is read again, because it may have
# been read while it was written.


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

    Each record begins with the head of a transaction. Afterwards, `torn` tells whether the
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


# Decode what a transaction did to the nodes of groups.
#
# Most transactions concern other nodes, so their bytes are compared with a prefix before anything is decoded.


_NO_CHANGE: Final = frozenset({SET_ACL, CHECK, ERROR, CREATE_SESSION})
_MAY_BE_EPHEMERAL: Final = frozenset({CREATE, CREATE2})

_int_at: Final = INT.unpack_from

_NOTHING: Final[tuple[NodeChange, ...]] = ()


class UnreadableTransaction(Exception):
    """The body of a transaction is malformed, or of an unknown type."""


class ChangeDecoder:
    """Decodes the changes of all groups, or of one group and those whose names begin with the same letters."""

    def __init__(self, chroot: str, group: str | None) -> None:
        root = f"{chroot}{CONSUMERS}/".encode()
        self._prefix = root + (group or "").encode()
        self._root_bytes = len(root)

    def decode_write(self, record: bytes, at: int = HEAD_BYTES) -> tuple[bytes, bytes, int] | None:
        """Return the path, the data and the version of a node of a group that was written; None for other nodes.

        Most transactions are writes, so this slices bytes without a function call for each string.
        """
        path_at = at + INT.size
        if not record.startswith(self._prefix, path_at):
            return None
        try:
            [length] = _int_at(record, at)
            path_end = path_at + length
            [length] = _int_at(record, path_end)
            data_at = path_end + INT.size
            data_end = data_at + length if length > 0 else data_at
            [version] = _int_at(record, data_end)
        except StructError as error:
            raise UnreadableTransaction(str(error)) from error
        return record[path_at + self._root_bytes : path_end], record[data_at:data_end], version

    def decode(
        self, record: bytes, session: int, request: int, zxid: int, time_ms: int, kind: int
    ) -> Sequence[NodeChange]:
        """Return the changes of a transaction; the other arguments are its head. May raise UnreadableTransaction."""
        try:
            if kind == CLOSE_SESSION:
                return (self._end_session(record, session, request, zxid, time_ms),)
            if self._prefix not in record:
                return _NOTHING
            if kind == MULTI:
                found: list[NodeChange] = []
                for each, body in operations(record)[0]:
                    found += self._operation(each, body, session, zxid, time_ms)
                return found if len(found) < 2 else _combined(found)
            return self._operation(kind, record[HEAD_BYTES:], session, zxid, time_ms)
        except (StructError, ValueError) as error:
            raise UnreadableTransaction(str(error)) from error

    def _operation(self, kind: int, body: bytes, session: int, zxid: int, time_ms: int) -> Sequence[NodeChange]:
        """Return the change of one operation, if it concerns a group."""
        if kind in WRITES:
            if (written := self.decode_write(body, 0)) is None:
                return _NOTHING
            path, data, version = written
            return (NodeChange(zxid, time_ms, session, ChangeKind.WRITTEN, path, data, version),)
        if kind in _NO_CHANGE:
            return _NOTHING
        path, at = block(body, 0)
        if not path.startswith(self._prefix):
            return _NOTHING
        name = path[self._root_bytes :]
        if kind in CREATES:
            data, at = block(body, at)
            at = after_acl(body, at)
            is_ephemeral = kind in _MAY_BE_EPHEMERAL and FLAG_AND_INT.unpack_from(body, at)[0]
            return (NodeChange(zxid, time_ms, session, ChangeKind.CREATED, name, data, 0, 1, is_ephemeral),)
        if kind in DELETES:
            return (NodeChange(zxid, time_ms, session, ChangeKind.DELETED, name),)
        raise ValueError(f"unknown transaction type {kind}")

    def _end_session(self, record: bytes, session: int, request: int, zxid: int, time_ms: int) -> NodeChange:
        """The request of a client has a number. Without one, the server has expired the session."""
        end = SessionEnd.CLOSED if request else SessionEnd.EXPIRED
        listed = deleted_with_session(record)
        paths = listed[0] if listed else ()
        ended = tuple(path[self._root_bytes :] for path in paths if path.startswith(self._prefix))
        return NodeChange(zxid, time_ms, session, ChangeKind.SESSION_ENDED, b"", end=end, ended=ended)


def _combined(changes: Sequence[NodeChange]) -> Sequence[NodeChange]:
    """Combine the creation of a node, and its writes, in one transaction: nobody sees the node in between."""
    found: list[NodeChange] = []
    last: dict[bytes, int] = {}
    for change in changes:
        at = last.get(change.path)
        if change.kind is ChangeKind.WRITTEN and at is not None:
            before = found[at]
            found[at] = before._replace(data=change.data, version=change.version, writes=before.writes + 1)
        else:
            last[change.path] = len(found)
            found.append(change)
    return found


# Read the transaction logs of a server as one series, without gaps, up to the last complete transaction.


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
            self.torn = None
            records = LogFile(file.path, self.zxid)
            for record in records:
                session, _request, zxid, time_ms, kind = HEAD.unpack_from(record)
                self.reached = max(self.reached, zxid)
                if self.after is not None and zxid <= self.after == self.zxid:
                    continue
                self._check_follows(zxid, file.path)
                if zxid >> COUNTER_BITS > self.zxid >> COUNTER_BITS:
                    self.leaders.append((self.zxid, zxid))
                if self.until is not None and zxid > self.until:
                    self.has_more = True
                    return
                self.zxid = zxid
                yield Transaction(session, zxid, time_ms, kind, record, file.path)
                if self.zxid == self.until:
                    return
            self.torn = file.path if records.torn else None

    def _check_follows(self, zxid: int, path: Path) -> None:
        """Raise DamagedDataError for a gap. Without a snapshot, the logs must start with the first transaction ever."""
        if follows(self.zxid, zxid) and (self.after is not None or self.zxid or is_first(zxid)):
            return
        reason = f"0x{zxid:x} follows 0x{self.zxid:x}: transactions are missing or out of order"
        raise DamagedDataError(str(path), reason, last_zxid=self.zxid)
