"""A short-lived Spark session for one command, with quiet defaults and a fast start and stop."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final, Generic, TypeVar, cast

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkConf, SparkContext, inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ..exceptions import MissingDependencyError, NotConnectedError, SparkJobError
from .errors import translated
from .pyspark_internals import forget_java, hide_lost_java, java_process, launch_java, threads_are_pinned

# Run work with Spark on a separate thread, so that a signal never interrupts a call to Java.
#
# If a signal handler raises in the middle of a call to Java, the answer stays unread. py4j closes the connection only
# for a `KeyboardInterrupt`. After any other exception the next call on that thread would receive the answer of the
# first. In both cases the job would keep writing while its files are being deleted.
#
# So the caller's thread only waits. When it is interrupted, another thread cancels the jobs, and the caller continues
# after the work has cleaned up.


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


LOCAL: Final = "local[*,4]"
"""All cores. A task may fail three times, so the job survives a killed worker."""

_SETTINGS: Final = {
    "spark.app.name": "zkgroups",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The optimizing compiler does not pay off in seconds: without it, Java starts in a third of the time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # The default of 200 shuffle partitions is too many for small aggregations.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    "spark.sql.adaptive.enabled": "false",
}

_WITHOUT_JAVA: Final = re.compile("JAVA_HOME|bin/java:|UnsupportedClassVersionError")
_NO_ERROR: Final = re.compile(r"(\S+ \S+ )?(WARN|INFO)|NOTE|Picked up|Using Spark|Setting default|To adjust logging")

_STANDALONE: Final = "spark://"
_ADDRESS: Final = re.compile(r"([^,/]+):([0-9]+)(?:,|$)")
_TIMEOUT: Final = 10.0
"""In seconds, for a connection to a master."""

_EXIT_TIMEOUT: Final = 30.0
"""In seconds, for Java to unregister from a cluster and exit."""


@contextmanager
def own_session(
    settings: Mapping[str, str] | None = None, *, master: str = LOCAL, verbose: bool = False
) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end of the block. Its log is discarded unless `verbose` is set."""
    _check_reachable((settings or {}).get("spark.master", master))
    wanted = {"spark.master": master, **_SETTINGS, **(_LOCAL_SETTINGS if master.startswith("local") else {})}
    conf = SparkConf().setAll(list({**wanted, **(settings or {})}.items()))
    with ExitStack() as stack:
        log = sys.stderr if verbose else stack.enter_context(tempfile.TemporaryFile())
        with translated("Spark did not start"):
            session = SparkSession(_started(conf, log, stack))
        if not verbose:  # no traceback if Java is killed
            hide_lost_java(session.sparkContext)
        yield session


def _check_reachable(master: str) -> None:
    """Raise NotConnectedError if no master of a Spark cluster can be reached: Spark would retry for over a minute."""
    problems: list[str] = []
    for host, port in _ADDRESS.findall(master.removeprefix(_STANDALONE)) if master.startswith(_STANDALONE) else ():
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT):
                return
        except (OSError, OverflowError) as error:
            problems.append(f"{host}:{port}: {error}")
    if problems:
        raise NotConnectedError(
            f"could not reach any master of {master}, so Spark was not started ({'; '.join(problems)})"
        )


def _started(conf: SparkConf, log: Any, stack: ExitStack) -> SparkContext:
    """Start Java and the context. If an error occurs in between, the stack stops Java."""
    ctrl_c = signal.getsignal(signal.SIGINT)
    try:
        gateway = _java(conf, log)
        stack.callback(_end, gateway)
        with _silent_on_pandas():
            return SparkContext(conf=conf, gateway=gateway)
    finally:
        # Spark's own handler would call Java in the middle of another call to Java.
        if signal.getsignal(signal.SIGINT) is not ctrl_c:
            signal.signal(signal.SIGINT, ctrl_c)


@contextmanager
def _silent_on_pandas() -> Iterator[None]:
    """Suppress a warning: the first call to Java imports `pyspark.testing`, which always warns about pandas 3."""
    unsupported = "PySpark does not yet fully support pandas"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", unsupported, FutureWarning, r"pyspark\.testing\.utils$")
        yield


def _java(conf: SparkConf, log: Any) -> Any:
    try:
        return launch_java(conf, log)
    except PySparkException as error:
        output = "" if log is sys.stderr else _first_error(log)
        if _WITHOUT_JAVA.search(output):
            raise MissingDependencyError(f"Spark needs Java 17 or newer: {output}") from error
        raise SparkJobError(f"Spark did not start: {output or error}") from error


def _first_error(log: Any) -> str:
    """Return the first line of the log that is not a note or a warning."""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    return next((line for line in lines if line and not _NO_ERROR.match(line)), "")


def _end(gateway: Any) -> None:
    """Stop Java by closing its stdin, and reset pyspark's global state.

    Java then removes its workers and temporary files. This needs no call to Java, which might not answer any more.
    """
    forget_java()
    if (java := java_process(gateway)) is None:
        return  # spark-submit started it, and stops it
    assert java.stdin is not None
    java.stdin.close()
    try:
        java.wait(_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


def share_done(spark: SparkSession) -> float:
    """Return the share of completed tasks in the last stage of each running job, from 0 to 1."""
    stages = []
    with suppress(Py4JError, OSError):  # the progress bar may ask after Spark has stopped
        tracker = spark.sparkContext.statusTracker()
        jobs = [info for job in tracker.getActiveJobsIds() if (info := tracker.getJobInfo(job)) is not None]
        last = [max(info.stageIds) for info in jobs if info.stageIds]
        stages = [each for stage in last if (each := tracker.getStageInfo(stage)) is not None]
    tasks = sum(stage.numTasks for stage in stages)
    return sum(stage.numCompletedTasks for stage in stages) / tasks if tasks else 0.0
