"""Scan the nodes of a snapshot, and apply the changes after it.

Every node of the tree passes through `SnapshotScan.runs`, so it slices bytes and creates no object per node. It yields
siblings together, with records in the format of a server's response (`zookeeper/requests/multiread.py`).
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from ..core.znodes.paths import CONSUMERS
from ..exceptions import DamagedDataError
from ..zookeeper.requests.multiread import GOOD_HEAD
from .files import END_OF_NODES, HEADER_BYTES, LONGEST
from .transaction_log import (
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
    Transaction,
    after_acl,
    after_data,
    block,
    deleted_with_session,
    digest,
    operations,
)

# Collect the changes made by the transactions after a snapshot, to apply them to its nodes.
#
# The last change of each node counts: a created node is stored completely, an updated one with its new values, a
# deleted one as None. The server writes a snapshot while the tree changes, so the snapshot may have the old or the
# new values.
#
# When a session closes, the server deletes its ephemeral nodes. Since ZooKeeper 3.6 the transaction lists them;
# before that they are found by the session in each node.


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


_INT: Final = Struct(">i")
_SESSION_BYTES: Final = 12
_ACL_NUMBER: Final = 8

HEAD: Final = GOOD_HEAD[:-3]
"""The bytes before the length of the data in a response."""

TAIL: Final = bytes(8)
"""The additional bytes of a stat in a response. Its last 16 bytes are not used."""

_BETWEEN: Final = TAIL + HEAD

MAX_SIBLINGS: Final = 2000
"""The maximum number of siblings per run; fewer if they are large."""
_LARGE_BITS: Final = 13
"""Each 8 KiB (2^13 bytes) of a node counts as one more sibling."""

_NO_SESSION: Final = bytes(8)


class SiblingRun(NamedTuple):
    """Consecutive siblings. A directory may have several runs."""

    directory: bytes
    names: list[bytes]
    records: list[bytes]

    def answer(self) -> bytes:
        """Return the records in the format of a response, without its end."""
        return HEAD + _BETWEEN.join(self.records) + TAIL if self.records else b""


class SnapshotScan:
    """One pass through a snapshot and its later changes. It consumes the changes.

    After the last run, `digest` is the digest of the whole tree, if requested. `newest` is the highest zxid in the
    snapshot, of all nodes that the digest does not cover, or whose directory has changes. Both reveal changes in the
    snapshot that are not in the logs.
    """

    def __init__(
        self,
        chunks: Iterator[bytes],
        changes: ReplayedChanges,
        root: bytes,
        *,
        file: str,
        digest: bool,
        chroot: bytes | None = None,
    ) -> None:
        self.file = file
        """The name of the snapshot in errors."""
        self._chunks = chunks
        self._changes = changes
        self._root = root
        self._above = root.removesuffix(CONSUMERS.encode()) if chroot is None else chroot
        self._wants_digest = digest
        self.has_above = False
        """True if nodes were found directly or anywhere below the chroot."""
        self.digest = 0
        self.newest = 0

    def runs(self) -> Iterator[SiblingRun]:
        """Yield the nodes of the snapshot below the root, after all changes; see `new_children` for created ones."""
        changes, closed, crc32 = self._changes.nodes, self._changes.closed, zlib.crc32
        digests, newest, digest = self._wants_digest, _NO_SESSION, 0
        directory, names, records, room = None, list[bytes](), list[bytes](), MAX_SIBLINGS
        for path, record in self._records():
            above, _, name = path.rpartition(b"/")
            if above != directory or room <= 0:
                if names:
                    yield SiblingRun(directory or b"", names, records)
                directory, names, records, room = above, [], [], MAX_SIBLINGS
                self.has_above = self.has_above or self._is_below_above(above)
                kept, digested = self._is_kept(above), digests and _is_digested(above)
                changed = changes.get(above)
                looked_up = changed is not None or closed
            if looked_up:
                newest = max(newest, record[-52:-44], record[-8:])
                found = self._changed(changed or {}, path, name, record)
                if found is None:
                    continue
                record = found
            if digested:
                digest += crc32(path + record[4:-44] + record[-8:] + record[-44:-8])
            elif not looked_up:
                newest = max(newest, record[-52:-44], record[-8:])
            if kept:
                room -= 1 + (len(record) >> _LARGE_BITS)
                names.append(name)
                records.append(record if record[-16] < 0x80 else _with_visible_session(record))
        if names:
            yield SiblingRun(directory or b"", names, records)
        self.newest = int.from_bytes(newest)
        self.digest += digest

    def new_children(self, directory: bytes) -> Iterator[SiblingRun]:
        """Yield the children of a directory that are not in the snapshot. Call once, after scanning the directory."""
        run = SiblingRun(directory, [], [])
        changed = self._changes.nodes.pop(directory, {})
        self.has_above = self.has_above or (bool(changed) and self._is_below_above(directory))
        for name, change in changed.items():
            path = b"/".join((directory, name)) if name else b""
            if isinstance(change, bytes):
                record = self._with_children(path, change)
                self.digest += _digest(path, record) if self._wants_digest and _is_digested(directory) else 0
                run.names.append(name)
                run.records.append(_with_visible_session(record))
            elif isinstance(change, NodeUpdate) and change.zxid > self._changes.unlisted:  # else its session was closed
                where = path.decode(errors="replace")
                raise DamagedDataError(str(change.log), f"it updates {where}, which does not exist")
            if len(run.names) >= MAX_SIBLINGS:
                yield run
                run = SiblingRun(directory, [], [])
        if run.names:
            yield run

    def finish(self) -> None:
        """Add all remaining created nodes to the digest."""
        for directory in list(self._changes.nodes):
            for _run in self.new_children(directory):
                pass

    def _is_kept(self, directory: bytes) -> bool:
        return directory.startswith(self._root) and directory[len(self._root) :][:1] in (b"", b"/")

    def _is_below_above(self, directory: bytes) -> bool:
        return directory == self._above or directory.startswith(self._above + b"/")

    # Applying changes

    def _changed(self, changed: dict[bytes, Change], path: bytes, name: bytes, record: bytes) -> bytes | None:
        """Return the record after all changes; None if the node was deleted."""
        if name in changed:
            change = changed.pop(name)
            if change is None:
                return None
            if isinstance(change, bytes):
                return self._with_children(path, change)
            record = change.applied_to(record)
        if record[-16:-8] != _NO_SESSION and self._is_expired(record):
            return None
        return self._with_children(path, record)

    def _is_expired(self, record: bytes) -> bool:
        """Return whether the session of an ephemeral node was closed."""
        czxid, *_, session, _ = STAT.unpack(record[-STAT.size :])
        return self._changes.closed.get(session, 0) > int(czxid)

    def _with_children(self, path: bytes, record: bytes) -> bytes:
        """Update the stat after changes of the children."""
        if path not in self._changes.children:
            return record
        cversion, pzxid = self._changes.children[path]
        *first, known, aversion, session, before = STAT.unpack(record[-STAT.size :])
        return record[: -STAT.size] + STAT.pack(*first, max(known, cversion), aversion, session, max(before, pzxid))

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the path of each node in the snapshot, and its record: length, data and stat."""
        buffer, at = self._after_acls()
        size, int_at = len(buffer), _INT.unpack_from
        while True:
            path_at, end = at + 4, at + 5
            if path_at <= size:
                if not path_at <= (data_at := path_at + int_at(buffer, at)[0]) <= path_at + LONGEST:
                    raise self._damaged(f"a path has a length of {data_at - path_at}")
                end = data_at + 4
                if end <= size:
                    [length] = int_at(buffer, data_at)
                    if length < -1:
                        raise self._damaged(f"the data of a node has a length of {length}")
                    stat_at = data_at + 12 + (length if length > 0 else 0)  # max() would take a tenth of the total time
                    end = stat_at + 60
            if end > size or data_at == path_at + 1:
                if buffer.startswith(END_OF_NODES, at):
                    return
                if end <= size or end - at > LONGEST:
                    reason = f"a node has {end - at} bytes" if end > size else "a path has only one character"
                    raise self._damaged(reason)
                buffer, at = self._more(buffer, at, end - at), 0
                size = len(buffer)
                continue
            yield buffer[path_at:data_at], buffer[data_at : stat_at - 8] + buffer[stat_at:end]
            at = end

    def _after_acls(self) -> tuple[bytes, int]:
        """Return the first bytes, and where the nodes begin in them."""
        sessions, buffer, at = self._number(*self._skip(b"", 0, HEADER_BYTES))
        acls, buffer, at = self._number(*self._skip(buffer, at, _SESSION_BYTES * sessions))
        for _ in range(acls):
            entries, buffer, at = self._number(*self._skip(buffer, at, _ACL_NUMBER))
            for _ in range(entries):
                at += 4  # the permissions
                for _scheme_and_id in range(2):
                    length, buffer, at = self._number(buffer, at)
                    buffer, at = self._skip(buffer, at, length)
        return buffer, at

    def _number(self, buffer: bytes, at: int) -> tuple[int, bytes, int]:
        """Read a length or a count; -1 stands for null, and counts as 0."""
        buffer, at = self._skip(buffer, at, 0)
        if len(buffer) < at + 4:
            buffer, at = self._more(buffer, at, 4), 0
        [number] = _INT.unpack_from(buffer, at)
        if number < -1:
            raise self._damaged(f"a count is {number}")
        return max(0, number), buffer, at + 4

    def _skip(self, buffer: bytes, at: int, length: int) -> tuple[bytes, int]:
        """Skip `length` bytes, without keeping them in memory."""
        at += length
        while len(buffer) < at:
            at -= len(buffer)
            buffer = self._more(b"", 0, 1)
        return buffer, at

    def _more(self, buffer: bytes, at: int, wanted: int) -> bytes:
        """Return the rest of the buffer and at least one more chunk, until there are as many bytes as wanted."""
        parts, size = [buffer[at:]], len(buffer) - at
        while not size or size < wanted:
            chunk = next(self._chunks, b"")
            if not chunk:
                raise self._damaged("it ends within the nodes")
            parts.append(chunk)
            size += len(chunk)
        return b"".join(parts)

    def _damaged(self, reason: str) -> DamagedDataError:
        return DamagedDataError(self.file, reason)


def _with_visible_session(record: bytes) -> bytes:
    """Clear the session field of container and TTL nodes, which holds no session, as servers do in responses."""
    owner = record[-16:-8]
    return record[:-16] + _NO_SESSION + record[-8:] if owner[0] == 0xFF or owner == _CONTAINER_BYTES else record


_CONTAINER_BYTES: Final = b"\x80" + bytes(7)


def _is_digested(directory: bytes) -> bool:
    """Return whether the digest includes the children of the directory. The server's own nodes are excluded."""
    return directory != b"/zookeeper" and not directory.startswith(b"/zookeeper/")


def _digest(path: bytes, record: bytes) -> int:
    """Return the digest of one node: of path, data, and the stat with the pzxid in the third place."""
    return zlib.crc32(path + record[4:-44] + record[-8:] + record[-44:-8])
