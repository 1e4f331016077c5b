"""Threads that call a handler which is a function."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline
from ..exceptions import InvalidOptionError
from .runs import Fatal, Run, Runs

if TYPE_CHECKING:
    from confluent_kafka import Message


class ThreadWorkers:
    """A number of daemon threads. A handler that never returns keeps its thread, and nothing else."""

    def __init__(self, handler: Callable[[Message], object], count: int, runs: Runs, name: str) -> None:
        self._handler = handler
        self._runs = runs
        self._ready = threading.Condition(runs.lock)
        self._idle = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"zkgroups-handler-{name}-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Let idle threads look for messages. The caller holds the lock."""
        if self._idle:
            self._ready.notify(self._idle if self._runs.closed else min(self._idle, self._runs.ready))

    def look_at_clock(self) -> None:
        """Let an idle thread compare the time with that of the next attempt. The caller holds the lock."""
        self._ready.notify()

    def cancel(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: a thread cannot be interrupted."""

    def join(self, timeout: float) -> None:
        """Wait for the threads. Those whose handlers do not return go on."""
        deadline = Deadline(timeout)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(deadline.remaining)

    def _work(self) -> None:
        run = self._first()
        while run is not None:
            run = self._next(run, self._handle(run))

    def _handle(self, run: Run) -> BaseException | None:
        handler, run.begun = self._handler, True
        try:
            for _offset, message in run.messages:  # `for message in run` does the same, and takes longer
                if run.cancelled:
                    break
                if (result := handler(message)) is not None:
                    _check_result(handler, result)
                run.done += 1
        except BaseException as error:  # including SystemExit, which ends the consumer
            return error
        return None

    def _first(self) -> Run | None:
        with self._runs.lock:
            return self._wait()

    def _next(self, run: Run, error: BaseException | None) -> Run | None:
        with self._runs.lock:
            self._runs.end(run, error)
            if error is not None:
                self.look_at_clock()  # this worker may be busy when the pause is over
            return self._wait()

    def _wait(self) -> Run | None:
        """Wait for messages. None when the runs are closed. The caller holds the lock."""
        while (run := self._runs.take()) is None:
            if self._runs.closed:
                return None
            self._idle += 1
            self._ready.wait(self._runs.pause)
            self._idle -= 1
        self.wake()  # another lane may have become ready
        return run


def _check_result(handler: object, result: object) -> None:
    """Stop if a function has returned a coroutine, which would never run."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        reason = "it returned a coroutine that would never run: pass the coroutine function itself (async def)"
        raise Fatal(InvalidOptionError("handler", handler, reason))
