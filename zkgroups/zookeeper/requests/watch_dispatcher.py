"""Dispatch watch events and lost connections to the watches of a client, through one callable per client.

kazoo keeps watchers in sets, one for each path, and cannot remove one. Because of the single callable, a watch that was
closed or garbage collected leaves nothing behind in kazoo.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from kazoo.protocol.states import KazooState

from ..session.session import Session


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
