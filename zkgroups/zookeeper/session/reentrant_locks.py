"""Locks that are held during calls, and the signal handlers that interrupt these calls.

Python runs a signal handler on the main thread, on top of the call that it interrupts. If the handler waits for a lock
of that call, both wait forever. So these locks are reentrant ones, which know their owner, and the handler gets an
error. Locks that are held only for a moment are reentrant, too: a handler may look at the same fields.
"""

from __future__ import annotations

from typing import Any

from ...exceptions import ReentrantCallError


def not_held(lock: Any, what: str) -> Any:
    """Return this `threading.RLock`. Raise `ReentrantCallError` if the current thread holds it already."""
    if lock._is_owned():  # `threading.Condition` asks a lock in the same way
        raise ReentrantCallError(what)
    return lock
