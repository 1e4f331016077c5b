"""One watch on all groups: every change of every node below `/consumers`, by one request.

The server must be ZooKeeper 3.6 or later. The watch is lost with the connection, and restored over the next one before
other requests are sent. Changes in between are not reported one by one. So every listener hears of the gap, and must
read again whatever it needs. It hears of it when the watch is set, so nothing can be missed after that. The watch
dispatcher is a listener, too: while this watch is active, a `Watch` needs no watches of its own.

A session has at most one such watch, which stays until the session is closed. Nobody else may watch this one path in
the session: ZooKeeper 3.6 to 3.8 would replace one watch by the other.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

from kazoo.exceptions import KazooException, UnimplementedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from ...core.znodes.paths import CONSUMERS
from ...deadline import Deadline
from ..kazoo_compat.request_queue import enqueue
from ..kazoo_compat.tcp_connection import Endpoints, endpoints
from ..kazoo_compat.watch_events import report_events
from ..session.errors import LOSSES
from ..session.session import Session
from . import multiread_support
from .recursive_watch_format import RecursiveWatchRequest
from .watch_dispatcher import WatchDispatcher

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
        if not multiread_support.knows_multiread(self._session, deadline.remaining):
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


class _SentWatch:
    """A request that was sent, and its answer."""

    def __init__(self, watch: RecursiveWatch) -> None:
        self._watch = watch
        self._connection: Endpoints | None = None
        self._session = watch._session
        self.answer = self._session.client.handler.async_result()

    def is_supported(self) -> bool:
        """Called by kazoo as it sends."""
        connection = endpoints(self._session.client)
        supported = multiread_support.is_supported(self._session, connection)
        self._connection = connection if supported else None
        return supported

    def set(self, _result: object) -> None:
        """Called by kazoo with the answer."""
        if self._connection is not None:
            self._watch.is_set(self._connection)
        self.answer.set(None)

    def set_exception(self, error: BaseException) -> None:
        """Called by kazoo with the error. Note it at once, before the request is sent over the next connection."""
        if self._connection is not None and isinstance(error, UnimplementedError):
            multiread_support.note_unsupported(self._connection)
        elif self._connection is not None and isinstance(error, LOSSES):
            multiread_support.note_loss(self._session, self._connection)
        self.answer.set_exception(error)


_FIRST_USE = threading.RLock()
_WATCHES: WeakKeyDictionary[Session, RecursiveWatch] = WeakKeyDictionary()


def _after_fork() -> None:
    """Replace the lock. The thread that holds it may not exist in the fork."""
    global _FIRST_USE
    _FIRST_USE = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
