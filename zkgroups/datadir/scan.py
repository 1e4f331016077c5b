"""Scan the nodes of a snapshot, and apply the changes after it.

Every node of the tree passes through `SnapshotScan.runs`, so it slices bytes and creates no object per node. It yields
siblings together, with records in the format of a server's response (`zookeeper/requests/multiread_format.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from ..core.znodes.paths import CONSUMERS
from ..exceptions import DamagedDataError
from ..zookeeper.requests.multiread_format import GOOD_HEAD
from .files import LONGEST
from .replayed_changes import STAT, Change, NodeUpdate, ReplayedChanges
from .snapshot_file import END_OF_NODES, HEADER_BYTES

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

    # Parsing

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
        """Skip so many bytes, without keeping them in memory."""
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
    return record[:-16] + _NO_SESSION + record[-8:] if owner[0] == 0xFF or owner == _CONTAINER else record


_CONTAINER: Final = b"\x80" + bytes(7)


def _is_digested(directory: bytes) -> bool:
    """Return whether the digest includes the children of the directory. The server's own nodes are excluded."""
    return directory != b"/zookeeper" and not directory.startswith(b"/zookeeper/")


def _digest(path: bytes, record: bytes) -> int:
    """Return the digest of one node: of path, data, and the stat with the pzxid in the third place."""
    return zlib.crc32(path + record[4:-44] + record[-8:] + record[-44:-8])
