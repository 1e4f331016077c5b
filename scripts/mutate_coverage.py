"""Which test runs which lines, and how long it takes.

Python 3.11 has no cheaper way than `sys.settrace`. Threads that a test starts count for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

Line: TypeAlias = tuple[str, int]


class Coverage:
    """The lines that run while it is active, of the files in a folder."""

    def __init__(self, folder: str) -> None:
        self.lines: set[Line] = set()
        self._folder = folder

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record the lines of all threads that run or start in the block."""
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def _enter(self, frame: FrameType, *_: Any) -> Any:
        return self._run_line if frame.f_code.co_filename.startswith(self._folder) else None

    def _run_line(self, frame: FrameType, *_: Any) -> Any:
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._run_line
