"""A Spark of our own: it comes and goes, and leaves neither a process nor a signal handler behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TWICE = """
import os, signal
from pyspark import SparkContext
from pyspark.sql import SparkSession
from zkgroups.exceptions import SparkJobError
from zkgroups.spark.session import own_session
from tests.spark.processes import descendants

def handler(*_): pass
signal.signal(signal.SIGINT, handler)

for settings in ({}, {"spark.task.cpus": "x"}, {"spark.app.name": "again"}):
    try:
        with own_session(settings, master="local[1]") as spark:
            assert signal.getsignal(signal.SIGINT) is handler
            print(spark.sparkContext.appName, spark.range(3).count(), bool(descendants(os.getpid())))
    except SparkJobError as error:
        print(error)
    assert signal.getsignal(signal.SIGINT) is handler
    assert descendants(os.getpid()) == []
    assert SparkSession.getActiveSession() is SparkContext._active_spark_context is None
"""


@pytest.mark.soak  # three Sparks of its own
@pytest.mark.spark
def test_it_can_be_started_again_in_one_process_also_after_it_did_not_start() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", TWICE], capture_output=True, text=True, timeout=230)
    first, wrong, second = done.stdout.splitlines()
    assert (first, second, done.returncode) == ("zkgroups 3 True", "again 3 True", 0), done.stderr
    assert wrong.startswith("Spark did not start: ")
    assert "spark.task.cpus" in wrong


PANDAS = """
import warnings
__version__ = "3.1.1"
warnings.warn("what pandas itself says", FutureWarning)
"""

ONCE = """
from zkgroups.spark.session import own_session
with own_session(master="local[1]") as spark:
    print(spark.range(3).count())
"""


@pytest.mark.spark
def test_that_pyspark_does_not_support_an_unused_pandas_is_not_said_but_other_warnings_are(tmp_path: Path) -> None:
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.py").write_text(PANDAS)
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ONCE], capture_output=True, text=True, timeout=230, env=env)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
    assert "FutureWarning: what pandas itself says" in done.stderr
    assert "PySpark does not yet" not in done.stderr
