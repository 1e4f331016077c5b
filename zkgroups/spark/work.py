"""Work with Spark on a thread of its own, so that no signal ever hits a call to Java.

What a signal handler raises in the midst of such a call leaves the answer unread. py4j hangs up after a
`KeyboardInterrupt`, but after nothing else: the next call of that thread would wait until the first is done, and take
its answer for its own. And in either case the job would go on writing, while its files are thrown away.

So the caller's thread only waits. When it is interrupted, the job is cancelled, and the caller goes on when the other
thread has put everything in order.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from threading import Event
from typing import Final, TypeVar

from py4j.protocol import Py4JError
from pyspark import InheritableThread, inheritable_thread_target
from pyspark.sql import SparkSession

T = TypeVar("T")

_AGAIN: Final = 0.2
"""So often, in seconds, a job is cancelled: it may have begun just after the last time."""


class Cancelled(Exception):
    """Raised in the work, which is not to go on."""


def interruptible(spark: SparkSession, work: Callable[[Callable[[str], None]], T], told: Callable[[str], None]) -> T:
    """What `work` returns or raises. It is given a function by which it says what it does next, for `told` to hear."""
    context, tag = spark.sparkContext, f"zkgroups-{uuid.uuid4().hex}"
    steps: SimpleQueue[str | None] = SimpleQueue()
    outcome: Future[T] = Future()
    cancelled = Event()

    def step(name: str) -> None:
        if cancelled.is_set():
            raise Cancelled
        steps.put(name)

    def run() -> None:
        try:
            context.addJobTag(tag)
            outcome.set_result(work(step))
        except BaseException as error:
            outcome.set_exception(error)
        finally:
            steps.put(None)

    thread = InheritableThread(target=run, daemon=True)  # with the job group and the pool of the caller
    thread.start()
    try:
        for name in iter(steps.get, None):
            told(name)
    except BaseException:
        cancelled.set()
        while thread.is_alive():
            with suppress(Py4JError, OSError):
                context.cancelJobsWithTag(tag)
            thread.join(_AGAIN)
        raise
    thread.join()
    return outcome.result()


def at_once(spark: SparkSession, calls: Sequence[Callable[[], T]]) -> list[T]:
    """What the calls return, each of which has a thread of its own; the first error of them when all have ended."""
    with ThreadPoolExecutor(len(calls)) as threads:
        begun = [threads.submit(inheritable_thread_target(spark)(call)) for call in calls]
    return [each.result() for each in begun]
