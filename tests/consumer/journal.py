"""The transaction log of a ZooKeeper server: every change to a group in order, with its session.

A watch shows the state when it reads. Between two reads, an offset may fall and rise again, and the watch does not
report the session that wrote it. The log contains every change. It survives a `kill -9` of the server, but its last
record may be incomplete.

The log of one server of an ensemble may contain changes that the majority never accepted: see `accepted`.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from zkgroups import TopicPartition

from .history import Grant, Write

_MAGIC: Final = b"ZKLG"
_HEADER: Final = 16
"""The bytes of a file header: magic, version, and an id of the database."""

CREATE, DELETE, SET, MULTI, CREATE2, CONTAINER, TTL, CLOSE = 1, 2, 5, 14, 15, 19, 21, -11
_CREATES: Final = (CREATE, CREATE2, CONTAINER, TTL)


@dataclass(frozen=True, slots=True)
class Change:
    """A node that a session created, wrote or deleted. `kind` is the type of the request, `time` that of the server."""

    zxid: int
    session: int
    kind: int
    path: str = ""
    data: bytes | None = None
    ephemeral: bool = False
    time: float = 0.0


class _Reader:
    """The parts of Jute that the log uses: numbers in network byte order, texts and bytes after their length."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        [found] = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return int(found)

    def block(self) -> bytes | None:
        length = self.number("i")
        if length < 0:
            return None
        self._at += length
        return self._data[self._at - length : self._at]

    def text(self) -> str:
        return (self.block() or b"").decode()


def changes(data_dir: Path) -> Iterator[Change]:
    """Every change in the log of a server, in order. A record that is there twice, as after a restart, is returned
    once."""
    last = 0
    for file in sorted((data_dir / "version-2").glob("log.*"), key=lambda file: int(file.suffix[1:], 16)):
        for record in _records(file.read_bytes()):
            found = _changes(record)
            if found and found[0].zxid > last:
                last = found[0].zxid
                yield from found


def accepted(data_dirs: Iterable[Path]) -> Iterator[Change]:
    """Every change that the majority of an ensemble has in its logs, in order.

    A change is accepted when the majority has written it, and only a change that was not accepted is removed later.
    """
    logs = [list(changes(data_dir)) for data_dir in data_dirs]
    copies: dict[int, list[list[Change]]] = defaultdict(list)
    for log in logs:
        by_zxid: dict[int, list[Change]] = defaultdict(list)
        for change in log:
            by_zxid[change.zxid].append(change)
        for zxid, found in by_zxid.items():
            copies[zxid].append(found)
    for _, those in sorted(copies.items()):
        for found in those:
            if 2 * those.count(found) > len(logs):
                yield from found
                break


def _records(data: bytes) -> Iterator[bytes]:
    """The file is allocated in advance: a length of zero is the end, or a part that was never written."""
    at = _HEADER
    if data[:4] != _MAGIC:
        return
    while at + 12 <= len(data):
        length = int.from_bytes(data[at + 8 : at + 12])
        end = at + 12 + length
        if not length or data[end : end + 1] != b"B":
            return
        yield data[at + 12 : end]
        at = end + 1


def _changes(record: bytes) -> list[Change]:
    reader = _Reader(record)
    session, _cxid, zxid, milliseconds, kind = (reader.number(form) for form in "qiqqi")
    parts = [(kind, reader)]
    if kind == MULTI:
        parts = [(reader.number("i"), _Reader(reader.block() or b"")) for _ in range(reader.number("i"))]
    found = [change for kind, part in parts for change in _change(part, zxid, session, kind)]
    return [replace(change, time=milliseconds / 1000) for change in found]


def _change(reader: _Reader, zxid: int, session: int, kind: int) -> Iterator[Change]:
    if kind in _CREATES:
        path, data = reader.text(), reader.block()
        for _ in range(reader.number("i")):  # the ACL
            reader.number("i"), reader.text(), reader.text()
        yield Change(zxid, session, kind, path, data, kind in (CREATE, CREATE2) and bool(reader.number("b")))
    elif kind == SET:
        yield Change(zxid, session, kind, reader.text(), reader.block())
    elif kind == DELETE:
        yield Change(zxid, session, kind, reader.text())
    elif kind == CLOSE:
        yield Change(zxid, session, kind)


@dataclass
class _Tree:
    """The ephemeral nodes of a group at one moment."""

    ids: dict[str, int] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)

    def apply(self, change: Change, root: str) -> None:
        """Note a node that was created or deleted."""
        if change.kind == CLOSE:
            self.ids = {path: session for path, session in self.ids.items() if session != change.session}
            self.owners = {path: session for path, session in self.owners.items() if session != change.session}
            return
        nodes = self.ids if change.path.startswith(f"{root}/ids/") else self.owners
        if change.kind == DELETE:
            nodes.pop(change.path, None)
        elif change.ephemeral:
            nodes[change.path] = change.session


def read(data_dir: Path, group: str, *, chroot: str = "") -> tuple[list[Write], list[Grant]]:
    """Every write of an offset of a group with the owner at that moment, and every claim."""
    return of_group(changes(data_dir), group, chroot=chroot)


def of_group(found: Iterable[Change], group: str, *, chroot: str = "") -> tuple[list[Write], list[Grant]]:
    """The same from changes in order."""
    root = f"{chroot}/consumers/{group}"
    tree, writes, grants = _Tree(), [], []
    for change in found:
        if change.kind != CLOSE and not change.path.startswith(f"{root}/"):
            continue
        tree.apply(change, root)
        at = _partition(change.path, root)
        if change.path.startswith(f"{root}/offsets/") and at is not None:
            owner = tree.owners.get(f"{root}/owners/{at}")
            registered = change.session in tree.ids.values()
            if writes and (writes[-1].zxid, writes[-1].at) == (change.zxid, str(at)):
                writes.pop()  # created and written in one transaction, which is invisible in between
            writes.append(Write(change.zxid, change.session, str(at), _offset(change.data), owner, registered))
        elif change.path.startswith(f"{root}/owners/") and at is not None and change.ephemeral:
            name = (change.data or b"").decode(errors="replace")
            grants.append(Grant(change.zxid, change.session, str(at), name, change.session in tree.ids.values()))
    return writes, grants


def _partition(path: str, root: str) -> TopicPartition | None:
    names = path.removeprefix(root).split("/")
    return TopicPartition(names[2], int(names[3])) if len(names) == 4 and names[3].isdigit() else None


def _offset(data: bytes | None) -> int | None:
    return int(data) if data is not None and data.isdigit() else None
