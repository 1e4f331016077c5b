"""Wait until a node is deleted.

kazoo keeps watchers in a set and cannot remove one, so a watcher for each wait would stay forever after a timeout.
Here one callable watches for all waits of a session.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from kazoo.protocol.states import EventType

from ...deadline import Deadline


class DeletionWaits:
    """All waits of one session for the deletion of a node."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards the waits, and is never held during a call
        self._waits: dict[str, list[_Wait]] = {}

    def wait(self, path: str, exists: Callable[[Callable[[Any], None]], bool], deadline: Deadline) -> bool:
        """Wait until the node is deleted once. Return False if it still exists at the deadline.

        `exists` asks the server for the node, and sets the watcher that is passed to it.
        """
        wait = _Wait()
        with self._lock:
            self._waits.setdefault(path, []).append(wait)
        try:
            while True:
                wait.woken.clear()
                if not exists(self._on_event) or wait.deleted:
                    return True
                if not wait.woken.wait(deadline.remaining):
                    return False
        finally:
            self._remove(path, wait)

    def _remove(self, path: str, wait: _Wait) -> None:
        with self._lock:
            self._waits[path].remove(wait)
            if not self._waits[path]:
                del self._waits[path]

    def wake_all(self) -> None:
        """Let all waits ask the server again."""
        with self._lock:
            for wait in itertools.chain(*self._waits.values()):
                wait.woken.set()

    def _on_event(self, event: Any) -> None:
        """Called on kazoo's watch thread, so it only wakes. A path of None means that the connection was lost."""
        with self._lock:
            paths = list(self._waits) if event.path is None else [event.path]
            for wait in [wait for path in paths for wait in self._waits.get(path, ())]:
                wait.deleted = wait.deleted or event.type == EventType.DELETED
                wait.woken.set()


class _Wait:
    __slots__ = ("deleted", "woken")

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.deleted = False
