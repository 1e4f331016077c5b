"""Tasks that call a handler which is a coroutine function."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from ..core.znodes.topic_partition import TopicPartition
from .runs import Run, Runs

if TYPE_CHECKING:
    from confluent_kafka import Message


class AsyncWorkers:
    """At most `count` tasks, in one event loop on a daemon thread."""

    def __init__(self, handler: Callable[[Message], Awaitable[object]], count: int, runs: Runs, name: str) -> None:
        self._handler = handler
        self._count = count
        self._runs = runs
        self._thread = threading.Thread(target=self._drive, name=f"zkgroups-handler-{name}", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[asyncio.Task[None], Run | None] = {}  # with the run that has not ended
        self._over = asyncio.Event()
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the loop."""
        self._loop = asyncio.new_event_loop()  # here, so that `wake` can use it at once
        self._thread.start()

    def wake(self) -> None:
        """Let the loop look for messages. The caller holds the lock."""
        if not self._woken:
            self._woken = self._tell(self._fill)

    def look_at_clock(self) -> None:
        """Let the loop compare the time with that of the next attempt. The caller holds the lock."""
        self.wake()

    def cancel(self, partitions: Collection[TopicPartition]) -> None:
        """Cancel the tasks that work on these partitions, if these were taken away."""
        self._tell(self._cancel, frozenset(partitions))

    def join(self, timeout: float) -> None:
        """Cancel all tasks, and wait for them."""
        self._tell(self._over.set)
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(timeout)

    def _tell(self, call: Callable[..., object], *arguments: object) -> bool:
        """Return False if the loop has not started, or has ended."""
        if self._loop is None:
            return False
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(call, *arguments)
            return True
        return False

    # In the loop

    def _drive(self) -> None:
        loop = self._loop
        assert loop is not None, "`start` has created it"
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._main())  # then it cancels all tasks, and waits for them

    async def _main(self) -> None:
        self._fill()
        await self._over.wait()

    def _fill(self) -> None:
        """Start tasks while there are messages."""
        loop = asyncio.get_running_loop()
        with self._runs.lock:
            self._woken = False
            while len(self._tasks) < self._count and (run := self._runs.take()) is not None:
                task = loop.create_task(self._work(run))
                self._tasks[task] = run
                task.add_done_callback(self._ended)
            pause = self._runs.pause
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if pause is not None and len(self._tasks) < self._count:  # otherwise, the next task that ends calls this
            self._timer = loop.call_later(pause, self._fill)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if (run := self._tasks.pop(task)) is not None:  # the task was cancelled before it began
            with self._runs.lock:
                self._runs.end(run, None)
        if not self._over.is_set():
            self._fill()

    def _cancel(self, partitions: frozenset[TopicPartition]) -> None:
        for task, run in self._tasks.items():
            if run is not None and run.cancelled and run.lane.at in partitions:
                task.cancel("the partition was taken away")

    async def _work(self, run: Run) -> None:
        task = asyncio.current_task()
        while task is not None:
            error = await self._handle(run, task)
            with self._runs.lock:
                self._tasks[task] = None
                self._runs.end(run, error)
                if error is not None or task.cancelling() or (following := self._runs.take()) is None:
                    return
            self._tasks[task] = run = following

    async def _handle(self, run: Run, task: asyncio.Task[None]) -> BaseException | None:
        handler = self._handler
        try:
            await asyncio.sleep(0)  # a handler that never waits would keep the loop
            for message in run:
                await handler(message)
        except asyncio.CancelledError as error:
            return None if task.cancelling() else error
        except BaseException as error:  # including SystemExit, which ends the consumer
            return error
        return None
