"""The event loop of a member or a consumer, and the threads that work for it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from ..consumer import member as consumer
from ..deadline import Deadline
from ..exceptions import MemberClosedError

log = logging.getLogger("zkgroups.member")

P = ParamSpec("P")
T = TypeVar("T")

CALLBACKS: Final = ("on_assigned", "on_revoked", "on_lost", "on_event")

TICK: Final = 1.0
"""How often to check, in seconds, that the loop still runs. Its end is not reported while a callback runs."""


def options_of(made: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give an `__init__` the signature of another class, without listing its options twice."""

    def with_signature(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        init.__wrapped__ = made.__init__  # type: ignore[attr-defined]  # where `help` and editors look
        return init

    return with_signature


def _ask_for_exception(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception. Otherwise asyncio would log that nobody has retrieved it."""
    if not future.cancelled():
        future.exception()


async def is_set_in_time(event: asyncio.Event, deadline: Deadline | None) -> bool:
    """Wait for the event. Return False if the deadline passes first."""
    try:
        async with asyncio.timeout(None if deadline is None else deadline.remaining):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def finished_in(threads: Executor, act: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Run `act` in a thread. A cancelled caller waits for its end, so that the outcome is known."""
    future = asyncio.wrap_future(threads.submit(act, *arguments, **options))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(_ask_for_exception)
        await asyncio.wait([future])
        raise


class Home:
    """The event loop of a member, and the threads that commit, so that the loop never blocks.

    It has threads of its own, because user code may occupy all threads of `asyncio.to_thread`. Commits of callbacks
    have another thread than other commits: these may wait for the end of a rebalance, which waits for the callback.
    """

    member: consumer.Member  # set before anything can use it

    def __init__(self) -> None:
        self.left = False
        self.callers: set[asyncio.Task[Any]] = set()
        """The running callbacks."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sentry: AsyncGenerator[None, None] | None = None
        self._committers: set[int] = set()
        self._threads = ThreadPoolExecutor(1, "zkgroups-commit", self._note_committer)
        self._threads_of_callbacks = ThreadPoolExecutor(1, "zkgroups-callback-commit", self._note_committer)

    def _note_committer(self) -> None:
        self._committers.add(threading.get_ident())

    def with_callbacks(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return these options with callbacks that run in the loop."""
        callbacks = {name: self._called_here(options[name]) for name in CALLBACKS if callable(options.get(name))}
        return {**options, **callbacks}

    @property
    def in_callback(self) -> bool:
        """True in a callback."""
        return asyncio.current_task() in self.callers

    @property
    def forked(self) -> bool:
        """True in a fork, which has neither the member nor the threads."""
        return self.member._pid != os.getpid()

    def _check_process(self) -> None:
        if self.forked:
            raise MemberClosedError(self.member._membership.group_name, self.member.id)

    async def settle(self) -> None:
        """Use the running loop from now on."""
        self._check_process()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._sentry = self._stand_sentry()
            await anext(self._sentry)
        elif self._loop is not asyncio.get_running_loop():
            raise RuntimeError("it was started in another event loop: use it there")

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
        self._threads_of_callbacks.shutdown(wait=False)

    async def in_thread(self, act: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
        """Run a commit in a thread. A cancelled caller waits for its end."""
        self._check_process()
        threads = self._threads_of_callbacks if self.in_callback else self._threads
        await finished_in(threads, act, *arguments, **options)

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
            if not self.member._closed:
                text = "the event loop of member %s has ended; the member leaves the group"
                log.warning(text, self.member._membership)
            self.leave()
            self.member.stop()

    def _called_here(self, callback: Callable[[Any], Any]) -> Callable[[Any], Coroutine[Any, Any, None]]:
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
        if threading.get_ident() in self._committers:
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
