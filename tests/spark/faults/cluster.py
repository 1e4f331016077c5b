"""A standalone Spark cluster of separate processes: a master and workers, each in a folder of its own."""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pyarrow

from tests.waiting import eventually
from zkgroups.testing.child_process import ChildProcess
from zkgroups.testing.java import find_java, pyspark_jars

from ..processes import descendants, program

JAVA = ("-Xmx96m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dspark.master.rest.enabled=false")
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of a driver whose executors are small and start quickly."""

PYTHON = "python3"
"""The name of an interpreter that has only pyarrow on the workers: see `python_with_pyarrow`."""


class Cluster:
    """A master with workers of one core. They run in separate folders, with `path` before their own PATH."""

    def __init__(self, folder: Path, stack: ExitStack, *, path: Path, workers: int = 2) -> None:
        self._folder, self._stack = folder, stack
        jars = pyspark_jars("spark-core_2.13")[0].parent
        self._command = ["env", "-u", "PYSPARK_PYTHON", "-u", "PYTHONPATH", f"PATH={path}:{os.environ['PATH']}"]
        self._command += ["SPARK_LOCAL_IP=127.0.0.1", "SPARK_SCALA_VERSION=2.13", f"SPARK_HOME={jars.parent}"]
        self._command += [str(find_java()), *JAVA, "-cp", f"{jars}/*"]
        _, self.master = self._start("master.Master", "master", r"Starting Spark master at (\S+)", "--port", "0")
        self.workers = [self._start_worker(number) for number in range(workers)]

    def _start_worker(self, number: int) -> ChildProcess:
        options = ("--memory", "1g", "--cores", "1", self.master)
        return self._start("worker.Worker", f"worker-{number}", "(Successfully registered)", *options)[0]

    def _start(self, kind: str, name: str, ready: str, *arguments: str) -> tuple[ChildProcess, str]:
        """Return the process, and the log line that shows that it is ready."""
        folder = self._folder / name
        folder.mkdir()
        log = folder / "log"
        command = [*self._command, f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", "--webui-port", "0"]
        process = self._stack.enter_context(ChildProcess([*command, *arguments], log=log, directory=folder))
        eventually(lambda: re.search(ready, log.read_text()) or not process.running)
        found = re.search(ready, log.read_text())
        assert found is not None, process.tail()
        return process, found[1]

    def worker_pids(self) -> list[int]:
        return [worker.pid for worker in self.workers]


def executors(workers: list[int]) -> list[int]:
    """Return the processes of the executors of these workers."""
    return [pid for worker in workers for pid in descendants(worker) if "CoarseGrainedExecutorBackend" in program(pid)]


def python_with_pyarrow(folder: Path) -> Path:
    """Create the interpreter of the workers: it has pyspark, which Spark adds to its path, and pyarrow."""
    (folder / "packages").mkdir(parents=True)
    (folder / "packages" / "pyarrow").symlink_to(Path(pyarrow.__file__).parent)
    python = folder / "bin" / PYTHON
    python.parent.mkdir()
    paths = f'PYTHONPATH="$PYTHONPATH:{folder}/packages"'
    python.write_text(f'#!/bin/sh\n{paths} exec "{sys._base_executable}" -S -P "$@"\n')
    python.chmod(0o755)
    return python
