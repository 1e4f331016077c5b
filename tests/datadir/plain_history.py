"""A second, plain implementation of a history: it decodes every transaction, keeps the whole tree, and has no speed.

It reads complete logs only. Its events have the form of `shown`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from zkgroups.core.history.events import Commit, GroupChange, HistoryEvent, MemberChange, OwnerChange

CREATE, DELETE, SET, MULTI, CREATE2, CONTAINER, TTL, CLOSE = 1, 2, 5, 14, 15, 19, 21, -11
CREATES: Final = (CREATE, CREATE2, CONTAINER, TTL)
FAILED: Final = -1

Shown = tuple[Any, ...]
"""An event as a plain tuple."""


def shown(event: HistoryEvent) -> Shown:
    """Return an event of the library in the form of this module."""
    instance = event.instance.id if event.instance else None
    head = (event.zxid, event.time_ms, event.session, event.group)
    match event:
        case Commit():
            owner = (event.owner.id, event.owner.session) if event.owner else None
            at = (event.topic, event.partition)
            return (*head, *at, event.action.value, event.before, event.offset, event.version, instance, owner)
        case OwnerChange():
            at = (event.topic, event.partition)
            return (*head, *at, event.action.value, event.owner.id, event.owner.session, event.owner.claimed_zxid)
        case MemberChange():
            return (*head, event.action.value, event.member.id, event.member.session, event.member.registered_zxid)
        case GroupChange():
            return (*head, event.action.value, instance)


class Step(NamedTuple):
    """One operation of a transaction."""

    zxid: int
    time_ms: int
    session: int
    kind: int
    path: str = ""
    data: bytes = b""
    version: int = 0
    is_ephemeral: bool = False
    is_expired: bool = False


class _Reader:
    """The parts of Jute that the log uses: numbers in network byte order, texts and bytes after their length."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        [found] = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return int(found)

    def block(self) -> bytes:
        length = max(0, self.number("i"))
        self._at += length
        return self._data[self._at - length : self._at]

    def text(self) -> str:
        return self.block().decode()


def transactions(data_dir: Path) -> Iterator[list[Step]]:
    """Every transaction in the logs of a server."""
    for file in sorted((data_dir / "version-2").glob("log.*"), key=lambda file: int(file.suffix[1:], 16)):
        data, at = file.read_bytes(), 16
        while at + 12 <= len(data):
            length = int.from_bytes(data[at + 8 : at + 12])
            end = at + 12 + length
            if not length or data[end : end + 1] != b"B":
                break
            yield list(_steps(_Reader(data[at + 12 : end])))
            at = end + 1


def _steps(reader: _Reader) -> Iterator[Step]:
    session, request, zxid, time_ms, kind = (reader.number(form) for form in "qiqqi")
    parts = [(kind, reader)]
    if kind == MULTI:
        parts = [(reader.number("i"), _Reader(reader.block())) for _ in range(reader.number("i"))]
    if any(kind == FAILED for kind, _ in parts):
        return
    for kind, part in parts:
        if kind in CREATES:
            path, data = part.text(), part.block()
            for _ in range(part.number("i")):  # the ACL
                part.number("i"), part.text(), part.text()
            yield Step(
                zxid, time_ms, session, kind, path, data, 0, kind in (CREATE, CREATE2) and bool(part.number("b"))
            )
        elif kind == SET:
            path, data = part.text(), part.block()
            yield Step(zxid, time_ms, session, kind, path, data, part.number("i"))
        elif kind == DELETE:
            yield Step(zxid, time_ms, session, kind, part.text())
        elif kind == CLOSE:
            yield Step(zxid, time_ms, session, kind, is_expired=request == 0)


@dataclass
class PlainHistory:
    """The tree below a root, with the transaction that created each node."""

    root: str = "/consumers"
    tree: dict[str, Step] = field(default_factory=dict)

    def events(self, data_dir: Path) -> Iterator[Shown]:
        """Yield all events of complete logs."""
        for steps in transactions(data_dir):
            found: list[tuple[Step, Shown]] = []
            for step in steps:
                for event in list(self._events(step)):
                    self._add(found, step, event)
            yield from (event for _, event in found)

    def _add(self, found: list[tuple[Step, Shown]], step: Step, event: Shown) -> None:
        """Add an event. A write of a node that the transaction has created or written before replaces that event."""
        before = [n for n, (earlier, _) in enumerate(found) if earlier.path == step.path != ""]
        if step.kind == SET and before and found[before[-1]][0].kind != DELETE and "offsets" in step.path:
            first = found[before[-1]][1]
            found[before[-1]] = (step, (*event[:6], first[6], first[7], *event[8:]))
        else:
            found.append((step, event))

    def _events(self, step: Step) -> Iterator[Shown]:
        if step.kind == CLOSE:
            mine = [path for path, made in self.tree.items() if made.is_ephemeral and made.session == step.session]
            for path in sorted(mine, key=lambda path: ("/ids/" in path, path)):
                yield from self._event(step, path, "expired" if step.is_expired else "closed")
                del self.tree[path]
        elif step.path.startswith(f"{self.root}/"):
            before = self.tree.get(step.path)
            if step.kind in CREATES:
                self.tree[step.path] = step
            elif step.kind == SET and before is not None:
                self.tree[step.path] = before._replace(data=step.data, version=step.version)
            yield from self._event(step, step.path, None, before)
            if step.kind == DELETE:
                self.tree.pop(step.path, None)

    def _event(self, step: Step, path: str, end: str | None, before: Step | None = None) -> Iterator[Shown]:
        names = path.removeprefix(f"{self.root}/").split("/")
        head = (step.zxid, step.time_ms, step.session, names[0])
        node, is_own = self.tree.get(path), False
        if node is not None:
            is_own = node.is_ephemeral and node.session == step.session
        kind = "created" if step.kind in CREATES else "written" if step.kind == SET else "deleted"
        match names:
            case [group] if kind != "written":
                yield (*head, kind, self._instance(step.session, group))
            case [_, "ids", id] if node is not None:
                words = {
                    "created": "registered",
                    "written": "changed",
                    "deleted": "deregistered" if is_own else "removed",
                }
                yield (*head, end or words[kind], id, node.session if node.is_ephemeral else 0, node.zxid)
            case [_, "owners", topic, number] if node is not None and number.isdigit():
                words = {"created": "claimed", "written": "changed", "deleted": "released" if is_own else "taken"}
                session = node.session if node.is_ephemeral else 0
                yield (*head, topic, int(number), end or words[kind], node.data.decode(), session, node.zxid)
            case [group, "offsets", topic, number] if number.isdigit():
                words = {"created": "created", "written": "committed", "deleted": "deleted"}
                offset, version = (None, -1) if kind == "deleted" else (_offset(step.data), step.version)
                owner = self.tree.get(f"{self.root}/{group}/owners/{topic}/{number}")
                held = (owner.data.decode(), owner.session if owner.is_ephemeral else 0) if owner else None
                last = _offset(before.data) if before else None
                instance = self._instance(step.session, group)
                yield (*head, topic, int(number), words[kind], last, offset, version, instance, held)

    def _instance(self, session: int, group: str) -> str | None:
        ids = f"{self.root}/{group}/ids/"
        mine = [path for path, made in self.tree.items() if made.session == session and path.startswith(ids)]
        return next((path.removeprefix(ids) for path in mine if self.tree[path].is_ephemeral), None)


def _offset(data: bytes) -> int | None:
    return int(data) if data.isdigit() else None
