"""One way through a snapshot, with the changes after it laid over each node as it comes.

This is the loop that every node of a tree goes through. It makes no object of a node, but cuts its bytes: siblings come
together, with their names and their records as a server would send them (`zookeeper/requests/multiread.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from ..core.znodes.paths import CONSUMERS
from ..exceptions import DamagedDataError
from ..zookeeper.requests.multiread import GOOD_HEAD
from .changes import STAT, Change, Changes, Written
from .files import LONGEST
from .snapshot_file import END_OF_NODES, HEADER_BYTES

_INT: Final = Struct(">i")
_SESSION_BYTES: Final = 12
_ACL_NUMBER: Final = 8

HEAD: Final = GOOD_HEAD[:-3]
"""What stands before the length of the data in an answer."""

TAIL: Final = bytes(8)
"""What a stat in an answer has more than one in a snapshot. Nobody looks at the last 16 bytes of it."""

_BETWEEN: Final = TAIL + HEAD

MOST: Final = 2000
"""How many siblings are passed on together; fewer if they are large."""
_LARGE_BITS: Final = 13
"""Each 8 KiB of a node count as a sibling."""

_NOBODY: Final = bytes(8)


class Run(NamedTuple):
    """Nodes below one directory; together with others they are all that are below it."""

    directory: bytes
    names: list[bytes]
    records: list[bytes]

    def answer(self) -> bytes:
        """As a server would send them, without the end."""
        return HEAD + _BETWEEN.join(self.records) + TAIL if self.records else b""


class Scan:
    """A tree on its way by: a snapshot, and what has changed since, which is used up on the way.

    When all runs have come, `digest` is that of the whole tree, if it was wanted, and `newest` the zxid of the
    newest node in the snapshot that is not in the digest as it is: either tells where the changes are not all that the
    snapshot has seen.
    """

    def __init__(self, chunks: Iterator[bytes], changes: Changes, root: bytes, *, digest: bool) -> None:
        self._chunks = chunks
        self._changes = changes
        self._root = root
        self._above = root.removesuffix(CONSUMERS.encode())
        self._wants_digest = digest
        self.has_above = False
        """Whether there is anything below what is above the root."""
        self.digest = 0
        self.newest = 0

    def runs(self) -> Iterator[Run]:
        """The nodes below the root: those of the snapshot as they are after all changes; what is new, see `new`."""
        changes, closed, crc32 = self._changes.nodes, self._changes.closed, zlib.crc32
        digests, newest, digest = self._wants_digest, _NOBODY, 0
        directory, names, records, room = None, list[bytes](), list[bytes](), MOST
        for path, record in self._records():
            above, _, name = path.rpartition(b"/")
            if above != directory or room <= 0:
                if names:
                    yield Run(directory or b"", names, records)
                directory, names, records, room = above, [], [], MOST
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
                records.append(record if record[-16] < 0x80 else _told(record))
        if names:
            yield Run(directory or b"", names, records)
        self.newest = int.from_bytes(newest)
        self.digest += digest

    def new(self, directory: bytes) -> Iterator[Run]:
        """The nodes directly below it that are not in the snapshot; to be asked for once, when it has gone by."""
        run = Run(directory, [], [])
        changed = self._changes.nodes.pop(directory, {})
        self.has_above = self.has_above or (bool(changed) and self._is_below_above(directory))
        for name, change in changed.items():
            path = b"/".join((directory, name)) if name else b""
            if isinstance(change, bytes):
                record = self._with_children(path, change)
                self.digest += _digest(path, record) if self._wants_digest and _is_digested(directory) else 0
                run.names.append(name)
                run.records.append(_told(record))
            elif isinstance(change, Written) and change.zxid > self._changes.unlisted:  # else it went with a session
                where = path.decode(errors="replace")
                raise DamagedDataError("the log", f"it changes {where}, which is not there", last_zxid=None)
            if len(run.names) >= MOST:
                yield run
                run = Run(directory, [], [])
        if run.names:
            yield run

    def rest(self) -> None:
        """Go through what nobody has asked for, for the sake of the digest."""
        for directory in list(self._changes.nodes):
            for _run in self.new(directory):
                pass

    def _is_kept(self, directory: bytes) -> bool:
        return directory.startswith(self._root) and directory[len(self._root) :][:1] in (b"", b"/")

    def _is_below_above(self, directory: bytes) -> bool:
        return directory == self._above or directory.startswith(self._above + b"/")

    # With what has changed

    def _changed(self, changed: dict[bytes, Change], path: bytes, name: bytes, record: bytes) -> bytes | None:
        """What has become of a node; None where it is gone."""
        if name in changed:
            change = changed.pop(name)
            if change is None:
                return None
            if isinstance(change, bytes):
                return self._with_children(path, change)
            record = change.over(record)
        if record[-16:-8] != _NOBODY and self._has_ended(record):
            return None
        return self._with_children(path, record)

    def _has_ended(self, record: bytes) -> bool:
        """Whether the node went with its session."""
        czxid, *_, session, _ = STAT.unpack(record[-STAT.size :])
        return self._changes.closed.get(session, 0) > int(czxid)

    def _with_children(self, path: bytes, record: bytes) -> bytes:
        """As it is after nodes below this one came and went."""
        if path not in self._changes.children:
            return record
        cversion, pzxid = self._changes.children[path]
        *first, known, aversion, session, before = STAT.unpack(record[-STAT.size :])
        return record[: -STAT.size] + STAT.pack(*first, max(known, cversion), aversion, session, max(before, pzxid))

    # The bytes

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        """Of each node in the snapshot its path, and its data with the length in front and the stat behind."""
        buffer, at = self._after_acls()
        size, int_at = len(buffer), _INT.unpack_from
        while True:
            path_at, end = at + 4, at + 5
            if path_at <= size:
                if not path_at <= (data_at := path_at + int_at(buffer, at)[0]) <= path_at + LONGEST:
                    raise _damaged(f"a path in it has a length of {data_at - path_at}")
                end = data_at + 4
                if end <= size:
                    [length] = int_at(buffer, data_at)
                    stat_at = data_at + 12 + (length if length > 0 else 0)  # max() would take a tenth of it all
                    end = stat_at + 60
            if end > size or data_at == path_at + 1:
                if buffer.startswith(END_OF_NODES, at):
                    return
                if end <= size or end - at > LONGEST:
                    raise _damaged(f"it has a node of {end - at} bytes" if end > size else "a path in it is one letter")
                buffer, at = self._more(buffer, at, end - at), 0
                size = len(buffer)
                continue
            yield buffer[path_at:data_at], buffer[data_at : stat_at - 8] + buffer[stat_at:end]
            at = end

    def _after_acls(self) -> tuple[bytes, int]:
        """The first bytes, and where in them the nodes begin."""
        sessions, buffer, at = self._number(*self._skip(b"", 0, HEADER_BYTES))
        acls, buffer, at = self._number(*self._skip(buffer, at, _SESSION_BYTES * sessions))
        for _ in range(acls):
            entries, buffer, at = self._number(*self._skip(buffer, at, _ACL_NUMBER))
            for _ in range(entries):
                at += 4  # what is allowed
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
            raise _damaged(f"it has a number of {number}")
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
                raise _damaged("it ends in the middle of its nodes")
            parts.append(chunk)
            size += len(chunk)
        return b"".join(parts)


def _damaged(reason: str) -> DamagedDataError:
    return DamagedDataError("the snapshot", reason)


def _told(record: bytes) -> bytes:
    """As a server tells it: what is no session, but says that a node goes by itself one day, it does not tell."""
    owner = record[-16:-8]
    return record[:-16] + _NOBODY + record[-8:] if owner[0] == 0xFF or owner == _CONTAINER else record


_CONTAINER: Final = b"\x80" + bytes(7)


def _is_digested(directory: bytes) -> bool:
    """Servers may differ in what they keep for themselves, which is no part of a digest."""
    return directory != b"/zookeeper" and not directory.startswith(b"/zookeeper/")


def _digest(path: bytes, record: bytes) -> int:
    """Of one node: path, data, and its stat with the pzxid in the third place."""
    return zlib.crc32(path + record[4:-44] + record[-8:] + record[-44:-8])
