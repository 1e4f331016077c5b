"""An archive of the classes of Spark's Java, with which it starts in half of the time.

A dozen tests start a Spark of their own. The archive is made before the fifth test that needs Spark: see
`zkgroups/testing/class_archives.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing.class_archives import archive_options
from zkgroups.testing.java import find_java, pyspark_jars

VARIABLE = "SPARK_SUBMIT_OPTS"
"""Spark adds these options to Java's."""

_TIMEOUT = 120.0
"""In seconds, for the rehearsal. Java writes the archive while it ends, which takes longer than its start."""

_REHEARSAL = f"""
from zkgroups.spark import session

session._EXIT_TIMEOUT = {_TIMEOUT}
with session.own_session(master="local[2]") as spark:
    rows = spark.createDataFrame([(number, str(number)) for number in range(10)], "a long, b string")
    assert rows.repartition("a").sort("a").groupBy("b").count().count() == 10
"""


def use_archive() -> None:
    """Let this process, and all processes that it starts, start Spark with the archive."""
    if VARIABLE not in os.environ:
        with suppress(MissingDependencyError):
            if options := archive_options(find_java(), class_path(), _rehearse):
                os.environ[VARIABLE] = " ".join(options)


def class_path() -> list[Path]:
    """Return the class path with which Spark starts Java."""
    slf4j, core = pyspark_jars("slf4j-api", "spark-core_2.13")
    return [core.parent.parent / "conf", slf4j, core.parent / "*"]


def _rehearse(option: str) -> None:
    os.environ[VARIABLE] = ""  # if it fails, this process does not try again
    command = [sys.executable, "-c", _REHEARSAL]
    subprocess.run(command, env=os.environ | {VARIABLE: option}, capture_output=True, check=True, timeout=_TIMEOUT)
