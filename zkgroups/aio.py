"""Members for asyncio: `zkgroups.Member` as a loop uses it. The rebalance, and the thread that drives it, are the same.

    import asyncio
    from zkgroups import Registry
    from zkgroups.aio import Generation, Member

    async def work(generation: Generation) -> None:
        offsets = {at: start if isinstance(start, int) else 0 for at, start in generation.partitions.items()}
        async for at, message in consume(offsets):      # yours: whatever reads from Kafka
            await process(message)
            offsets[at] += 1
            generation.mark(at, offsets[at])

    async def main() -> None:
        with Registry.connect("zk1:2181,zk2:2181/kafka") as registry:
            async with Member(registry.group("billing"), ["orders"], auto_commit_every=5.0) as member:
                async for generation in member.generations():
                    generation.start(work)
                    await generation.wait()

    asyncio.run(main())

The tasks of a generation are cancelled at its end, as by a task group: one that waits for its next message holds up
nobody. A task may still put things in order in `finally`, and commit there: it has as long as `release_timeout`, and
what it has marked is committed after it. One that is to finish its message first is given time with
`start(work, grace=...)`.

Nothing here blocks the loop. All callbacks run in it, be they functions or coroutine functions, so that they may use
what belongs to it; the member's thread waits for each, as long as `rebalance_timeout`, and goes on. What is given as
`assignors` and `partitions` runs on that thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeAlias

from .consumer import member as consumer
from .consumer.events import MemberStats
from .consumer.generation import Generation as Inner
from .consumer.generation import Offsets
from .core.znodes.states import InstanceState
from .core.znodes.topic_partition import TopicPartition
from .deadline import Deadline
from .exceptions import GenerationEndedError, InvalidOptionError, MemberClosedError

__all__ = ["Generation", "Member"]

log = logging.getLogger("zkgroups.member")

P = ParamSpec("P")
Work: TypeAlias = Callable[["Generation"], Coroutine[Any, Any, object]]

CALLBACKS: Final = ("on_assigned", "on_revoked", "on_lost", "on_event")

TICK: Final = 1.0
"""In seconds: how often to look whether the loop is still there. Nothing tells of its end while a callback runs."""


def _takes_what(made: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Say that an `__init__` has the options of another class, without listing them twice."""

    def told(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        init.__wrapped__ = made.__init__  # type: ignore[attr-defined]  # where `help` and editors look
        return init

    return told


async def _happens(event: asyncio.Event, deadline: Deadline | None) -> bool:
    """Wait for it; False if the time was over first."""
    try:
        async with asyncio.timeout(None if deadline is None else deadline.remaining):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Generation:
    """What a member is to work on, until it ends: see `zkgroups.Generation`. A member makes it."""

    def __init__(self, inner: Inner, home: _Home, release_timeout: float) -> None:
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
        inner.call_at_end(lambda: home.tell(self._end))

    @property
    def active(self) -> bool:
        """Whether there is work to do: it has not ended, and the session is certain to live."""
        return self._inner.active

    @property
    def paused(self) -> bool:
        """Whether there is no connection at this moment: a careful task begins nothing new."""
        return self._inner.paused

    @property
    def marked(self) -> Offsets:
        """Up to where each partition is processed, as far as that was said."""
        return self._inner.marked

    def start(self, work: Work, *, grace: float = 0.0) -> None:
        """Run `work(generation)` as a task. When it returns, or fails, the generation ends.

        When the generation ends first, the task is cancelled, at once or `grace` seconds later. What it raises reaches
        who iterates over the generations. In a generation that has ended already, nothing is started.
        """
        if not Deadline.after("grace", grace).seconds < self._release_timeout:
            raise InvalidOptionError("grace", grace, f"it must be less than release_timeout, {self._release_timeout:g}")
        if self._inner.over:
            return
        coroutine = work(self) if callable(work) else None
        if not inspect.iscoroutine(coroutine):
            raise InvalidOptionError("work", work, "it must be a coroutine function")
        task = asyncio.create_task(coroutine, name=f"zkgroups-work-{self.group}-{self.number:x}")
        self._inner.enter(task)
        self._tasks[task] = grace
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[object]) -> None:
        self.step_out(task)
        self._inner.end_by_worker(None if task.cancelled() else task.exception())

    def _end(self) -> None:
        self._over.set()
        for task, grace in self._tasks.items():
            asyncio.get_running_loop().call_later(grace, self._cancel, task)

    def _cancel(self, task: asyncio.Task[object]) -> None:
        if task in self._tasks:
            task.cancel(f"generation {self.number} of group {self.group!r} has ended")

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; False if the time was over first."""
        return await _happens(self._over, None if timeout is None else Deadline.after("timeout", timeout))

    def start_offset(self, at: TopicPartition, *, log_start: int, log_end: int) -> int:
        """The offset at which to begin reading a partition: see `zkgroups.Generation.start_offset`."""
        return self._inner.start_offset(at, log_start=log_start, log_end=log_end)

    def mark(self, at: TopicPartition, offset: int) -> None:
        """Record that everything before `offset` is processed: see `zkgroups.Generation.mark`."""
        self._inner.mark(at, offset)

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit these offsets now, or without any all that were marked: see `zkgroups.Generation.commit`.

        Whoever is cancelled meanwhile hears of it when the commit has come to its end.
        """
        if self._home.left:
            raise GenerationEndedError(self.group, self.number)
        chosen = None if offsets is None else dict(offsets)  # the caller's may change while a thread is at it
        await self._home.in_thread(self._inner.commit, chosen)

    # For the member

    def step_in(self, task: asyncio.Task[Any] | None) -> None:
        """This task works on it, too, though it will not be cancelled."""
        self._inner.enter(task)

    def step_out(self, task: asyncio.Task[Any] | None) -> None:
        """This task has come to its end, as far as this generation is concerned."""
        if task is not None:
            self._tasks.pop(task, None)
        self._inner.leave(task)

    def __repr__(self) -> str:
        return repr(self._inner)


