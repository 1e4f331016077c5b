"""Work that takes time, beside the callbacks that forward bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Worker:
    """Carries out one piece of work at a time.

    - `on_end`: called after each piece, with its error, or None.
    """

    def __init__(self, on_end: Callable[[BaseException | None], None]) -> None:
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """True while work is under way."""
        return self._task is not None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work, unless the worker is busy."""
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._end)

    async def stop(self) -> None:
        """Stop the work that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._on_end(asyncio.CancelledError() if task.cancelled() else task.exception())
