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


AT_ONCE = 8.0
"""In seconds, on a busy machine, for calls that do not wait for a server. It is shorter than a call or a session."""

_BEAT = 0.02


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Assert that the block takes less than so many seconds, without the time in which the machine let us wait."""
    over, stalls = threading.Event(), [0.0]
    meter = threading.Thread(target=_add_stalls, args=(over, stalls), daemon=True)
    meter.start()
    start = time.monotonic()
    try:
        yield
        took = time.monotonic() - start
    finally:
        over.set()
        meter.join()
    assert took - sum(stalls) < seconds, f"{took:.2f} s, of which the machine stood still for {sum(stalls):.2f} s"


def _add_stalls(over: threading.Event, stalls: list[float]) -> None:
    """Wait briefly again and again, and note how much longer than that each wait took."""
    last = time.monotonic()
    while not over.wait(_BEAT):
        now = time.monotonic()
        stalls.append(max(0.0, now - last - 2 * _BEAT))
        last = now


@contextmanager
def no_thread_stays(within: float = 30.0) -> Iterator[None]:
    """Assert that every thread started in the block ends soon after it."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(within)
        assert not thread.is_alive(), thread
