"""An event loop on a thread, for callers without one."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from ...deadline import Deadline
from ...exceptions import UnavailableError

_CLEAN_UP: Final = 5.0
"""In seconds, for tasks that were cancelled."""

T = TypeVar("T")


class Runner:
    """Runs coroutines on its own event loop, in a daemon thread that the first call starts.

    The thread also ends if nobody refers to the runner anymore.

    A forked child cannot use the connections of its parent, so a call there raises UnavailableError.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting: Future[asyncio.AbstractEventLoop] | None = None
        self._lock = threading.RLock()  # a signal handler may call while the thread starts
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
        except CancelledError:
            raise UnavailableError("the connection to the brokers was closed during the call: connect again") from None
        except BaseException:
            if not running.done():
                begun.wait(_CLEAN_UP)  # a task that is cancelled before it begins leaves its coroutine open
                running.cancel()
                ended.wait(_CLEAN_UP)
            raise

    def close(self) -> None:
        """Cancel all tasks, and end the thread. Does nothing in a forked child."""
        starting, thread = self._starting, self._thread
        self._closed = True
        if starting is None or os.getpid() != self._process:
            return
        _stop(starting)
        self._abandoned.detach()
        if thread is not None and thread.is_alive():
            thread.join(_CLEAN_UP)
        self._loop = self._starting = self._thread = None

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise UnavailableError("the connection to the brokers is closed: connect again")
        if os.getpid() != self._process:
            raise UnavailableError("the connection to the brokers belongs to the parent process: connect again")
        if self._loop is None:
            with self._lock:
                starting = self._start()
            self._loop = starting.result()
        return self._loop

    def _start(self) -> Future[asyncio.AbstractEventLoop]:
        """Start the thread, unless an interrupted call has. Every thread ends with the runner."""
        if self._starting is None or self._thread is None or not self._thread.is_alive():
            self._starting = Future()
            self._abandoned = weakref.finalize(self, _stop, self._starting)
            self._abandoned.atexit = False
            self._thread = threading.Thread(target=_serve, args=(self._starting,), name="zkgroups-kafka", daemon=True)
            self._thread.start()
        return self._starting


def _stop(starting: Future[asyncio.AbstractEventLoop]) -> None:
    """Stop the event loop of a thread, or as soon as it has one."""

    def stop(started: Future[asyncio.AbstractEventLoop]) -> None:
        loop = started.result()
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(loop.stop)

    starting.add_done_callback(stop)


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
