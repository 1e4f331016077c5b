"""Work with Spark on a thread of its own, so that no signal ever hits a call to Java.

What a signal handler raises in the midst of such a call leaves the answer unread. py4j hangs up after a
`KeyboardInterrupt`, but after nothing else: the next call of that thread would wait until the first is done, and take
its answer for its own. And in either case the job would go on writing, while its files are thrown away.

So the caller's thread only waits. When it is interrupted, yet another one cancels the jobs, and the caller goes on when
all has been put in order.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final, TypeVar, cast

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext, inheritable_thread_target
from pyspark.sql import SparkSession

T = TypeVar("T")

_AGAIN: Final = 0.2
"""So often, in seconds, jobs are cancelled."""


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
            with suppress(Py4JError, OSError):
                context.removeJobTag(tag)  # it may be a thread of Java's that others use, too
            steps.put(None)

    thread = InheritableThread(target=run, daemon=True)  # with the job group and the pool of the caller
    try:
        thread.start()
        for name in iter(steps.get, None):
            told(name)
    except BaseException:
        cancelled.set()
        helper = Thread(target=_cancel_until, args=(context, tag, lambda: not thread.is_alive()), daemon=True)
        helper.start()
        helper.join()
        raise
    thread.join()
    return outcome.result()


def at_once(spark: SparkSession, calls: Sequence[Callable[[], T]]) -> list[T]:
    """What the calls return, each of which has a thread of its own. If one fails, the others are cancelled."""
    if not isinstance(SparkContext._gateway, ClientServer):
        return [call() for call in calls]  # PYSPARK_PIN_THREAD=false: who has which tag could not be told
    context, tag = spark.sparkContext, f"zkgroups-{uuid.uuid4().hex}"

    def tagged(call: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            context.addJobTag(tag)
            return call()

        return cast(Callable[[], T], inheritable_thread_target(spark)(run))

    with ThreadPoolExecutor(len(calls)) as threads:
        begun = [threads.submit(tagged(call)) for call in calls]
        ended, going_on = wait(begun, return_when=FIRST_EXCEPTION)
        first = next((error for each in ended if (error := each.exception()) is not None), None)
        if first is not None:
            _cancel_until(context, tag, lambda: not wait(going_on, timeout=0).not_done)
            raise first
    return [each.result() for each in begun]


def _cancel_until(context: SparkContext, tag: str, over: Callable[[], bool]) -> None:
    """Again and again: a job may have begun just after the last time."""
    while not over():
        with suppress(Py4JError, OSError):
            context.cancelJobsWithTag(tag)
        time.sleep(_AGAIN)
