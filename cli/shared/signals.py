"""Raise SIGTERM as an exception, like Ctrl-C, so that `with` blocks release what they hold.

An exception during a wait may leave a lock taken, and kazoo's threads would then block for ever. So a command that
waits for hours records its signals meanwhile, and raises them after the wait.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from .. import end_quietly

if TYPE_CHECKING:
    import asyncio

_SLICE: Final = 0.1
"""The longest delay of a recorded signal, in seconds."""


class Terminated(BaseException):
    """The process received SIGTERM or SIGHUP."""


_BEFORE: Final[dict[int, Any]] = {}
"""The handlers of this process at its start."""


def raise_on_sigterm() -> None:
    """Raise `Terminated` in the main thread at the first SIGTERM, or at the first SIGHUP, when a terminal closes."""
    _BEFORE.update({number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)})
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)


def raise_on_ctrl_c() -> None:
    """Raise KeyboardInterrupt at Ctrl-C from now on, because a command is about to hold something."""
    if signal.getsignal(signal.SIGINT) is end_quietly:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_quietly_at_ctrl_c() -> None:
    """Do not raise KeyboardInterrupt at Ctrl-C any more, because the command has ended."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_quietly)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    # A second signal must not interrupt the cleanup.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise Terminated


def end_at_next_signal() -> None:
    """Let the next signal end the process. For its last message, which nobody may read."""
    for number, handler in _BEFORE.items():
        raises = handler in (signal.default_int_handler, end_quietly)
        signal.signal(number, signal.SIG_DFL if raises else handler)


@contextmanager
def recorded_signals() -> Iterator[list[int]]:
    """Record Ctrl-C, SIGTERM and SIGHUP in a list instead of raising them. After the first one they are ignored."""
    recorded: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: recorded.append(number))
    try:
        yield recorded
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if recorded else handler)  # only the cleanup is left


def record_signals_in_loop() -> tuple[list[int], asyncio.Event]:
    """Record the same signals in the running event loop. Return the list, and an event that the first one sets."""
    import asyncio  # most commands have no event loop

    recorded: list[int] = []
    signalled = asyncio.Event()

    def record(number: int) -> None:
        recorded.append(number)
        signalled.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, record, number)
    return recorded, signalled


def raise_recorded(recorded: Sequence[int]) -> None:
    """Raise the exception of the first recorded signal, if any."""
    if recorded:
        raise KeyboardInterrupt if recorded[0] == signal.SIGINT else Terminated


class SignalEvent(threading.Event):
    """An event that counts as set after a recorded signal. (Setting an event in a handler may deadlock.)"""

    def __init__(self, recorded: Sequence[int]) -> None:
        super().__init__()
        self._signals = recorded

    def is_set(self) -> bool:
        return bool(self._signals) or super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not self.is_set() and (end is None or time.monotonic() < end):
            super().wait(_SLICE if end is None else max(0.0, min(_SLICE, end - time.monotonic())))
        return self.is_set()
