"""Own Spark sessions: they leave nothing behind, and are not started if that would be in vain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zkgroups.exceptions import NotSharedError
from zkgroups.spark import files as writing
from zkgroups.storage import files
from zkgroups.testing.java import find_java

from ..cli.running import run
from ..spark_archive import VARIABLE, class_path

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


@pytest.mark.soak  # starts three Sparks
@pytest.mark.spark
def test_a_session_can_be_started_again_even_after_a_failed_start() -> None:
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


@pytest.mark.soak  # starts another Spark
@pytest.mark.spark
def test_the_pandas_warning_of_pyspark_is_suppressed_but_no_other(tmp_path: Path) -> None:
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.py").write_text(PANDAS)
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ONCE], capture_output=True, text=True, timeout=230, env=env)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
    assert "FutureWarning: what pandas itself says" in done.stderr
    assert "PySpark does not yet" not in done.stderr


def test_spark_starts_java_with_the_class_path_of_the_archive_and_with_options_of_the_environment() -> None:
    """Java would ignore the archive of Spark's classes, without a word, if Spark started Java in another way."""
    jars = class_path()[-1]
    launcher = ("org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell")
    env = os.environ | {"SPARK_HOME": str(jars.parent.parent), "SPARK_SCALA_VERSION": "2.13", VARIABLE: "-Dsome=thing"}
    done = subprocess.run([find_java(), "-cp", jars, *launcher], env=env, capture_output=True, text=True, check=True)
    _, *command = done.stdout.split("\0")
    assert command[command.index("-cp") + 1] == os.pathsep.join(map(str, class_path()))
    assert "-Dsome=thing" in command


# Before Spark starts

WITHOUT_JAVA = {"JAVA_HOME": "", "PATH": "/nowhere"} | dict.fromkeys(files.CONFIGURATION, "")
NOWHERE = "spark://127.0.0.1:1,127.0.0.1:2"


def test_an_unreachable_master_is_an_error_before_spark_starts() -> None:
    ended = run("audit", "hdfs://nowhere/audit", "--show", "--master", NOWHERE, env=WITHOUT_JAVA)
    assert (ended.code, ended.out) == (7, "")
    assert f"could not reach any master of {NOWHERE}, so Spark was not started (127.0.0.1:1: " in ended.err


def test_an_unshared_folder_is_refused_before_spark_starts() -> None:
    for command in (
        ("snapshot", "/groups"),
        ("audit", "file:/audit"),
        ("migrate", "plan", "/plan", "--all", "--without-brokers"),
        ("migrate", "apply", "/plan", "-b", "127.0.0.1:1"),
    ):
        ended = run(*command, "-z", "127.0.0.1:1", "--master", NOWHERE, env=WITHOUT_JAVA)
        assert (ended.code, ended.out) == (4, ""), command
        assert f" was not written: the workers of {NOWHERE} might not see this file system" in ended.err


REMOTE = "spark://master:7077"


@pytest.mark.parametrize(
    ("destination", "settings", "variable"),
    [
        ("hdfs:///groups", {}, "HOME"),
        ("/groups", {}, "HADOOP_CONF_DIR"),
        ("/groups", {}, "SPARK_CONF_DIR"),
        ("/groups", {"spark.hadoop.fs.defaultFS": "hdfs://names"}, "HOME"),
        ("/groups", {writing.SHARED: "true"}, "HOME"),
        ("/groups", {"spark.master": "local[2]"}, "HOME"),
    ],
)
def test_a_possibly_shared_folder_is_not_refused_in_advance(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, destination: str, settings: dict[str, str], variable: str
) -> None:
    (tmp_path / "core-site.xml").write_text("<name>fs.defaultFS</name>")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("# spark.zkgroups.sharedFileSystem true")
    for name in files.CONFIGURATION:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    writing.check_shared_before_start(REMOTE, settings, destination)
    monkeypatch.delenv(variable)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))  # its configuration says nothing about file systems
    for refused in ("file:/groups", "/groups"):
        with pytest.raises(NotSharedError):
            writing.check_shared_before_start(REMOTE, {}, refused)
    (tmp_path / "conf" / "spark-defaults.conf").write_text(f"{writing.SHARED} true")
    writing.check_shared_before_start(REMOTE, {}, "file:/groups")
