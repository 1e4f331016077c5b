"""Detect a signal handler that needs a lock of the call it interrupts.

Python runs a signal handler on the main thread, on top of the interrupted call. If the handler waited for a lock of
that call, both would wait forever. So these locks are reentrant, and a second acquisition raises an error. Locks that
are held only for a moment are reentrant, too, because a handler may read the fields that they guard.
"""

from __future__ import annotations

from typing import Any

from ...exceptions import ReentrantCallError


def not_held(lock: Any, what: str) -> Any:
    """Return this `threading.RLock`. Raise `ReentrantCallError` if the current thread holds it already."""
    if lock._is_owned():  # `threading.Condition` uses this method, too
        raise ReentrantCallError(what)
    return lock
