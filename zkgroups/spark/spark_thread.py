"""Run work with Spark on a separate thread, so that a signal never interrupts a call to Java.

If a signal handler raises in the middle of a call to Java, the answer stays unread. py4j closes the connection only for
a `KeyboardInterrupt`. After any other exception the next call on that thread would receive the answer of the first. In
both cases the job would keep writing while its files are being deleted.

So the caller's thread only waits. When it is interrupted, another thread cancels the jobs, and the caller continues
after the work has cleaned up.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final, Generic, TypeVar, cast

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext, inheritable_thread_target
from pyspark.sql import SparkSession

from .pyspark_internals import threads_are_pinned

T = TypeVar("T")

_CANCEL_INTERVAL: Final = 0.2
_STOP_INTERVAL: Final = 0.2
"""In seconds."""


class Cancelled(Exception):
    """Raised in the work to stop it."""


class _Background(Generic[T]):
    """Work that runs on a thread of its own."""

    def __init__(self, spark: SparkSession, work: Callable[[], T]) -> None:
        self._context = spark.sparkContext
        self._tag = f"zkgroups-{uuid.uuid4().hex}"
        self._outcome: Future[T] = Future()
        # It inherits the caller's job group and pool.
        self._thread = InheritableThread(target=self._run, args=(work,), daemon=True)

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._context.addJobTag(self._tag)
            self._outcome.set_result(work())
        except BaseException as error:
            self._outcome.set_exception(error)
        finally:
            with suppress(Py4JError, OSError):
                self._context.removeJobTag(self._tag)  # other code may use the same Java thread later

    def start(self) -> None:
        self._thread.start()

    def has_ended(self, timeout: float) -> bool:
        """Wait until the work has ended, at most for a time. Return whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def result(self) -> T:
        """Wait until the work has ended, and return or raise its outcome."""
        self._thread.join()
        return self._outcome.result()

    def cancel(self) -> None:
        """Cancel the jobs of the work until it has ended."""
        until = (self._context, self._tag, lambda: not self._thread.is_alive())
        helper = Thread(target=_cancel_until, args=until, daemon=True)
        helper.start()
        helper.join()


def interruptible(
    spark: SparkSession, work: Callable[[Callable[[str], None]], T], on_progress: Callable[[str], None] | None
) -> T:
    """Run `work` on a separate thread, and return or raise its outcome.

    `work` receives a function to call with the name of its next step. `on_progress`, if given, is called with that name
    on the caller's thread.
    """
    steps: SimpleQueue[str | None] = SimpleQueue()
    cancelled = Event()

    def step(name: str) -> None:
        if cancelled.is_set():
            raise Cancelled
        steps.put(name)

    def run() -> T:
        try:
            return work(step)
        finally:
            steps.put(None)

    background = _Background(spark, run)
    try:
        background.start()
        for name in iter(steps.get, None):
            if on_progress is not None:
                on_progress(name)
    except BaseException:
        cancelled.set()
        background.cancel()
        raise
    return background.result()


def stoppable(spark: SparkSession, work: Callable[[Event], T], stop: Event | None) -> T:
    """Run `work` on a separate thread until it ends or `stop` is set, and return or raise its outcome.

    `work` receives an event that is set when it has to end. Then its jobs are cancelled.
    """
    ended = Event()
    background = _Background(spark, lambda: work(ended))
    try:
        background.start()
        while not background.has_ended(_STOP_INTERVAL):
            if stop is not None and stop.is_set():
                ended.set()
                background.cancel()
    except BaseException:
        ended.set()
        background.cancel()
        raise
    return background.result()


def run_in_parallel(spark: SparkSession, calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run each call on its own thread, and return their results. If one fails, cancel the others."""
    if not threads_are_pinned():
        return [call() for call in calls]  # job tags are not per thread
    context, tag = spark.sparkContext, f"zkgroups-{uuid.uuid4().hex}"

    def tagged(call: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            context.addJobTag(tag)
            return call()

        return cast(Callable[[], T], inheritable_thread_target(spark)(run))

    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(tagged(call)) for call in calls]
        done, running = wait(futures, return_when=FIRST_EXCEPTION)
        first = next((error for each in done if (error := each.exception()) is not None), None)
        if first is not None:
            _cancel_until(context, tag, lambda: not wait(running, timeout=0).not_done)
            raise first
    return [each.result() for each in futures]


def _cancel_until(context: SparkContext, tag: str, is_done: Callable[[], bool]) -> None:
    """Cancel repeatedly, because a job may start just after a cancellation."""
    while not is_done():
        with suppress(Py4JError, OSError):
            context.cancelJobsWithTag(tag)
        time.sleep(_CANCEL_INTERVAL)
