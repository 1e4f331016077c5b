"""Processes and their descendants, from /proc."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PATIENCE = 400.0


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process."""
    parents = {each: parent for each, (parent, _) in _table().items()}
    found = [pid]
    for above in found:
        found += [each for each, parent in parents.items() if parent == above]
    return found[1:]


def children(pid: int) -> list[int]:
    return [each for each, (parent, _) in _table().items() if parent == pid]


def program(pid: int) -> str:
    """Return its command line; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def sigkill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_until_gone(pids: Iterable[int], *, timeout: float = PATIENCE) -> None:
    """Fail with their command lines if some are still running at the deadline."""
    deadline = time.monotonic() + timeout
    wanted = set(pids)
    while alive := {pid for pid, (_, state) in _table().items() if pid in wanted and state != "Z"}:
        assert time.monotonic() < deadline, [program(pid) for pid in alive]
        time.sleep(0.01)


def _table() -> dict[int, tuple[int, str]]:
    """Return the parent and the state of every process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            found[int(stat.parent.name)] = (int(parent), state)
    return found
