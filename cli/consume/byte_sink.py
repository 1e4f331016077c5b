"""Write bytes to a pipe or a file whose reader may be slow, may have gone, or may never read."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Final

_PACE: Final = 0.05
"""In seconds: how often to ask whether to stop, while the reader does not read."""


class ByteSink:
    """Writes to a descriptor. `stopped` is asked while its reader does not read.

    A pipe that can be written takes `PIPE_BUF` bytes at once, so no write blocks. The descriptor stays in blocking
    mode, because other processes may share it.
    """

    def __init__(self, descriptor: int, stopped: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._stopped = stopped
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, data: bytes) -> bool:
        """Write everything. Return False if it was stopped before. Raise BrokenPipeError if the reader has gone."""
        rest = memoryview(data)
        while rest:
            if self._poll.poll(_PACE * 1000):
                rest = rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]
            elif self._stopped():
                return False
        return True

    def check(self) -> None:
        """Raise BrokenPipeError if the reader has gone: the next message may be hours away."""
        for _descriptor, event in self._poll.poll(0):
            if event & (select.POLLERR | select.POLLHUP):
                raise BrokenPipeError
