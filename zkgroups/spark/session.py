"""A short-lived Spark session for one command, with quiet defaults and a fast start and stop."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ..exceptions import MissingDependencyError, NotConnectedError, SparkJobError
from .errors import translated
from .pyspark_internals import forget_java, hide_lost_java, java_process, launch_java

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
