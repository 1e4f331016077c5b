"""The paths that have changed, as the dispatcher reports them on kazoo's threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...deadline import Deadline


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
