"""One pool of memory for all threads.

glibc gives each thread a pool of its own, and keeps in it what the thread has once used. The sweeps, the metrics and
the pages are made in different threads, and with 200,000 offsets each of them needs hundreds of megabytes for a moment.
With one pool, the process takes half as much.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

_ARENA_MAX: Final = -8
"""M_ARENA_MAX of glibc's `mallopt`."""


def share_one_pool() -> None:
    """Call this before any thread starts. It does nothing without glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
