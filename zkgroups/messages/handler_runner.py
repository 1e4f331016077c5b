"""The messages that wait for a handler, and the workers that call it. No broker is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Self

from ..deadline import uptime
from .async_workers import AsyncWorkers
from .handler_options import Handler, HandlerOptions, is_coroutine_function
from .runs import LetterWriter, Runs
from .thread_workers import ThreadWorkers

LAST_WAIT: Final = 0.5
"""How long to wait at the end for workers, in seconds. Their partitions have been drained before."""


class HandlerRunner:
    """Calls a handler for the messages of `runs`, between `start` and `close`.

    - `handler`: a function, called by threads, or a coroutine function, called by tasks.
    - `letters`: where to write dead letters. Needed if `options.then` is a `DeadLetter`. The runner closes it.
    - `lock`, `changed`, `told_of_room`, `alive`: see `Runs`.
    - `clock`: returns seconds.
    """

    def __init__(
        self,
        handler: Handler,
        options: HandlerOptions,
        letters: LetterWriter | None = None,
        *,
        clock: Callable[[], float] = uptime,
        lock: Any = None,
        changed: threading.Condition | None = None,
        told_of_room: Callable[[], object] = lambda: None,
        alive: Callable[[], bool] = lambda: True,
        name: str = "",
    ) -> None:
        lock = lock or threading.RLock()
        changed = changed or threading.Condition(lock)
        self.runs = Runs(
            options, letters, clock=clock, lock=lock, changed=changed, told_of_room=told_of_room, alive=alive
        )
        chosen: Any = AsyncWorkers if is_coroutine_function(handler) else ThreadWorkers
        self._workers: AsyncWorkers | ThreadWorkers = chosen(handler, options.workers, self.runs, name)
        self._letters = letters
        self.runs.wake_workers = self._workers.wake
        self.runs.cancel_workers = self._workers.cancel

    def start(self) -> Self:
        """Start the workers."""
        self._workers.start()
        return self

    def close(self) -> None:
        """Begin no more messages, and end the workers. Drain the runs before, so that handlers can finish."""
        self.runs.close()
        self._workers.join(LAST_WAIT)
        if self._letters is not None:
            self._letters.close()

    def look_at_clock(self) -> None:
        """Begin the messages whose pause is over. Needed only if `clock` has jumped."""
        with self.runs.lock:
            self._workers.look_at_clock()
