"""Where kazoo calls when something has changed: one callable for each client, for all watches over it.

kazoo keeps watchers in sets, one set for each path, and cannot take one back. As there is only this one callable, a
watch that was closed leaves nothing behind, and neither does one that was forgotten without being closed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from kazoo.protocol.states import KazooState

from ..session.session import Session


class Listener(Protocol):
    """What hears of changes, on kazoo's threads: it must only take note."""

    def hear(self, path: str) -> None:
        """A node has changed."""

    def wake(self) -> None:
        """The connection was lost, or is back."""


class Ear:
    """Tells each watch of what has changed below its root."""

    def __init__(self) -> None:
        self.losses = 0
        """How often all watches have died: with each loss of the connection."""
        self._lock = threading.Lock()
        self._watches: dict[str, WeakSet[Listener]] = {}

    @classmethod
    def of(cls, session: Session) -> Ear:
        """The ear on a client, made on first use."""
        with _FIRST_USE:
            found = _EARS.get(session)
            if found is None:
                found = _EARS[session] = cls()
                session.client.add_listener(found.on_state)
        return found

    def add(self, root: str, watch: Listener) -> None:
        """Tell it of what happens below `root`."""
        with self._lock:
            self._watches.setdefault(root, WeakSet()).add(watch)

    def remove(self, root: str, watch: Listener) -> None:
        """Tell it no more."""
        with self._lock:
            watches = self._watches.get(root, WeakSet())
            watches.discard(watch)
            if not watches:
                self._watches.pop(root, None)

    def on_watch(self, event: Any) -> None:
        """On kazoo's watch thread. Without a path it is the loss of the connection, which `on_state` tells."""
        if event.path is None:
            return
        root = "/".join(event.path.split("/")[:4])
        for watch in self._listening(root):
            watch.hear(event.path)

    def on_state(self, state: str) -> None:
        """On kazoo's connection thread, before anything can be asked over the next connection."""
        if state != KazooState.CONNECTED:
            self.losses += 1
        for watch in self._listening():
            watch.wake()

    def _listening(self, *roots: str) -> list[Listener]:
        with self._lock:
            chosen: Iterable[str] = roots or list(self._watches)
            return [watch for root in chosen for watch in self._watches.get(root, ())]


_FIRST_USE = threading.RLock()
_EARS: WeakKeyDictionary[Session, Ear] = WeakKeyDictionary()


def _after_fork() -> None:
    """The thread that holds the lock may not run here."""
    global _FIRST_USE
    _FIRST_USE = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
