"""SIGTERM as an exception, so that every `with` on the way out lets go of what it holds, as after Ctrl-C.

An exception that comes in the midst of waiting may leave a lock behind, for which kazoo's threads then wait for good.
So a command that waits for hours notes its signals meanwhile, and raises them when it does not wait.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SLICE: Final = 0.1
"""In seconds: how long a signal may have to wait."""


class Terminated(BaseException):
    """Somebody has asked the process to end."""


def raise_on_sigterm() -> None:
    """From now on SIGTERM raises `Terminated` in the main thread, once; so does SIGHUP, when a terminal goes away."""
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    # Letting go takes a moment, and a second signal must not stop it half way.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise Terminated


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM are put into a list, instead of being raised; after the first one they count no more."""
    noted: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: noted.append(number))
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if noted else handler)  # what is left to do is letting go


def raise_noted(noted: Sequence[int]) -> None:
    """Raise what the first of the signals would have raised, if there was one."""
    if noted:
        raise KeyboardInterrupt if noted[0] == signal.SIGINT else Terminated


class NotedStop(threading.Event):
    """Set by a signal, and seen soon; a handler could not set one that somebody is just looking at."""

    def __init__(self, noted: Sequence[int]) -> None:
        super().__init__()
        self._signals = noted

    def is_set(self) -> bool:
        return bool(self._signals) or super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not self.is_set() and (end is None or time.monotonic() < end):
            super().wait(_SLICE if end is None else max(0.0, min(_SLICE, end - time.monotonic())))
        return self.is_set()
