"""The partitions of a member for asyncio, and the tasks that work on them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from ..consumer.generation import Generation as Inner
from ..consumer.generation import Offsets
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline
from ..exceptions import GenerationEndedError, InvalidOptionError
from .event_loop import Home, is_set_in_time

Work: TypeAlias = Callable[["Generation"], Coroutine[Any, Any, object]]


class Generation:
    """The partitions to work on until the next rebalance: see `zkgroups.Generation`."""

    def __init__(self, inner: Inner, home: Home, release_timeout: float) -> None:
        self.group = inner.group
        self.member = inner.member
        self.number = inner.number
        self.partitions = inner.partitions
        self.streams = inner.streams
        self.unreadable = inner.unreadable
        self._inner = inner
        self._home = home
        self._release_timeout = release_timeout
        self._over = asyncio.Event()
        self._tasks: dict[asyncio.Task[object], float] = {}
        inner._call_at_end(lambda: home.tell(self._end))

    @property
    def active(self) -> bool:
        """True until the generation ends, while the session is certain to be alive."""
        return self._inner.active

    @property
    def paused(self) -> bool:
        """True while the connection is lost: a careful task starts nothing new."""
        return self._inner.paused

    @property
    def marked(self) -> Offsets:
        """For each partition, the highest offset that was marked in this generation, committed or not."""
        return self._inner.marked

    def start(self, work: Work, *, grace: float = 0.0) -> None:
        """Run `work(generation)` as a task. When it returns or raises, the generation ends.

        If the generation ends first, the task is cancelled, at once or after `grace` seconds. `Member.generations`
        raises the task's error again. If the generation has already ended, nothing is started.
        """
        if not Deadline.after("grace", grace).seconds < self._release_timeout:
            raise InvalidOptionError(
                "grace", grace, f"it must be less than release_timeout ({self._release_timeout:g})"
            )
        if self._inner.over:
            return  # without a call of `work`
        coroutine = work(self) if callable(work) else None
        if not inspect.iscoroutine(coroutine):
            raise InvalidOptionError("work", work, "it must be a coroutine function")
        task = asyncio.create_task(coroutine, name=f"zkgroups-work-{self.group}-{self.number:x}")
        if not self._inner._enter(task):
            task.cancel()  # it has not begun
            return
        self._tasks[task] = grace
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[object]) -> None:
        self._step_out(task)
        self._inner._end_by_worker(None if task.cancelled() else task.exception())

    def _end(self) -> None:
        self._over.set()
        for task, grace in self._tasks.items():
            asyncio.get_running_loop().call_later(grace, self._cancel, task)

    def _cancel(self, task: asyncio.Task[object]) -> None:
        if task in self._tasks:
            task.cancel(f"generation {self.number} of group {self.group!r} has ended")

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the generation ends. Return False if the timeout passes first."""
        return await is_set_in_time(self._over, None if timeout is None else Deadline.after("timeout", timeout))

    def start_offset(self, at: TopicPartition, *, log_start: int, log_end: int) -> int:
        """Return the offset at which to start reading a partition: see `zkgroups.Generation.start_offset`."""
        return self._inner.start_offset(at, log_start=log_start, log_end=log_end)

    def mark(self, at: TopicPartition, offset: int) -> None:
        """Record that everything before `offset` is processed: see `zkgroups.Generation.mark`."""
        self._inner.mark(at, offset)

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit these offsets now, by default all marked offsets: see `zkgroups.Generation.commit`.

        A cancellation takes effect only after the commit has ended.
        """
        if self._home.left:
            raise GenerationEndedError(self.group, self.number)
        chosen = None if offsets is None else dict(offsets)  # the caller may change the mapping during the commit
        await self._home.in_thread(self._inner.commit, chosen)

    # For the member

    def _step_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Count this task as a worker that is not cancelled. Return False if the generation has ended."""
        return self._inner._enter(task)

    def _step_out(self, task: asyncio.Task[Any] | None) -> None:
        """Stop counting this task as a worker."""
        if task is not None:
            self._tasks.pop(task, None)
        self._inner._leave(task)

    def __repr__(self) -> str:
        return repr(self._inner)
