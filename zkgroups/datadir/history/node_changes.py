"""Decode what a transaction did to the nodes of groups.

Most transactions concern other nodes, so their bytes are compared with a prefix before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import error as StructError
from typing import Final

from ...core.history.changes import ChangeKind, NodeChange, SessionEnd
from ...core.znodes.paths import CONSUMERS
from ..transaction_format import (
    CHECK,
    CLOSE_SESSION,
    CREATE,
    CREATE2,
    CREATE_SESSION,
    CREATES,
    DELETES,
    ERROR,
    FLAG_AND_INT,
    HEAD_BYTES,
    INT,
    MULTI,
    SET_ACL,
    SET_DATA,
    WRITES,
    after_acl,
    block,
    deleted_with_session,
    operations,
)

_NO_CHANGE: Final = frozenset({SET_ACL, CHECK, ERROR, CREATE_SESSION})
_MAY_BE_EPHEMERAL: Final = frozenset({CREATE, CREATE2})
_PATH_AT: Final = HEAD_BYTES + INT.size

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

    def decode(
        self, record: bytes, session: int, request: int, zxid: int, time_ms: int, kind: int
    ) -> Sequence[NodeChange]:
        """Return the changes of a transaction; the other arguments are its head. May raise UnreadableTransaction."""
        try:
            if kind == SET_DATA:  # first, because most of them are commits
                return self._write(record, session, zxid, time_ms)
            if kind == CLOSE_SESSION:
                return (self._end_session(record, session, request, zxid, time_ms),)
            if self._prefix not in record:
                return _NOTHING
            if kind == MULTI:
                parts = operations(record)[0]
                found = [self._operation(*part, session, zxid, time_ms) for part in parts if part[0] not in _NO_CHANGE]
                return _combined([change for change in found if change is not None])
            change = self._operation(kind, record[HEAD_BYTES:], session, zxid, time_ms)
            return _NOTHING if change is None else (change,)
        except (StructError, ValueError) as error:
            raise UnreadableTransaction(str(error)) from error

    def _write(self, record: bytes, session: int, zxid: int, time_ms: int) -> Sequence[NodeChange]:
        """Decode a write. Logs have millions of them, so this slices bytes without a function call for each string."""
        if not record.startswith(self._prefix, _PATH_AT):
            return _NOTHING
        [length] = _int_at(record, HEAD_BYTES)
        path_end = _PATH_AT + length
        [length] = _int_at(record, path_end)
        data_at = path_end + INT.size
        data_end = data_at + length if length > 0 else data_at
        [version] = _int_at(record, data_end)
        path = record[_PATH_AT + self._root_bytes : path_end]
        kind, data = ChangeKind.WRITTEN, record[data_at:data_end]
        return (tuple.__new__(NodeChange, (zxid, time_ms, session, kind, path, data, version, 1, False, None, ())),)

    def _operation(self, kind: int, body: bytes, session: int, zxid: int, time_ms: int) -> NodeChange | None:
        """Return the change of one operation, if it concerns a group."""
        if kind in _NO_CHANGE:
            return None
        path, at = block(body, 0)
        if not path.startswith(self._prefix):
            return None
        name = path[self._root_bytes :]
        if kind in WRITES:
            data, at = block(body, at)
            [version] = _int_at(body, at)
            return NodeChange(zxid, time_ms, session, ChangeKind.WRITTEN, name, data, version)
        if kind in CREATES:
            data, at = block(body, at)
            at = after_acl(body, at)
            is_ephemeral = kind in _MAY_BE_EPHEMERAL and FLAG_AND_INT.unpack_from(body, at)[0]
            return NodeChange(zxid, time_ms, session, ChangeKind.CREATED, name, data, is_ephemeral=is_ephemeral)
        if kind in DELETES:
            return NodeChange(zxid, time_ms, session, ChangeKind.DELETED, name)
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
    if len(changes) < 2:
        return changes
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
