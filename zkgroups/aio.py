"""Members for asyncio: `zkgroups.Member` for use in an event loop. The rebalance and its thread are the same.

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

The tasks of a generation are cancelled at its end, as in a task group. A task can clean up and commit in `finally`. It
has `release_timeout` for this; then its marked offsets are committed. To let a task finish its message before it is
cancelled, use `start(work, grace=...)`.

Nothing here blocks the loop. All callbacks, functions and coroutine functions, run in the loop. The member's thread
waits for each of them, at most for `rebalance_timeout`. Functions given as `assignors` and `partitions` run on that
thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
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
"""How often to check, in seconds, that the loop still runs. Its end is not reported while a callback runs."""


def _options_of(made: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give an `__init__` the signature of another class, without listing its options twice."""

    def with_signature(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        init.__wrapped__ = made.__init__  # type: ignore[attr-defined]  # where `help` and editors look
        return init

    return with_signature


def _ask_for_exception(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception. Otherwise asyncio would log that nobody has retrieved it."""
    if not future.cancelled():
        future.exception()


async def _is_set_in_time(event: asyncio.Event, deadline: Deadline | None) -> bool:
    """Wait for the event. Return False if the deadline passes first."""
    try:
        async with asyncio.timeout(None if deadline is None else deadline.remaining):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Generation:
    """The partitions to work on until the next rebalance: see `zkgroups.Generation`."""

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
            return
        coroutine = work(self) if callable(work) else None
        if not inspect.iscoroutine(coroutine):
            raise InvalidOptionError("work", work, "it must be a coroutine function")
        task = asyncio.create_task(coroutine, name=f"zkgroups-work-{self.group}-{self.number:x}")
        self._inner._enter(task)
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
        return await _is_set_in_time(self._over, None if timeout is None else Deadline.after("timeout", timeout))

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

    def _step_in(self, task: asyncio.Task[Any] | None) -> None:
        """Count this task as a worker that is not cancelled."""
        self._inner._enter(task)

    def _step_out(self, task: asyncio.Task[Any] | None) -> None:
        """Stop counting this task as a worker."""
        if task is not None:
            self._tasks.pop(task, None)
        self._inner._leave(task)

    def __repr__(self) -> str:
        return repr(self._inner)


class Member:
    """A member of a group, for asyncio, with the options of `zkgroups.Member`.

    It has no `cancel`: cancel the task that waits for a generation instead. No generation is lost by that.
    """

    @_options_of(consumer.Member)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._home = _Home()
        for name in CALLBACKS:
            if callable(options.get(name)):
                options[name] = self._home.called_here(options[name])
        self._member = _MemberThread(self._home, self._notify, *arguments, **options)
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
        if task in self._home.callers:
            return  # neither must a callback
        if not await _is_set_in_time(self._closed, Deadline(self._member._longest_leave)):
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
        """Iterate over the generations until the member is closed.

        Errors of tasks and of the member are raised here. Call this again to receive the next generation. The body of
        the loop must end when its generation ends. The member waits for the body as it does for a task, but does not
        cancel it.
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
            generation._step_in(body)
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
            if not await _is_set_in_time(self._news, deadline):
                return None

    # State

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the member holds now."""
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

    def __init__(self, home: _Home, notify: Callable[[], None], *arguments: Any, **options: Any) -> None:
        self._home = home
        self._tell = notify
        super().__init__(*arguments, **options)

    def _queue_changed(self) -> None:
        self._tell()

    def _await_callback(self, awaitable: Any) -> None:
        self._home.run(awaitable)


class _Home:
    """The event loop of a member, and the thread that commits, so that the loop never blocks.

    It has a thread of its own, because user code may occupy all threads of `asyncio.to_thread`.
    """

    member: consumer.Member  # set before anything can use it

    def __init__(self) -> None:
        self.left = False
        self.callers: set[asyncio.Task[Any]] = set()
        """The running callbacks."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sentry: AsyncGenerator[None, None] | None = None
        self._committer = 0
        self._threads = ThreadPoolExecutor(1, "zkgroups-commit", self._note_committer)

    def _note_committer(self) -> None:
        self._committer = threading.get_ident()

    async def settle(self) -> None:
        """Use the running loop from now on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._sentry = self._stand_sentry()
            await anext(self._sentry)
        elif self._loop is not asyncio.get_running_loop():
            raise RuntimeError("this member was started in another event loop: use it there")

    async def _stand_sentry(self) -> AsyncGenerator[None, None]:
        """Wait for the shutdown of the loop, which closes this generator. An open member then leaves its group."""
        try:
            yield
        finally:
            if self._sentry is not None and not self.left:
                self._miss_the_loop()
                await self._end_callbacks()

    async def _end_callbacks(self) -> None:
        """Cancel the running callbacks. They would be destroyed with the loop, and their callers would wait forever."""
        for _ in range(2):  # after this, each scheduled callback has become a task
            await asyncio.sleep(0)
        for task in self.callers:
            task.cancel()
        if self.callers:
            await asyncio.wait(self.callers)

    async def dismiss_sentry(self) -> None:
        """Stop watching the loop: the member is closed, or is about to be."""
        sentry, self._sentry = self._sentry, None
        if sentry is not None:
            await sentry.aclose()

    def leave(self) -> None:
        """Refuse further commits and callbacks."""
        self.left = True
        self._threads.shutdown(wait=False)

    async def in_thread(self, act: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
        """Run `act` in the thread. A cancelled caller waits for its end, so that the outcome is known."""
        future = asyncio.wrap_future(self._threads.submit(act, *arguments, **options))
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_ask_for_exception)
            await asyncio.wait([future])
            raise

    # From other threads

    def tell(self, act: Callable[[], object]) -> None:
        """Call `act` soon in the loop."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            self._miss_the_loop()

    def _miss_the_loop(self) -> None:
        if not self.left:
            log.warning("the event loop of member %s has ended; the member leaves the group", self.member._membership)
            self.leave()
            self.member.stop()

    def called_here(self, callback: Callable[[Any], Any]) -> Callable[[Any], Coroutine[Any, Any, None]]:
        """Wrap a callback in a coroutine function, so that it always runs in the loop."""

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
        """Run a callback in the loop and wait for it. Do not wait during a commit: the callback may want to commit."""
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
            log.error("a callback of member %s failed", self.member._membership, exc_info=error)

    def _wait_for(self, future: Future[None], loop: asyncio.AbstractEventLoop) -> None:
        deadline = Deadline(self.member._options.rebalance_timeout)
        while not wait([future], min(TICK, deadline.remaining)).done:
            if loop.is_closed():
                return self._miss_the_loop()
            if deadline.passed:
                future.cancel()
                raise TimeoutError(f"the callback did not end within {deadline.seconds:g} s and was cancelled")
        if not future.cancelled():  # the shutdown of the loop cancels all callbacks
            future.result()
        return None