class Member:
    """One member of a group, for asyncio. It takes the options of `zkgroups.Member`, with the same meaning.

    Where `zkgroups.Member` has `cancel`, here the task is cancelled that waits: no generation is lost by it.
    """

    @_takes_what(consumer.Member)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._home = _Home()
        for name in CALLBACKS:
            if callable(options.get(name)):
                options[name] = self._home.called_here(options[name])
        self._member = consumer.Member(*arguments, _run=self._home.run, _notify=self._notify, **options)
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

    # Life

    async def start(self) -> Self:
        """Join the group, from the loop that runs; nothing happens if it has been started already."""
        await self._home.settle()
        self._member.start()
        return self

    def stop(self, *, leave: bool = True) -> None:
        """Ask it to leave, without waiting: `generations` ends soon. It goes with `loop.add_signal_handler`."""
        self._member.stop(leave=leave)

    async def close(self, *, leave: bool = True) -> None:
        """Cancel the tasks, commit what they have marked, release everything and leave the group.

        See `zkgroups.Member.close`. If it is cancelled, the member goes on to leave all the same.
        """
        if self._member._thread is None:
            self._member.close(leave=leave)
        elif not self._member._closed:
            await self._leave(leave)
        await self._home.dismiss_sentry()

    async def _leave(self, leave: bool) -> None:
        task = asyncio.current_task()
        if self._latest is not None:
            self._latest.step_out(task)  # whoever works on it and calls this would wait for itself
        self._member.stop(leave=leave)
        if task in self._home.callers:
            return  # so would a callback
        if not await _happens(self._closed, Deadline(self._member._longest_leave)):
            log.error(
                "member %r of group %r did not leave in time; still trying in the background", self.id, self.group.name
            )

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Generations

    async def generations(self) -> AsyncGenerator[Generation, None]:
        """Each generation as it begins, until the member is closed; errors are raised here.

        The next one is waited for once the body of the loop has come to its end: so the body is to end with its
        generation, and the member waits for it as for a task, but does not cancel it.
        """
        await self.start()
        while True:
            try:
                generation = await self.next_generation()
            except MemberClosedError:
                return
            if generation is None:
                return
            body = asyncio.current_task()
            generation.step_in(body)
            try:
                yield generation
            finally:
                generation.step_out(body)

    async def next_generation(self, timeout: float | None = None) -> Generation | None:
        """The next generation; None when the time is over. It may be cancelled: then the next call has it."""
        deadline = None if timeout is None else Deadline.after("timeout", timeout)
        if not self._member._closed:
            await self.start()
        while True:
            self._news.clear()
            found = self._member.next_generation(0)  # takes what stands ready, and never waits
            if found is not None:
                self._latest = Generation(found, self._home, self._member._options.release_timeout)
                return self._latest
            if not await _happens(self._news, deadline):
                return None

    # From inside

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What it holds at this moment."""
        return self._member.assignment

    @property
    def state(self) -> InstanceState:
        """Its own state, in the words in which others see it."""
        return self._member.state

    @property
    def stats(self) -> MemberStats:
        """Totals since it was made, as they are now."""
        return self._member.stats

    def __repr__(self) -> str:
        return repr(self._member)


class _Home:
    """The loop in which a member lives, and the one thread in which it commits, so that the loop need not wait.

    A thread of its own, because those of `asyncio.to_thread` may all be busy with what the user runs there.
    """

    member: consumer.Member  # it is made with what is here, and put here before anything can happen

    def __init__(self) -> None:
        self.left = False
        self.callers: set[asyncio.Task[Any]] = set()
        """The callbacks that run."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sentry: AsyncGenerator[None, None] | None = None
        self._committer = 0
        self._threads = ThreadPoolExecutor(1, "zkgroups-commit", self._note_committer)

    def _note_committer(self) -> None:
        self._committer = threading.get_ident()

    async def settle(self) -> None:
        """Stay in the loop that runs."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._sentry = self._stand_sentry()
            await anext(self._sentry)
        elif self._loop is not asyncio.get_running_loop():
            raise RuntimeError("this member was started in another event loop")

    async def _stand_sentry(self) -> AsyncGenerator[None, None]:
        """A loop that shuts down ends its generators. A member that is not closed by then has nobody to work for it."""
        try:
            yield
        finally:
            if self._sentry is not None and not self.left:
                self._miss_the_loop()
                await self._end_callbacks()

    async def _end_callbacks(self) -> None:
        """What runs would be destroyed with the loop, and its caller would wait in vain."""
        for _ in range(2):  # who has been called is a task then, and has begun
            await asyncio.sleep(0)
        for task in self.callers:
            task.cancel()
        if self.callers:
            await asyncio.wait(self.callers)

    async def dismiss_sentry(self) -> None:
        """The member is closed, or will be."""
        sentry, self._sentry = self._sentry, None
        if sentry is not None:
            await sentry.aclose()

    def leave(self) -> None:
        """Nothing will be asked any more."""
        self.left = True
        self._threads.shutdown(wait=False)

    async def in_thread(self, act: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
        """Do it in the thread, and all of it: whoever is cancelled waits for its end, and knows what is so."""
        future = asyncio.wrap_future(self._threads.submit(act, *arguments, **options))
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    # From other threads

    def tell(self, act: Callable[[], object]) -> None:
        """Have this done in the loop, soon."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            self._miss_the_loop()

    def _miss_the_loop(self) -> None:
        if not self.left:
            log.warning("the event loop of member %s has ended: leaving the group", self.member._seat)
            self.leave()
            self.member.stop()

    def called_here(self, callback: Callable[[Any], Any]) -> Callable[[Any], Coroutine[Any, Any, None]]:
        """The same callback as a coroutine function, so that it is called in the loop whatever it is."""

        async def call(argument: object) -> None:
            task = asyncio.current_task()
            assert task is not None
            self.callers.add(task)
            try:
                result = callback(argument)
                if inspect.isawaitable(result):
                    await result
            finally:
                self.callers.discard(task)

        return call

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a callback in the loop, and wait for it, but not in a commit: the callback may be waiting to commit."""
        assert self._loop is not None
        if self.left:
            coroutine.close()
            return
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            self._miss_the_loop()
            return
        if threading.get_ident() == self._committer:
            future.add_done_callback(self._log_failure)
        else:
            self._wait_for(future, self._loop)

    def _log_failure(self, future: Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            log.error("a callback of %r failed", self.member, exc_info=error)

    def _wait_for(self, future: Future[None], loop: asyncio.AbstractEventLoop) -> None:
        deadline = Deadline(self.member._options.rebalance_timeout)
        while not wait([future], min(TICK, deadline.remaining)).done:
            if loop.is_closed():
                return self._miss_the_loop()
            if deadline.passed:
                future.cancel()
                raise TimeoutError(f"it has not ended within {deadline.seconds:g} s, and is cancelled")
        if not future.cancelled():  # as all are when the loop shuts down
            future.result()
        return None
