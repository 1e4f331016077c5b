"""An event loop on a thread, for callers without one."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from ...deadline import Deadline
from ...exceptions import UnavailableError

_CLEAN_UP: Final = 5.0
"""In seconds, for tasks that were cancelled."""

T = TypeVar("T")


class Runner:
    """Runs coroutines on its own event loop, in a daemon thread that the first call starts. Not thread-safe.

    The thread also ends if nobody refers to the runner anymore.

    A forked child cannot use the connections of its parent, so a call there raises UnavailableError.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._closed = False

    def run(self, coroutine: Coroutine[Any, Any, T], deadline: Deadline | None = None) -> T:
        """Return the result of a coroutine. Raise TimeoutError after the deadline.

        If the calling thread is interrupted, for example by Ctrl-C, the coroutine is cancelled and has ended when the
        exception arrives.
        """
        try:
            loop = self._started()
        except BaseException:
            coroutine.close()
            raise
        begun, ended = threading.Event(), threading.Event()
        running = asyncio.run_coroutine_threadsafe(_run(coroutine, deadline, begun, ended), loop)
        try:
            return running.result()
        except BaseException:
            if not running.done():
                begun.wait(_CLEAN_UP)  # a task that is cancelled before it begins leaves its coroutine open
                running.cancel()
                ended.wait(_CLEAN_UP)
            raise

    def close(self) -> None:
        """Cancel all tasks, and end the thread. Does nothing in a forked child."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        self._closed = True
        if loop is None or thread is None or os.getpid() != self._process:
            return
        self._abandoned.detach()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLEAN_UP)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise UnavailableError("the connection to the brokers is closed: connect again")
        if os.getpid() != self._process:
            raise UnavailableError("the connection to the brokers belongs to the parent process: connect again")
        if self._loop is None:
            started: Future[asyncio.AbstractEventLoop] = Future()
            self._thread = threading.Thread(target=_serve, args=(started,), name="zkgroups-kafka", daemon=True)
            self._thread.start()
            self._loop = started.result()
            self._abandoned = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
            self._abandoned.atexit = False
        return self._loop


async def _run(
    coroutine: Coroutine[Any, Any, T], deadline: Deadline | None, begun: threading.Event, ended: threading.Event
) -> T:
    begun.set()
    try:
        async with asyncio.timeout(None if deadline is None else deadline.remaining):
            return await coroutine
    finally:
        ended.set()


def _serve(started: Future[asyncio.AbstractEventLoop]) -> None:
    """Run an event loop until it is stopped, then cancel its tasks and close it."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        asyncio.set_event_loop(loop)
        loop.call_soon(started.set_result, loop)
        loop.run_forever()
