"""A Spark of our own, for a command that has none: started for one purpose, with little to say, and soon gone."""

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
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from ..exceptions import MissingDependencyError, NotConnectedError, SparkJobError
from .errors import translated

LOCAL: Final = "local[*,4]"
"""All cores, and a task may fail three times: a worker that is killed is not the end of everything."""

_SETTINGS: Final = {
    "spark.app.name": "zkgroups",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Who lives for seconds only does not live to see its code optimised: a third of the time to start.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Else what is counted is shared out 200 times, and then brought together again, however little it is.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    "spark.sql.adaptive.enabled": "false",
}

_WITHOUT_JAVA: Final = re.compile("JAVA_HOME|bin/java:|UnsupportedClassVersionError")
_NO_ERROR: Final = re.compile(r"(\S+ \S+ )?(WARN|INFO)|NOTE|Picked up|Using Spark|Setting default|To adjust logging")

_STANDALONE: Final = "spark://"
_ADDRESS: Final = re.compile(r"([^,/]+):([0-9]+)(?:,|$)")
_TIMEOUT: Final = 10.0
"""In seconds, for a connection to a master."""

_PATIENCE: Final = 30.0
"""In seconds: a cluster is told that we leave."""


@contextmanager
def own_session(
    settings: Mapping[str, str] | None = None, *, master: str = LOCAL, verbose: bool = False
) -> Iterator[SparkSession]:
    """Start Spark, and end it when all is done. What it logs is thrown away, unless it is to be `verbose`."""
    _check_reachable((settings or {}).get("spark.master", master))
    wanted = {"spark.master": master, **_SETTINGS, **(_LOCAL_SETTINGS if master.startswith("local") else {})}
    conf = SparkConf().setAll(list({**wanted, **(settings or {})}.items()))
    with ExitStack() as stack:
        log = sys.stderr if verbose else stack.enter_context(tempfile.TemporaryFile())
        with translated("Spark did not start"):
            session = SparkSession(_started(conf, log, stack))
        if not verbose:  # a Java that is killed would be told of in a traceback
            session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
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
        raise NotConnectedError(f"Spark was not started: no master of {master} can be reached ({'; '.join(problems)})")


def _started(conf: SparkConf, log: Any, stack: ExitStack) -> SparkContext:
    """Whatever is raised meanwhile, the stack ends what was begun."""
    ctrl_c = signal.getsignal(signal.SIGINT)
    try:
        gateway = _java(conf, log)
        stack.callback(_end, gateway)
        with _silent_on_pandas():
            return SparkContext(conf=conf, gateway=gateway)
    finally:
        # Spark's own handler calls Java in the midst of whatever call is under way.
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
        return launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    except PySparkException as error:
        said = "" if log is sys.stderr else _first_words(log)
        if _WITHOUT_JAVA.search(said):
            raise MissingDependencyError(f"Spark needs Java 17 or newer: {said}") from error
        raise SparkJobError(f"Spark did not start: {said or error}") from error


def _first_words(log: Any) -> str:
    """What was said of the first thing that went wrong."""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    return next((line for line in lines if line and not _NO_ERROR.match(line)), "")


def _end(gateway: Any) -> None:
    """Java ends, with its workers and temporary files, when nobody can speak to it any more. No call to it is needed,
    which might not be possible now; and this process is as it was before."""
    if (context := SparkContext._active_spark_context) is not None:
        context._jsc = None
        context.stop()
    SparkContext._gateway = SparkContext._jvm = SparkSession._instantiatedSession = None
    if (java := gateway.proc) is None:
        return  # started by spark-submit, which ends it
    java.stdin.close()
    try:
        java.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


def share_done(spark: SparkSession) -> float:
    """How much of what runs at the moment is done, from 0 to 1, as far as Spark knows: by whole tasks.

    Of each job its last stage counts: what comes before only brings rows together.
    """
    stages = []
    with suppress(Py4JError, OSError):  # it is asked for until the end, and may not be there any more
        tracker = spark.sparkContext.statusTracker()
        jobs = [info for job in tracker.getActiveJobsIds() if (info := tracker.getJobInfo(job)) is not None]
        last = [max(info.stageIds) for info in jobs if info.stageIds]
        stages = [each for stage in last if (each := tracker.getStageInfo(stage)) is not None]
    tasks = sum(stage.numTasks for stage in stages)
    return sum(stage.numCompletedTasks for stage in stages) / tasks if tasks else 0.0
