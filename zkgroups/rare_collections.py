"""Run Python's cyclic garbage collector less often. The millions of rows of a migration, or of a sweep, have no cycles,
and the search for them took a tenth of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

_ALLOCATIONS: Final = 100_000
"""The threshold of the youngest objects. Python's default is 700."""


class _Users:
    """How many blocks are under way, in any thread, and the threshold before the first one."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.count = 0
        self.usual = gc.get_threshold()


_USERS: Final = _Users()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Raise the threshold during the block."""
    with _USERS.lock:
        _USERS.count += 1
        if _USERS.count == 1:
            _USERS.usual = gc.get_threshold()
            gc.set_threshold(_ALLOCATIONS, *_USERS.usual[1:])
    try:
        yield
    finally:
        with _USERS.lock:
            _USERS.count -= 1
            if not _USERS.count:
                gc.set_threshold(*_USERS.usual)
