"""The format of transactions: their types, their fields, and the operations of a multi transaction.

    head        session, number of the request, zxid, time, type: 32 bytes
    body        by type: see `replayed_changes.py`
    digest      version and digest of the tree after the transaction       since 3.6, unless disabled

All numbers are in network byte order. Strings and data come after their length; -1 stands for null.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from .snapshot_file import DIGEST_VERSION

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
    """Return the nodes that the end of a session deletes, and where their list ends. None if they are not listed."""
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
