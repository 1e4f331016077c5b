"""Collect the changes made by the transactions after a snapshot, to apply them to its nodes.

The last change of each node counts: a created node is stored completely, an updated one with its new values, a deleted
one as None. The server writes a snapshot while the tree changes, so the snapshot may have the old or the new values.

When a session closes, the server deletes its ephemeral nodes. Since ZooKeeper 3.6 the transaction lists them; before
that they are found by the session in each node.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Final

from ..exceptions import DamagedDataError
from .transaction_format import (
    CHECK,
    CLOSE_SESSION,
    CREATE_CONTAINER,
    CREATE_SESSION,
    CREATE_TTL,
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
    after_data,
    block,
    deleted_with_session,
    digest,
    operations,
)
from .transaction_log import Transaction

STAT: Final = Struct(">qqqqiiiqq")
"""czxid, mzxid, ctime, mtime, version, cversion, aversion, session, pzxid: as a snapshot has it."""

_CONTAINER: Final = -(2**63)
"""The session field of a container node. A node with a time to live has the sum of `_TTL` and that time."""
_TTL: Final = -(2**56)

_INT_AND_LONG: Final = Struct(">iq")


class NodeUpdate:
    """New values of a node in the snapshot."""

    __slots__ = ("aversion", "body", "log", "mtime", "mzxid", "version", "zxid")

    def __init__(self, log: Path) -> None:
        self.body: bytes | None = None
        self.mzxid = self.mtime = self.version = 0
        self.zxid = 0
        """The zxid of the last transaction that changed the node."""
        self.log = log
        """The file with the first of these transactions."""
        self.aversion: int | None = None

    def applied_to(self, record: bytes) -> bytes:
        """Return the node's record with these values."""
        body = record[: -STAT.size]
        czxid, mzxid, ctime, mtime, version, cversion, aversion, session, pzxid = STAT.unpack(record[-STAT.size :])
        if self.body is not None:
            body, mzxid, mtime, version = self.body, self.mzxid, self.mtime, self.version
        if self.aversion is not None:
            aversion = self.aversion
        return body + STAT.pack(czxid, mzxid, ctime, mtime, version, cversion, aversion, session, pzxid)


Change = bytes | NodeUpdate | None
"""A created node as length, data and stat; the new values of an updated node; or None for a deleted node."""


