"""Watches: one callable for each client, which passes events on, and one watch on a whole tree."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from ...core.znodes.paths import CONSUMERS
from ...deadline import Deadline
from ..kazoo_compat.closing import Endpoints, endpoints
from ..kazoo_compat.requests import enqueue
from ..kazoo_compat.safe_decoding import report_events
from ..session.session import Session
from . import multiread
from .multiread import NewRequest, SentRequest

# The paths that have changed, as the dispatcher reports them on kazoo's threads.


class FiredPaths:
    """The paths that have changed since `take`. The dispatcher adds them on kazoo's threads."""

    def __init__(self) -> None:
        self._event = threading.Condition()
        self._paths: dict[str, None] = {}  # guarded by _event, in order

    def on_change(self, path: str) -> None:
        """Record that a node has changed."""
        with self._event:
            self._paths[path] = None
            self._event.notify_all()

    def on_connection(self) -> None:
        """Wake up: the connection was lost or restored."""
        self.wake()

    def wake(self) -> None:
        """Let `wait_for` check its condition again."""
        with self._event:
            self._event.notify_all()

    def __len__(self) -> int:
        return len(self._paths)

    def take(self) -> list[str]:
        """Return the changed paths, and forget them."""
        with self._event:
            taken = list(self._paths)
            self._paths.clear()
        return taken

    def wait_for(self, ready: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait until `ready()` is true. Return False after the deadline."""
        with self._event:
            return self._event.wait_for(ready, deadline.remaining)


# Dispatch watch events and lost connections to the watches of a client, through one callable per client.
#
# kazoo keeps watchers in sets, one for each path, and cannot remove one. Because of the single callable, a watch that
# was closed or garbage collected leaves nothing behind in kazoo.


class WatchListener(Protocol):
    """Called on kazoo's threads, so it must not block and must not call ZooKeeper."""

    def on_change(self, path: str) -> None:
        """Called when a watch on a node has fired."""

    def on_connection(self) -> None:
        """Called when the connection was lost or restored."""


class WatchDispatcher:
    """Calls each listener for changes below its root."""

    def __init__(self) -> None:
        self.losses = 0
        """How often the connection was lost. Each time all watches are lost, too."""
        self._lock = threading.Lock()
        self._listeners: dict[str, WeakSet[WatchListener]] = {}

    @classmethod
    def of(cls, session: Session) -> WatchDispatcher:
        """Return the dispatcher of a session. The first call creates it."""
        with _FIRST_USE:
            found = _DISPATCHERS.get(session)
            if found is None:
                found = _DISPATCHERS[session] = cls()
                session.client.add_listener(found.on_state)
        return found

    def add(self, root: str, listener: WatchListener) -> None:
        """Call the listener for changes below `root`."""
        with self._lock:
            self._listeners.setdefault(root, WeakSet()).add(listener)

    def remove(self, root: str, listener: WatchListener) -> None:
        """Stop calling the listener for changes below `root`."""
        with self._lock:
            listeners = self._listeners.get(root, WeakSet())
            listeners.discard(listener)
            if not listeners:
                self._listeners.pop(root, None)

    def on_watch(self, event: Any) -> None:
        """Called on kazoo's watch thread. An event without a path is a lost connection, which `on_state` handles."""
        if event.path is not None:
            self.on_change(event.path)

    def on_change(self, path: str) -> None:
        """Called on kazoo's threads: a node has changed, as a watch on it or on all groups has reported."""
        for listener in self._listeners_of("/".join(path.split("/")[:4])):
            listener.on_change(path)

    def on_gap(self) -> None:
        """Called when the watch on all groups is set. Listeners need no call: `on_connection` was called before."""

    def on_state(self, state: str) -> None:
        """Called on kazoo's connection thread, before any request can be sent over the next connection."""
        if state != KazooState.CONNECTED:
            self.losses += 1
        for listener in self._listeners_of():
            listener.on_connection()

    def _listeners_of(self, *roots: str) -> list[WatchListener]:
        with self._lock:
            chosen: Iterable[str] = roots or list(self._listeners)
            return [listener for root in chosen for listener in self._listeners.get(root, ())]


_FIRST_USE = threading.RLock()
_DISPATCHERS: WeakKeyDictionary[Session, WatchDispatcher] = WeakKeyDictionary()


def _after_fork() -> None:
    """Replace the lock. The thread that holds it may not exist in the fork."""
    global _FIRST_USE
    _FIRST_USE = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


# The requests for persistent recursive watches, which kazoo does not have.
#
# Such a watch reports every change of every node of a tree: created, deleted, or written. It stays until the
# connection is closed. Servers support it since ZooKeeper 3.6, as they support MultiRead.
#
#     AddWatch (106)      path, mode (1: persistent and recursive)
#     SetWatches2 (105)   zxid, then five lists of paths; the last has the persistent recursive watches
#
# A server restores the watch of an earlier connection with SetWatches2, but does not report what has changed
# meanwhile.


_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_ADD_WATCH: Final = 106
_SET_WATCHES: Final = 105
_PERSISTENT_RECURSIVE: Final = 1
_OTHER_LISTS: Final = 4


class RecursiveWatchRequest(NewRequest):
    """A request to watch the tree at `path`: a first one, or after a lost connection."""

    def __init__(self, path: str, is_supported: Callable[[], bool], *, seen_zxid: int | None = None) -> None:
        encoded = _INT.pack(len(path.encode())) + path.encode()
        if seen_zxid is None:
            super().__init__(_ADD_WATCH, encoded + _INT.pack(_PERSISTENT_RECURSIVE), is_supported)
        else:
            lists = _INT.pack(0) * _OTHER_LISTS + _INT.pack(1) + encoded
            super().__init__(_SET_WATCHES, _LONG.pack(seen_zxid) + lists, is_supported)


# One watch on all groups: every change of every node below `/consumers`, by one request.
#
# The server must be ZooKeeper 3.6 or later. The watch is lost with the connection, and restored over the next one
# before other requests are sent. Changes in between are not reported one by one. So every listener hears of the gap,
# and must read again whatever it needs. It hears of it when the watch is set, so nothing can be missed after that.
# The watch dispatcher is a listener, too: while this watch is active, a `Watch` needs no watches of its own.
#
# A session has at most one such watch, which stays until the session is closed. Nobody else may watch this one path
# in the session: ZooKeeper 3.6 to 3.8 would replace one watch by the other.


WATCHED: Final = CONSUMERS


class RecursiveListener(Protocol):
    """Called on kazoo's threads, so it must not block and must not call ZooKeeper."""

    def on_change(self, path: str) -> None:
        """Called when a node was created, deleted or written."""

    def on_gap(self) -> None:
        """Called when the watch is set: changes before this moment were not reported."""


class RecursiveWatch:
    """The watch of one session on all groups."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._listeners: WeakSet[RecursiveListener] = WeakSet([WatchDispatcher.of(session)])
        self._wanted = False
        self._active_on: Endpoints | None = None  # the connection on which the watch is set

    @classmethod
    def of(cls, session: Session) -> RecursiveWatch:
        """Return the watch of a session. The first call creates the object; `begin` sets the watch."""
        with _FIRST_USE:
            found = _WATCHES.get(session)
            if found is None:
                found = _WATCHES[session] = cls(session)
                report_events(session.client, found._on_event)
                session.client.add_listener(found._on_state)
        return found

    @staticmethod
    def is_active(session: Session) -> bool:
        """Return True if all changes below `/consumers` are reported in this session now."""
        found = _WATCHES.get(session)
        return found is not None and found.active

    @property
    def active(self) -> bool:
        """True if changes are reported now."""
        return self._active_on is not None

    def add(self, listener: RecursiveListener) -> None:
        """Call the listener for all changes, as long as it exists."""
        with self._lock:
            self._listeners.add(listener)

    def begin(self, deadline: Deadline) -> bool:
        """Set the watch, unless it is set. Return False if the server does not support it, or does not answer."""
        if self.active:
            return True
        if not multiread.knows_multiread(self._session, deadline.remaining):
            return False
        answer = self._send(None)
        try:
            answer.get(timeout=deadline.remaining)
        except (KazooException, KazooTimeoutError):
            return False
        self._wanted = True
        return self.active

    def _send(self, seen_zxid: int | None) -> Any:
        sent = _SentWatch(self)
        path = self._session.chroot + WATCHED
        enqueue(self._session.client, [(RecursiveWatchRequest(path, sent.is_supported, seen_zxid=seen_zxid), sent)])
        return sent.answer

    # On kazoo's threads

    def is_set(self, connection: Endpoints) -> None:
        """Called with the answer of the server: from now on, it reports all changes on this connection."""
        if connection == endpoints(self._session.client):
            self._active_on = connection
        for listener in self._all():
            listener.on_gap()

    def _on_event(self, path: str) -> None:
        if self._active_on is not None:
            for listener in self._all():
                listener.on_change(path)

    def _on_state(self, state: str) -> None:
        self._active_on = None
        if state == KazooState.CONNECTED and self._wanted:
            self._send(int(self._session.client.last_zxid))

    def _all(self) -> list[RecursiveListener]:
        with self._lock:
            return list(self._listeners)


class _SentWatch(SentRequest):
    """A request that was sent."""

    def __init__(self, watch: RecursiveWatch) -> None:
        super().__init__(watch._session)
        self._watch = watch

    def on_answer(self, connection: Endpoints) -> None:
        """Called with the connection on which the request was answered."""
        self._watch.is_set(connection)


_WATCHES: WeakKeyDictionary[Session, RecursiveWatch] = WeakKeyDictionary()
