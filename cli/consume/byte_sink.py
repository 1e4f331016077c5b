"""Write messages to a pipe or a file whose reader may be slow, may have gone, or may never read."""

from __future__ import annotations

import os
import select
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final

from zkgroups.deadline import Deadline

_PACE: Final = 0.05
"""In seconds: how often to ask whether to stop, while the reader does not take the rest of a message."""

_MOMENT: Final = 0.1
"""In seconds: how long to go on with further messages. A rebalance waits for those that are under way."""


class ByteSink:
    """Writes to a descriptor. `stopped` is asked while its reader does not take the rest of a message.

    A pipe that can be written takes `PIPE_BUF` bytes at once and as a whole, so no write blocks, and no message up to
    that length is torn. The descriptor stays in blocking mode, because other processes may share it.
    """

    def __init__(self, descriptor: int, stopped: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._stopped = stopped
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, messages: Iterable[bytes]) -> int:
        """Write the messages that the reader takes within a moment. Return how many were written whole.

        None of the others has begun, unless `stopped` ended the write. Raise BrokenPipeError if the reader has gone.
        The messages are not made before the reader is ready.
        """
        if not self._is_ready(_MOMENT):
            return 0
        parts, moment = list(messages), Deadline(_MOMENT)
        data, ends = memoryview(b"".join(parts)), list(accumulate(map(len, parts)))
        count = begin = 0
        while count < len(ends):
            more = max(bisect_right(ends, begin + select.PIPE_BUF), count + 1)  # as many as a pipe takes as a whole
            if not (self._is_ready(moment.remaining) and self._write_whole(data[begin : ends[more - 1]])):
                break
            count, begin = more, ends[more - 1]
            if moment.passed:
                break
        return count

    def _write_whole(self, rest: memoryview) -> bool:
        """Write everything, after the reader was found ready. Return False if it was stopped before the end."""
        while rest := rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]:
            while not self._is_ready(_PACE):
                if self._stopped():
                    return False
        return True

    def _is_ready(self, seconds: float) -> bool:
        """Wait until a write would not block. Also True if the reader has gone: the next write raises the error."""
        return bool(self._poll.poll(seconds * 1000))

    def check(self) -> None:
        """Raise BrokenPipeError if the reader has gone: the next message may be hours away."""
        for _descriptor, event in self._poll.poll(0):
            if event & (select.POLLERR | select.POLLHUP):
                raise BrokenPipeError