class ReplayedChanges:
    """The last change of each node, by directory and name. The directory and name of the root are empty."""

    def __init__(self) -> None:
        self.nodes: defaultdict[bytes, dict[bytes, Change]] = defaultdict(dict)
        self.children: dict[bytes, tuple[int, int]] = {}
        """The cversion and pzxid of nodes whose children changed; the cversion is -1 if no child was created."""
        self.closed: dict[int, int] = {}
        """Closed sessions, with the zxid of the transaction."""
        self.unlisted = 0
        """The zxid of the last closed session whose transaction does not list its nodes."""
        self.digest: int | None = None
        """The digest of the tree after the last transaction, if it contains one."""
        self._ephemeral: defaultdict[int, set[bytes]] = defaultdict(set)

    def apply(self, transaction: Transaction) -> None:
        """Add the changes of a transaction."""
        record, kind = transaction.record, transaction.kind
        try:
            at = self._multi(transaction) if kind == MULTI else self._apply(transaction, kind, record, HEAD_BYTES)
        except (StructError, ValueError) as error:
            raise _unreadable(transaction, str(error)) from error
        if kind != ERROR:
            self.digest = digest(record, at)

    @property
    def may_delete(self) -> bool:
        """Whether any node was or may have been deleted."""
        return self.unlisted > 0 or any(None in siblings.values() for siblings in self.nodes.values())

    def finish(self) -> None:
        """After the last transaction: add an entry for each directory that contains a node with changed children."""
        for path in self.children:
            self.nodes[path.rpartition(b"/")[0]]

    def _multi(self, transaction: Transaction) -> int:
        """Add all operations of a multi transaction; return where they end."""
        found, at = operations(transaction.record)
        for kind, body in found:
            self._apply(transaction, kind, body, 0)
        return at

    def _apply(self, transaction: Transaction, kind: int, record: bytes, at: int) -> int:
        """Add one operation; return where it ends."""
        if kind in WRITES:
            return self._write(transaction, record, at)
        if kind in CREATES:
            return self._create(transaction, kind, record, at)
        if kind in DELETES:
            path, at = block(record, at)
            self._delete(path, transaction.zxid)
            return at
        if kind == SET_ACL:
            return self._set_acl(transaction, record, at)
        if kind == CLOSE_SESSION:
            return self._close(transaction, record, at)
        if kind in (CREATE_SESSION, ERROR):
            return at + INT.size
        if kind == CHECK:
            return block(record, at)[1] + INT.size
        raise ValueError(f"unknown transaction type {kind}")

    def _create(self, transaction: Transaction, kind: int, record: bytes, at: int) -> int:
        path, start = block(record, at)
        end = after_data(record, start)
        at = after_acl(record, end)
        session, cversion = 0, -1
        if kind == CREATE_CONTAINER:
            session, [cversion] = _CONTAINER, INT.unpack_from(record, at)
            at += INT.size
        elif kind == CREATE_TTL:
            cversion, lives_ms = _INT_AND_LONG.unpack_from(record, at)
            session = _TTL + lives_ms
            at += _INT_AND_LONG.size
        else:
            ephemeral, cversion = FLAG_AND_INT.unpack_from(record, at)
            at += FLAG_AND_INT.size
            if ephemeral:
                session = transaction.session
                self._ephemeral[session].add(path)
        directory, _, name = path.rpartition(b"/")
        zxid, now = transaction.zxid, transaction.time_ms
        self.nodes[directory][name] = record[start:end] + STAT.pack(zxid, zxid, now, now, 0, 0, 0, session, zxid)
        self.children.pop(path, None)
        self.children[directory] = (cversion, zxid)
        return at

    def _delete(self, path: bytes, zxid: int) -> None:
        directory, _, name = path.rpartition(b"/")
        self.nodes[directory][name] = None
        self.children.pop(path, None)
        self.children[directory] = (self.children.get(directory, _NO_CHILDREN)[0], zxid)

    def _write(self, transaction: Transaction, record: bytes, at: int) -> int:
        path, start = block(record, at)
        end = after_data(record, start)
        [version] = INT.unpack_from(record, end)
        siblings, name, found = self._known(transaction, path)
        body, zxid, now = record[start:end], transaction.zxid, transaction.time_ms
        if isinstance(found, NodeUpdate):
            found.body, found.mzxid, found.mtime, found.version = body, zxid, now, version
            found.zxid = zxid
        else:
            czxid, _, ctime, _, _, *others = STAT.unpack(found[-STAT.size :])
            siblings[name] = body + STAT.pack(czxid, zxid, ctime, now, version, *others)
        return end + INT.size

    def _set_acl(self, transaction: Transaction, record: bytes, at: int) -> int:
        path, at = block(record, at)
        at = after_acl(record, at)
        [aversion] = INT.unpack_from(record, at)
        siblings, name, found = self._known(transaction, path)
        if isinstance(found, NodeUpdate):
            found.aversion, found.zxid = aversion, transaction.zxid
        else:
            *first, _, session, pzxid = STAT.unpack(found[-STAT.size :])
            siblings[name] = found[: -STAT.size] + STAT.pack(*first, aversion, session, pzxid)
        return at + INT.size

    def _known(self, transaction: Transaction, path: bytes) -> tuple[dict[bytes, Change], bytes, bytes | NodeUpdate]:
        """Return the siblings, name and current change of a node that is updated."""
        directory, _, name = path.rpartition(b"/")
        siblings = self.nodes[directory]
        if name not in siblings:
            siblings[name] = NodeUpdate(transaction.log)
        found = siblings[name]
        if found is None:
            raise _unreadable(transaction, f"it updates {path.decode(errors='replace')}, which was deleted before")
        return siblings, name, found

    def _close(self, transaction: Transaction, record: bytes, at: int) -> int:
        session, zxid = transaction.session, transaction.zxid
        listed = deleted_with_session(record)
        if listed is None:
            self.unlisted = zxid
        else:
            paths, at = listed
            for path in paths:
                self._delete(path, zxid)
        for path in self._ephemeral.pop(session, ()):
            directory, _, name = path.rpartition(b"/")
            found = self.nodes[directory][name]
            if isinstance(found, bytes) and STAT.unpack(found[-STAT.size :])[-2] == session:
                self._delete(path, zxid)
        self.closed[session] = zxid
        return at


_NO_CHILDREN: Final = (-1, 0)


def _unreadable(transaction: Transaction, reason: str) -> DamagedDataError:
    zxid = transaction.zxid
    return DamagedDataError(
        str(transaction.log), f"transaction 0x{zxid:x} cannot be read: {reason}", last_zxid=zxid - 1
    )
