"""Following what changes in a group: members and their registrations, owners, or offsets.

A `Watch` works in the thread of whoever iterates over it, or in one of its own; on kazoo's threads
`WatchDispatcher` only takes note of which path has changed. So no code of a user runs there, and no call is made there
(rule 8).

ZooKeeper's watches fire once, and die with the connection, with the session and with their node. What has fired is read
and armed again. After a loss of the connection everything is, and compared with what was told before; a change of its
own, `RESCANNED`, says so, because what happened several times meanwhile then shows as one change.

Nothing waits in between: requests are under way, many together, and `next` goes on where it stopped when its time was
over. So it is always in time, and so is `close`, whatever the connection does.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError

from ..core.znodes.group_view import RegisteredInstance
from ..core.znodes.paths import GroupPaths, join, parent
from ..core.znodes.values import CommittedOffset, ForbiddenNode, Owner, UnreadableNode
from ..deadline import Deadline
from ..exceptions import InvalidOptionError, NoPermissionError, UnavailableError, ZkgroupsException
from .reading import group_reader
from .requests.node import Node
from .requests.watch_dispatcher import WatchDispatcher
from .session.errors import translate
from .session.registry_context import RegistryContext
from .session.session import PIPELINE

log = logging.getLogger("zkgroups.watch")

PATIENCE: Final = 1.0
"""While there is no connection: how often to look whether kazoo has given up, which it does not always tell."""

GLANCE: Final = 0.05
"""While an answer is due: how often to look whether the watch was closed or the connection lost."""


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


Value = RegisteredInstance | Owner | CommittedOffset | UnreadableNode

_Leaf = Node | ForbiddenNode


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

    Who applies the changes in their order has at any time what was there at one time: `APPEARED` and `CHANGED` carry
    what is there `now`, and `RESCANNED` changes nothing; what it found to be different comes after it.

    >>> with group.watch(Watched.OWNERS) as changes:  # doctest: +SKIP
    ...     for change in changes:
    ...         print(change.kind, change.path)
    """

    def __init__(self, paths: GroupPaths, context: RegistryContext, what: Watched) -> None:
        self._group = paths.group
        self._session = context.session
        if what not in list(Watched):
            raise InvalidOptionError("what", what, "it must be one of " + ", ".join(Watched))
        self._what = Watched(what)
        self._root = {Watched.MEMBERS: paths.ids, Watched.OWNERS: paths.owners, Watched.OFFSETS: paths.offsets}[
            self._what
        ]
        self._turn = threading.Lock()  # one thread at a time in `next`; it guards all but the last five
        self._changes: deque[Change] = deque()
        self._told: dict[str, dict[str, _Leaf]] = {}  # by directory and path
        self._armed: dict[str, int] = {}  # the directories whose changes will be heard, each by when it was made
        self._to_look: deque[str] = deque()
        self._asked: deque[_Asked] = deque()
        self._losses: int | None = None  # as many as there had been when all was last looked at
        self._reason = "the watch begins"
        self._session_id: int | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._news = threading.Condition()
        self._fired: dict[str, None] = {}  # guarded by _news: what has changed, in order
        self._dispatcher = WatchDispatcher.of(self._session)
        self._dispatcher.add(self._root, self)

    # Use

    def __iter__(self) -> Iterator[Change]:
        while (change := self.next()) is not None:
            yield change

    def next(self, timeout: float | None = None) -> Change | None:
        """The next change; None when the time is over or the watch was closed."""
        deadline = Deadline(threading.TIMEOUT_MAX) if timeout is None else Deadline.after("timeout", timeout)
        if not self._turn.acquire(timeout=deadline.remaining):
            return None
        try:
            while not self._closed.is_set():
                if self._changes:
                    return self._changes.popleft()
                if not self._step(deadline):
                    return None
            return None
        finally:
            self._turn.release()

    def follow(self, callback: Callable[[Change], object]) -> Self:
        """Call back for every change, on a thread of this watch, until it is closed; an error is logged and goes on."""
        if self._thread is not None:
            raise RuntimeError("this watch has a callback already")
        self._thread = threading.Thread(
            target=self._follow, args=(callback,), name=f"zkgroups-watch-{self._group}", daemon=True
        )
        self._thread.start()
        return self

    def _follow(self, callback: Callable[[Change], object]) -> None:
        try:
            for change in self:
                try:
                    callback(change)
                except Exception:
                    log.exception("the callback that watches %s of group %s failed", self._what, self._group)
        except ZkgroupsException as error:
            log.error("stopped watching %s of group %s: %s", self._what, self._group, error)

    def close(self) -> None:
        """End it: iterations end, and the callback's thread with them, after the call that is under way."""
        self._closed.set()
        self._dispatcher.remove(self._root, self)
        self.on_connection()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Hearing, on kazoo's threads

    def on_change(self, path: str) -> None:
        """Strictly for the dispatcher: take note of a node that has changed."""
        with self._news:
            self._fired[path] = None
            self._news.notify_all()

    def on_connection(self) -> None:
        """Strictly for the dispatcher: the connection was lost, or is back."""
        with self._news:
            self._news.notify_all()

    # Waiting

    def _step(self, deadline: Deadline) -> bool:
        """Take one step towards the next change; False if the time was over first."""
        if self._losses != self._dispatcher.losses:
            return self._start_over(deadline)
        self._gather()
        self._ask()
        if self._asked:
            return self._await_answer(self._asked[0], deadline)
        return self._wait(lambda: bool(self._fired) or self._losses != self._dispatcher.losses, deadline)

    def _wait(self, ready: Callable[[], bool], deadline: Deadline) -> bool:
        with self._news:
            return self._news.wait_for(lambda: self._closed.is_set() or ready(), deadline.remaining)

    def _start_over(self, deadline: Deadline) -> bool:
        """Everything is to be looked at, as soon as there is a connection."""
        losses = self._dispatcher.losses
        if not self._session.wait_connected(Deadline(0.0)):  # an error where kazoo has given up
            self._wait(lambda: bool(self._session.client.connected), Deadline(min(PATIENCE, deadline.remaining)))
            return not deadline.passed
        with self._news:
            self._fired.clear()
        self._armed.clear()
        self._asked.clear()
        self._to_look.clear()
        self._losses = losses
        self._reason = self._reason or "the connection was lost"
        # The server we are with now may lag behind the one before. Its answer need not be waited for: it comes first.
        self._session.client.sync_async("/")
        self._to_look.append(self._root)
        return True

    def _gather(self) -> None:
        with self._news:
            self._to_look.extend(self._fired)
            self._fired.clear()

    def _ask(self) -> None:
        client, on_watch = self._session.client, self._dispatcher.on_watch
        while self._to_look and len(self._asked) < PIPELINE:
            path = self._to_look.popleft()
            if path == self._root or self._is_topic(path):
                answer = client.get_children_async(path, watch=on_watch, include_data=True)
                self._asked.append(_Asked(path, answer, self._look_at_directory))
            else:
                answer = client.get_async(path, watch=on_watch)
                self._asked.append(_Asked(path, answer, self._look_at_leaf))

    def _is_topic(self, path: str) -> bool:
        return self._what is not Watched.MEMBERS and parent(path) == self._root

    def _await_answer(self, asked: _Asked, deadline: Deadline) -> bool:
        while not asked.answer.ready():
            if self._closed.is_set() or self._losses != self._dispatcher.losses:
                return True
            if deadline.passed:
                return False
            asked.answer.wait(min(GLANCE, deadline.remaining))
        self._asked.popleft()
        try:
            asked.look(asked.path, _found(asked))
        except UnavailableError:
            losses, self._losses = self._losses, None
            # Lost with the connection, which is told in a moment; else the server is overloaded, and gets a rest.
            self._wait(lambda: self._dispatcher.losses != losses, Deadline(min(PATIENCE, deadline.remaining)))
        except ZkgroupsException:
            self._losses = None
            raise
        return True

    # Looking

    def _look_at_directory(self, path: str, found: tuple[list[str], Any] | ForbiddenNode | None) -> None:
        """Compare the names with what was told before; in a recreated directory everything is looked at."""
        names, czxid = (found[0], found[1].czxid) if isinstance(found, tuple) else ([], None)
        known = self._armed.pop(path, None)
        if path == self._root:
            self._say_why(found, anew=known not in (None, czxid))
        else:
            self._take(path, found if isinstance(found, ForbiddenNode) else None)
        below = [join(path, name) for name in sorted(names, key=lambda name: (len(name), name))]
        told = self._told.setdefault(path, {})
        for gone in sorted(told.keys() - set(below)):
            self._take(gone, None)
        if path == self._root and self._what is not Watched.MEMBERS:
            self._forget_topics(set(below))
            self._to_look.extend(topic for topic in below if topic not in self._armed)
        elif known == czxid:
            # What could not be read has no watch: there may be another node by now.
            self._to_look.extend(leaf for leaf in below if not isinstance(told.get(leaf), Node))
        else:
            self._to_look.extend(below)
        if czxid is not None:
            self._armed[path] = czxid
        elif path == self._root:
            answer = self._session.client.exists_async(path, watch=self._dispatcher.on_watch)
            self._asked.append(_Asked(path, answer, self._look_at_absence))

    def _say_why(self, found: object, *, anew: bool) -> None:
        """The root was read: say so where that was not for what happens every day."""
        if isinstance(found, ForbiddenNode):
            raise NoPermissionError(found.path)
        session_id = self._session.id
        if self._reason and self._session_id not in (None, session_id):
            self._reason = "the session has ended, and there is a new one"
        elif anew:
            self._reason = "it was deleted" if found is None else "it was deleted and recreated"
        if self._reason:
            self._changes.append(Change(ChangeKind.RESCANNED, self._root, reason=self._reason))
        self._session_id, self._reason = session_id, ""

    def _forget_topics(self, there: set[str]) -> None:
        for topic in sorted((self._told.keys() | self._armed.keys()) - there - {self._root}):
            self._armed.pop(topic, None)
            for path in list(self._told.get(topic, ())):
                self._take(path, None)
            self._told.pop(topic, None)

    def _look_at_absence(self, path: str, found: object) -> None:
        """There was no directory, and there is a watch on its being made: unless it was made in between."""
        if found is not None:
            self._to_look.append(path)

    def _look_at_leaf(self, path: str, found: tuple[bytes, Any] | ForbiddenNode | None) -> None:
        self._take(path, Node.of(path, *found) if isinstance(found, tuple) else found)

    # Telling

    def _take(self, path: str, now: _Leaf | None) -> None:
        """Compare a leaf with what was told of it, and tell what is new."""
        told = self._told.setdefault(parent(path), {})
        before = told.pop(path, None)
        if now is not None:
            told[path] = now
        if before is None or now is None or _is_another(before, now):
            if before is not None:
                self._tell(ChangeKind.VANISHED, path, before=before)
            if now is not None:
                self._tell(ChangeKind.APPEARED, path, now=now)
        elif self._has_changed(before, now):
            self._tell(ChangeKind.CHANGED, path, now=now, before=before)

    def _has_changed(self, before: _Leaf, now: _Leaf) -> bool:
        if isinstance(before, Node) and isinstance(now, Node):
            # A commit of the same offset is a commit; a registration written anew as it was says nothing.
            return before.mzxid != now.mzxid and (self._what is Watched.OFFSETS or before.data != now.data)
        return type(before) is not type(now)

    def _tell(self, kind: ChangeKind, path: str, *, now: _Leaf | None = None, before: _Leaf | None = None) -> None:
        self._changes.append(Change(kind, path, self._value(now), self._value(before)))

    def _value(self, leaf: _Leaf | None) -> Value | None:
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request under way, and what to do with its answer."""

    path: str
    answer: Any
    look: Callable[[str, Any], None]


def _found(asked: _Asked) -> Any:
    try:
        return asked.answer.get_nowait()
    except NoNodeError:
        return None
    except NoAuthError:
        return ForbiddenNode(asked.path)
    except KazooException as error:
        raise translate(error, asked.path) from error


def _is_another(before: _Leaf, now: _Leaf) -> bool:
    """Whether a node was deleted and one of the same name made."""
    return isinstance(before, Node) and isinstance(now, Node) and before.czxid != now.czxid
