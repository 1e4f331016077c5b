"""A member of a group, for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias

from ..consumer import member as consumer
from ..consumer.events import MemberStats
from ..consumer.generation import Generation as Inner
from ..consumer.generation import Offsets
from ..core.znodes.states import InstanceState
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline
from ..exceptions import GenerationEndedError, InvalidOptionError, MemberClosedError
from .event_loop import Home, is_set_in_time, options_of

# The partitions of a member for asyncio, and the tasks that work on them.


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
        raises the task's error again. If the generation has already ended, the task runs to its first `await`, and is
        then cancelled in the same way: check `generation.active` first. The member does not wait for such a task.
        """
        if not Deadline.after("grace", grace).seconds < self._release_timeout:
            raise InvalidOptionError(
                "grace", grace, f"it must be less than release_timeout ({self._release_timeout:g})"
            )
        coroutine = work(self) if callable(work) else None
        if not inspect.iscoroutine(coroutine):
            raise InvalidOptionError("work", work, "it must be a coroutine function")
        task = asyncio.create_task(coroutine, name=f"zkgroups-work-{self.group}-{self.number:x}")
        self._tasks[task] = grace
        task.add_done_callback(self._task_ended)
        if not self._inner._enter(task) and self._over.is_set():
            self._cancel_later(task, grace)

    def _task_ended(self, task: asyncio.Task[object]) -> None:
        self._step_out(task)
        self._inner._end_by_worker(None if task.cancelled() else task.exception())

    def _end(self) -> None:
        self._over.set()
        for task, grace in self._tasks.items():
            self._cancel_later(task, grace)

    def _cancel_later(self, task: asyncio.Task[object], grace: float) -> None:
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


log = logging.getLogger("zkgroups.member")


class Member:
    """A member of a group, for asyncio, with the options of `zkgroups.Member`.

    It has no `cancel`: cancel the task that waits for a generation instead. No generation is lost by that.
    """

    @options_of(consumer.Member)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._home = Home()
        self._member = _MemberThread(self._home, self._notify, *arguments, **self._home.with_callbacks(options))
        self._home.member = self._member
        self.group = self._member.group
        self.id = self._member.id
        self._news = asyncio.Event()
        self._closed = asyncio.Event()
        self._latest: Generation | None = None

    def _notify(self) -> None:
        self._home.tell(self._hear)

    def _hear(self) -> None:
        self._news.set()
        if self._member._closed:
            self._closed.set()
            self._home.leave()

    async def start(self) -> Self:
        """Join the group, and stay in the running loop. A second call does nothing."""
        await self._home.settle()
        self._member.start()
        return self

    def stop(self, *, leave: bool = True) -> None:
        """Ask the member to leave, without waiting: `generations` ends soon. Use it with `loop.add_signal_handler`."""
        self._member.stop(leave=leave)

    async def close(self, *, leave: bool = True) -> None:
        """Cancel the tasks, commit what they have marked, release everything and leave the group.

        See `zkgroups.Member.close`. If it is cancelled, the member still leaves.
        """
        if self._home.forked:
            return
        if self._member._thread is None:
            self._member.close(leave=leave)
        elif not self._member._closed:
            await self._leave(leave)
        await self._home.dismiss_sentry()

    async def _leave(self, leave: bool) -> None:
        task = asyncio.current_task()
        if self._latest is not None:
            self._latest._step_out(task)  # a task that calls `close` must not wait for itself
        self._member.stop(leave=leave)
        if self._home.in_callback:
            return  # neither must a callback
        if not await is_set_in_time(self._closed, Deadline(self._member._longest_leave)):
            log.error(
                "member %r of group %r did not leave in time; still trying in the background", self.id, self.group.name
            )

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def generations(self) -> AsyncGenerator[Generation, None]:
        """Iterate over the generations until the member is closed.

        Errors of tasks and of the member are raised here. Call this again to receive the next generation. The body of
        the loop must end when its generation ends. The member waits for the body as it does for a task, but does not
        cancel it.
        """
        if self._home.forked:
            await self.start()  # raises an error
        while True:
            try:
                generation = await self.next_generation()
            except MemberClosedError:
                return
            if generation is None:
                return
            body = asyncio.current_task()
            if generation._step_in(body):  # otherwise it has ended since
                try:
                    yield generation
                finally:
                    generation._step_out(body)

    async def next_generation(self, timeout: float | None = None) -> Generation | None:
        """Wait for the next generation. Return None after the timeout. A cancelled call loses none."""
        deadline = None if timeout is None else Deadline.after("timeout", timeout)
        if not self._member._closed:
            await self.start()
        while True:
            self._news.clear()
            found = self._member.next_generation(0)  # 0: never waits
            if found is not None:
                self._latest = Generation(found, self._home, self._member._options.release_timeout)
                return self._latest
            if not await is_set_in_time(self._news, deadline):
                return None

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the member holds now. A partition is not among them once its release is requested."""
        return self._member.assignment

    @property
    def state(self) -> InstanceState:
        """The state of this member, as other clients see it: Joining, AwaitingSync, Stable or Leaving."""
        return self._member.state

    @property
    def stats(self) -> MemberStats:
        """A copy of the `MemberStats` since the member was created."""
        return self._member.stats

    def __repr__(self) -> str:
        return f"<Member {self._member._membership}, {self.state}, {len(self.assignment)} partitions>"


class _MemberThread(consumer.Member):
    """The member on its own thread. `notify` is called there when something is new; callbacks run in the event loop."""

    def __init__(self, home: Home, notify: Callable[[], None], *arguments: Any, **options: Any) -> None:
        self._home = home
        self._tell = notify
        super().__init__(*arguments, **options)

    def _queue_changed(self) -> None:
        self._tell()

    def _await_callback(self, awaitable: Any) -> None:
        self._home.run(awaitable)
