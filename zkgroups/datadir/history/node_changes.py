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
    WRITES,
    after_acl,
    block,
    deleted_with_session,
    operations,
)

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
