"""A Spark of our own, for a command that has none: started for one purpose, with little to say, and soon gone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from ..exceptions import SparkJobError

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
}


@contextmanager
def own_session(
    settings: Mapping[str, str] | None = None, *, master: str = LOCAL, verbose: bool = False
) -> Iterator[SparkSession]:
    """Start Spark, and end it when all is done. What it logs is thrown away, unless it is to be `verbose`."""
    wanted = {"spark.master": master, **_SETTINGS, **(_LOCAL_SETTINGS if master.startswith("local") else {})}
    conf = SparkConf().setAll(list({**wanted, **(settings or {})}.items()))
    with ExitStack() as stack:
        log = None if verbose else stack.enter_context(tempfile.TemporaryFile())
        context = _started(conf, log)
        stack.callback(context.stop)
        yield SparkSession(context)


def _started(conf: SparkConf, log: Any) -> SparkContext:
    try:
        gateway = launch_gateway(conf, {"stderr": log})  # type: ignore[no-untyped-call]
        return SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, Py4JError) as error:
        raise SparkJobError(f"Spark did not start: {_last_words(log) or error}") from error


def _last_words(log: Any) -> str:
    """What Java said at the end, where it said anything: most often that there is none, or an old one."""
    if log is None:
        return ""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    said = [line for line in lines if line and not line.startswith("at ")]
    return said[-1] if said else ""


def share_done(spark: SparkSession) -> float:
    """How much of what runs at the moment is done, from 0 to 1, as far as Spark knows: by whole tasks."""
    tracker = spark.sparkContext.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
    tasks = sum(stage.numTasks for stage in stages)
    return sum(stage.numCompletedTasks for stage in stages) / tasks if tasks else 0.0
