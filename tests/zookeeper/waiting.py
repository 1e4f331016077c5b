"""Calls in a background thread, and limits for calls and threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .events import attempt


@contextmanager
def in_background(call: Callable[[], object]) -> Iterator[list[object]]:
    """Call it in a thread during the block. The list then contains its result or error."""
    outcome: list[object] = []
    thread = threading.Thread(target=lambda: outcome.append(attempt(call)))
    thread.start()
    yield outcome
    thread.join(30)
    assert not thread.is_alive()


AT_ONCE = 5.0
"""In seconds, on a busy machine, for calls that do not wait for a server."""


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Assert that the block takes less than so many seconds."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


@contextmanager
def no_thread_stays(within: float = 5.0) -> Iterator[None]:
    """Assert that every thread started in the block ends soon after it."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(within)
        assert not thread.is_alive(), thread
