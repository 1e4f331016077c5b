"""The last picture, for any number of readers in any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..picture.values import Picture

Listener = Callable[[], object]


class Publisher:
    """Holds the last picture, and calls listeners after each new one."""

    def __init__(self, first: Picture) -> None:
        self._picture = first
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []

    @property
    def picture(self) -> Picture:
        """The last picture."""
        return self._picture

    def publish(self, picture: Picture) -> None:
        """Replace the picture. Listeners are called in this thread, and must return at once."""
        self._picture = picture
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def add(self, listener: Listener) -> None:
        """Call the listener after each new picture."""
        with self._lock:
            self._listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        """Do not call the listener any more."""
        with self._lock:
            self._listeners.remove(listener)
