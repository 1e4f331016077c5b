"""The instance ids that objects of this process use.

A session that is resumed by another process brings its registrations along, and an instance with the same id takes its
registration over. So two instances of one session must never use one id.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..session.session import Session
from .ownership import Ownership

_LOCK = threading.RLock()
_USERS: WeakKeyDictionary[Session, WeakValueDictionary[str, Ownership]] = WeakKeyDictionary()
"""By session and by the path of the registration."""


def is_in_use(session: Session, path: str) -> bool:
    """Return whether an object of this process uses the registration at this path, in this session."""
    with _LOCK:
        return path in _USERS.get(session, {})


def is_used_by_another(ownership: Ownership) -> bool:
    """Return whether another object of this process uses the id, in this session. Then the registration is its own."""
    with _LOCK:
        users = _USERS.get(ownership.session, WeakValueDictionary())
        return users.get(ownership.fence.path, ownership) is not ownership


def take_id(ownership: Ownership, *, force: bool = False) -> bool:
    """Use the id in this session. Return False if another object uses it; with `force`, replace that one."""
    path = ownership.fence.path
    with _LOCK:
        users = _USERS.setdefault(ownership.session, WeakValueDictionary())
        if force:
            users[path] = ownership
        return users.setdefault(path, ownership) is ownership


def free_id(ownership: Ownership) -> None:
    """Let other objects of this process use the id."""
    with _LOCK:
        users = _USERS.get(ownership.session, WeakValueDictionary())
        if users.get(ownership.fence.path) is ownership:
            del users[ownership.fence.path]


def _after_fork() -> None:
    """Replace the lock in a fork: the thread that holds it may not exist there."""
    global _LOCK
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
