"""Following what changes in a group: members and their registrations, owners, or offsets.

A `Watch` reads in the thread of whoever iterates over it; kazoo's watch thread only notes which path has changed. So no
code of a user runs on kazoo's threads, and no call is made there (rule 8). ZooKeeper's watches fire once, and die with
the connection, with the session and with their node: what has fired is read and armed again, and after a loss
everything is compared with what was known. That is said by a change of its own, `RESCANNED`, because what happened
twice meanwhile then shows as one change.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self

from kazoo.protocol.states import EventType

from ..core.describe import RegisteredInstance
from ..core.model import CommittedOffset, DeniedNode, MalformedNode, Owner
from ..core.paths import GroupPaths, join, parent
from ..exceptions import UnavailableError
from . import bulk, view
from .deadline import Deadline
from .handle import Handle
from .node import Node

log = logging.getLogger(__name__)

PATIENCE: Final = 1.0
"""While there is no connection: how often to look whether the watch was closed."""


class Watched(StrEnum):
    """What of a group to follow."""

    MEMBERS = "members"
    OWNERS = "owners"
    OFFSETS = "offsets"


class ChangeKind(StrEnum):
    """What happened to a node."""

    APPEARED = "appeared"
    CHANGED = "changed"
    VANISHED = "vanished"
    RESCANNED = "rescanned"


Value = RegisteredInstance | Owner | CommittedOffset | MalformedNode


@dataclass(frozen=True, slots=True)
class Change:
    """One change: what is there now and what was there before, or the reason why everything was looked at again."""

    kind: ChangeKind
    path: str
    now: Value | None = None
    before: Value | None = None
    reason: str = ""


class Watch:
    """An iterator of changes, which begins with what is there; a context manager; or, by `follow`, a callback.

    >>> with group.watch(Watched.OWNERS) as changes:  # doctest: +SKIP
    ...     for change in changes:
    ...         print(change.kind, change.path)
    """

    def __init__(self, paths: GroupPaths, handle: Handle, what: Watched) -> None:
        self._paths = paths
        self._handle = handle
        self._what = what
        self._root = {Watched.MEMBERS: paths.ids, Watched.OWNERS: paths.owners, Watched.OFFSETS: paths.offsets}[what]
        self._fired: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
        self._changes: deque[Change] = deque()
        self._nodes: dict[str, Node] = {}
        self._directories: set[str] = set()
        self._rescan = "the watch begins"
        self._session_id: int | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    # Use

    def __iter__(self) -> Iterator[Change]:
        while (change := self.next()) is not None:
            yield change

    def next(self, timeout: float | None = None) -> Change | None:
        """The next change; None when the time is over or the watch was closed."""
        deadline = Deadline(threading.TIMEOUT_MAX) if timeout is None else Deadline.after("timeout", timeout)
        while not self._closed.is_set():
            if self._changes:
                return self._changes.popleft()
            try:
                if not self._look(deadline):
                    return None
            except UnavailableError as error:
                self._rescan = self._rescan or f"no answer: {error}"
                if not self._wait_connected(deadline):
                    return None
        return None

    def follow(self, callback: Callable[[Change], object]) -> Self:
        """Call back for every change, on a thread of this watch, until it is closed; an error is logged and goes on."""
        self._thread = threading.Thread(
            target=self._follow, args=(callback,), name=f"zkgroups-watch-{self._paths.group}", daemon=True
        )
        self._thread.start()
        return self

    def _follow(self, callback: Callable[[Change], object]) -> None:
        for change in self:
            try:
                callback(change)
            except Exception:
                log.exception("the callback that watches %s of group %s failed", self._what, self._paths.group)

    def close(self) -> None:
        """End it: iterations end, and the callback's thread with them."""
        self._closed.set()
        self._fired.put((EventType.NONE, ""))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Hearing

    def _on_watch(self, event: Any) -> None:
        """On kazoo's watch thread: only takes note. A path of None means that all watches have died."""
        self._fired.put((event.type, event.path))

    def _wait_connected(self, deadline: Deadline) -> bool:
        while not self._closed.is_set() and not deadline.passed:
            if self._handle.session.wait_connected(Deadline(min(PATIENCE, deadline.remaining))):
                return True
        return False

    def _look(self, deadline: Deadline) -> bool:
        """Read what has to be read; False if there was nothing until the time was over."""
        if self._rescan:
            self._look_at_everything()
            return True
        try:
            kind, path = self._fired.get(timeout=deadline.remaining)
        except queue.Empty:
            return False
        if path is None:
            self._rescan = "the connection was lost"
        elif path in self._directories or path == self._root:
            if kind == EventType.DELETED:
                self._say_rescanned(path, "the directory was deleted")
            self._look_at_directory(path)
        elif path:
            self._look_at_leaf(path)
        return True

    # Looking

    def _look_at_everything(self) -> None:
        session_id = self._handle.session.id
        reason = self._rescan
        if self._session_id not in (None, session_id):
            reason = "the session has ended, and there is a new one"
        known, self._nodes, self._directories = self._nodes, {}, set()
        found: deque[Change] = deque()
        self._changes, pending = found, self._changes
        try:
            self._look_at_directory(self._root, known=known)
        except UnavailableError:
            self._nodes, self._changes = known, pending
            raise
        for path in known.keys() - self._nodes.keys():
            self._say(ChangeKind.VANISHED, path, before=known[path])
        self._session_id, self._rescan = session_id, ""
        self._changes = pending
        self._say_rescanned(self._root, reason)
        self._changes.extend(found)

    def _say_rescanned(self, path: str, reason: str) -> None:
        self._changes.append(Change(ChangeKind.RESCANNED, path, reason=reason))

    def _look_at_directory(self, directory: str, *, known: dict[str, Node] | None = None) -> None:
        names = self._children(directory)
        self._directories.add(directory)
        below = {join(directory, name) for name in names}
        if self._is_parent_of_leaves(directory):
            self._forget_leaves(lambda path: parent(path) == directory and path not in below)
            self._look_at_leaves(sorted(below - self._nodes.keys()), known or {})
            return
        for gone in {path for path in self._directories if parent(path) == directory} - below:
            self._directories.discard(gone)
            self._forget_leaves(lambda path, gone=gone: parent(path) == gone)  # type: ignore[misc]
        for new in sorted(below - self._directories):
            self._look_at_directory(new, known=known)

    def _is_parent_of_leaves(self, directory: str) -> bool:
        return self._what is Watched.MEMBERS or directory != self._root

    def _forget_leaves(self, gone: Callable[[str], bool]) -> None:
        for path in [path for path in self._nodes if gone(path)]:
            self._say(ChangeKind.VANISHED, path, before=self._nodes.pop(path))

    def _children(self, directory: str) -> list[str]:
        """The names below, with a watch on them; where there is no node, with a watch on its being made."""
        session, client = self._handle.session, self._handle.session.client
        while True:
            deadline = self._handle.deadline()
            names: list[str] | None = session.call(
                lambda: client.get_children_async(directory, watch=self._on_watch), directory, deadline
            )
            if names is not None or directory != self._root:
                return names or []
            if session.call(lambda: client.exists_async(directory, watch=self._on_watch), directory, deadline) is None:
                return []

    def _look_at_leaves(self, paths: list[str], known: dict[str, Node]) -> None:
        for path, node in zip(paths, bulk.nodes(self._handle, paths, watch=self._on_watch), strict=True):
            self._take(path, node, known.get(path))

    def _look_at_leaf(self, path: str) -> None:
        [node] = bulk.nodes(self._handle, [path], watch=self._on_watch)
        self._take(path, node, self._nodes.pop(path, None))

    def _take(self, path: str, node: Node | DeniedNode | None, before: Node | None) -> None:
        """Compare a leaf with what was known of it, and say what is new."""
        if not isinstance(node, Node):
            if before is not None:
                self._say(ChangeKind.VANISHED, path, before=before)
            return
        self._nodes[path] = node
        if before is None:
            self._say(ChangeKind.APPEARED, path, now=node)
        elif before.czxid != node.czxid:
            self._say(ChangeKind.VANISHED, path, before=before)
            self._say(ChangeKind.APPEARED, path, now=node)
        elif before.mzxid != node.mzxid and (self._what is Watched.OFFSETS or before.data != node.data):
            self._say(ChangeKind.CHANGED, path, now=node, before=before)

    def _say(self, kind: ChangeKind, path: str, *, now: Node | None = None, before: Node | None = None) -> None:
        self._changes.append(Change(kind, path, self._value(now), self._value(before)))

    def _value(self, node: Node | None) -> Value | None:
        if node is None:
            return None
        topic, name = node.path.rsplit("/", 2)[-2:]
        match self._what:
            case Watched.MEMBERS:
                return view.registered_instance(name, node)
            case Watched.OWNERS:
                return view.owner(topic, name, node)
            case Watched.OFFSETS:
                return view.offset_named(self._paths.group, topic, name, node)
