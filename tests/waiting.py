"""Wait for a condition without an event, and check whether a process is alive."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

LONGEST: Final = 120.0
"""In seconds, how long tests wait for what must come. Only a failing test waits so long."""


def eventually(condition: Callable[[], object], *, timeout: float = LONGEST) -> bool:
    """Return whether the condition becomes true within the timeout. Tests write `assert eventually(...)`."""
    deadline = time.monotonic() + timeout
    while True:
        is_last = time.monotonic() > deadline  # before the look: the machine may stand still for as long as it likes
        if condition():
            return True
        if is_last:
            return False
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stands_still(pid: int) -> bool:
    """Whether all threads of the process are suspended, or it has ended. SIGSTOP reaches a process a moment later."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # a thread that has ended
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return all(state in "TtZX" for state in states)
