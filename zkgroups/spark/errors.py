"""Convert Spark's errors to zkgroups errors, with the cause chained.

A task or a planning step fails in another process, so the driver receives only text. The last line of the Python
traceback in it holds the class name and the message of the original zkgroups error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from .. import exceptions
from .._version import VERSION
from ..exceptions import (
    DamagedFileError,
    MissingDependencyError,
    SparkJobError,
    SparkStoppedError,
    ZkgroupsException,
)

_ZKGROUPS_ERROR: Final = re.compile(r"^zkgroups\.(?:exceptions|input_errors)\.(\w+): (.*)$", re.MULTILINE)
_DAMAGED: Final = re.compile(r"ChecksumException|could not verify page integrity|is not a Parquet file")
_STOPPED: Final = re.compile(
    "stopped SparkContext|SparkContext was shut down|Master removed our application|All masters are unresponsive"
)
_WRONG_PYTHON: Final = re.compile(
    r"(ModuleNotFoundError: No module named .*)|(Cannot run program \".*)|(Python in worker has different version.*)"
)
_CAUSE: Final = "Caused by: "
_LAST_OF_TRACEBACK: Final = re.compile(
    r"^(?:  File .*|    .*)\n([A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE
)


@contextmanager
def translated(failure: str) -> Iterator[None]:
    """Convert errors of Spark, py4j and the file system; `failure` begins the new message."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        raise _zkgroups_error(failure, str(error)) from error


def _zkgroups_error(failure: str, text: str) -> ZkgroupsException:
    name, message = next(reversed(_ZKGROUPS_ERROR.findall(text)), ("", ""))  # the causes of an error come before it
    kind = getattr(exceptions, name, None)
    if not (isinstance(kind, type) and issubclass(kind, ZkgroupsException)):
        if _DAMAGED.search(text):
            return DamagedFileError(f"{failure} because a file is damaged: {_reason(text)}; restore it from a backup")
        if wrong := _WRONG_PYTHON.search(text):
            return MissingDependencyError(f"{failure}: {wrong[0].strip()}; {_PYTHON_CURE}")
        if _STOPPED.search(text):
            return SparkStoppedError(f"{failure}: {_reason(text)}; {_STOPPED_CURE}")
        return SparkJobError(f"{failure}: {_reason(text)}")
    if issubclass(kind, DamagedFileError):
        message = f"{failure}: {message}"
    return kind.__new__(kind, message)  # only the message survives, not the other fields


_PYTHON_CURE: Final = (
    "each worker needs Python {}.{} with zkgroups {} and the same extras as here "
    "(from the checkout: pip install '.[spark]'); set PYSPARK_PYTHON or spark.pyspark.python to that Python. To "
    "workers with pyarrow, Spark can ship the file that `zkgroups spark-package` writes"
).format(*sys.version_info[:2], VERSION)
_STOPPED_CURE: Final = (
    "if this program did not stop Spark, the cluster did, for example because no executor could start: see the logs of "
    "the workers. A worker started without sbin/start-worker.sh needs the variable SPARK_SCALA_VERSION"
)


def _reason(text: str) -> str:
    """Return the last line of a Python traceback, or else the full message of the root cause in Java."""
    if python := _LAST_OF_TRACEBACK.findall(text):
        return str(python[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    shown = [line.removeprefix(_CAUSE) for line in lines if not line.startswith("An error occurred")] or [text]
    first = next((line.removeprefix(_CAUSE) for line in reversed(lines) if line.startswith(_CAUSE)), shown[0])
    message = first.partition(": ")[2] or first
    return next(line for line in shown if message in line).lstrip(": ")[:500]
