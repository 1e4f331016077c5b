"""SIGTERM as an exception, so that every `with` on the way out lets go of what it holds, as after Ctrl-C."""

from __future__ import annotations

import signal
from types import FrameType


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
