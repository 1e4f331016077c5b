"""The changes that a `Watch` reports, found by comparing nodes with earlier reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ..core.znodes.group_view import RegisteredInstance
from ..core.znodes.paths import parent
from ..core.znodes.values import CommittedOffset, ForbiddenNode, Owner, UnreadableNode
from .reading import group_reader
from .requests.node import Node


class Watched(StrEnum):
    """The part of a group to watch: its registered instances, the owners of its partitions, or its offsets."""

    MEMBERS = "members"
    OWNERS = "owners"
    OFFSETS = "offsets"


class ChangeKind(StrEnum):
    """The kind of a change.

    appeared   a node was created, or existed when the watch began
    changed    the data of a node was written
    vanished   a node was deleted
    rescanned  all nodes are read again; the differences follow
    """

    APPEARED = "appeared"
    CHANGED = "changed"
    VANISHED = "vanished"
    RESCANNED = "rescanned"


Value: TypeAlias = RegisteredInstance | Owner | CommittedOffset | UnreadableNode

Leaf: TypeAlias = Node | ForbiddenNode


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one node: a registration, an owner or an offset. Or a notice that all nodes are read again.

    - `kind`: the kind of the change.
    - `path`: the path of the node, without the chroot.
    - `now`: its new value; None if it was deleted.
    - `before`: its last reported value; None if it is new.
    - `reason`: for RESCANNED, why all nodes are read again, such as "the connection was lost". Otherwise empty.

    A value is a `RegisteredInstance`, an `Owner` or a `CommittedOffset`, or a `MalformedNode` or `ForbiddenNode`.
    """

    kind: ChangeKind
    path: str
    now: Value | None = None
    before: Value | None = None
    reason: str = ""


class SeenNodes:
    """The registrations, owners or offsets as they were last reported, and the changes still to report."""

    def __init__(self, group: str, what: Watched) -> None:
        self._group = group
        self._what = what
        self._nodes: dict[str, dict[str, Leaf]] = {}  # by directory and path
        self.changes: deque[Change] = deque()

    def directories(self) -> set[str]:
        """The directories with a reported node."""
        return set(self._nodes)

    def is_readable(self, path: str) -> bool:
        """Return whether the node was reported with its contents."""
        return isinstance(self._nodes.get(parent(path), {}).get(path), Node)

    def keep_only(self, directory: str, paths: Iterable[str]) -> None:
        """Report all other nodes of the directory as vanished."""
        for path in sorted(self._nodes.setdefault(directory, {}).keys() - set(paths)):
            self.update(path, None)

    def remove_directory(self, directory: str) -> None:
        """Report all nodes of the directory as vanished."""
        for path in list(self._nodes.get(directory, ())):
            self.update(path, None)
        self._nodes.pop(directory, None)

    def update(self, path: str, now: Leaf | None) -> None:
        """Compare a node with its last report, and report the difference."""
        nodes = self._nodes.setdefault(parent(path), {})
        before = nodes.pop(path, None)
        if now is not None:
            nodes[path] = now
        if before is None or now is None or _was_recreated(before, now):
            if before is not None:
                self._report(ChangeKind.VANISHED, path, before=before)
            if now is not None:
                self._report(ChangeKind.APPEARED, path, now=now)
        elif self._has_changed(before, now):
            self._report(ChangeKind.CHANGED, path, now=now, before=before)

    def _has_changed(self, before: Leaf, now: Leaf) -> bool:
        if isinstance(before, Node) and isinstance(now, Node):
            # Committing the same offset again is a change. Rewriting the same registration is not.
            return before.mzxid != now.mzxid and (self._what is Watched.OFFSETS or before.data != now.data)
        return type(before) is not type(now)

    def _report(self, kind: ChangeKind, path: str, *, now: Leaf | None = None, before: Leaf | None = None) -> None:
        self.changes.append(Change(kind, path, self._value(now), self._value(before)))

    def _value(self, leaf: Leaf | None) -> Value | None:
        if leaf is None:
            return None
        topic, name = leaf.path.rsplit("/", 2)[-2:]
        if isinstance(leaf, ForbiddenNode):
            return RegisteredInstance(name, 0, leaf) if self._what is Watched.MEMBERS else leaf
        match self._what:
            case Watched.MEMBERS:
                return group_reader.registered_instance(name, leaf)
            case Watched.OWNERS:
                return group_reader.owner(topic, name, leaf)
            case Watched.OFFSETS:
                return group_reader.offset_named(self._group, topic, name, leaf)


def _was_recreated(before: Leaf, now: Leaf) -> bool:
    return isinstance(before, Node) and isinstance(now, Node) and before.czxid != now.czxid
