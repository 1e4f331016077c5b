"""The one seam where Spark's errors become ours, with the cause chained.

What goes wrong in a task or while planning happens in another process: all that comes back is text, in which the last
line of a Python traceback has the name of our error and what it said.
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

_OURS: Final = re.compile(r"^zkgroups\.exceptions\.(\w+): (.*)$", re.MULTILINE)
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
def translated(what: str) -> Iterator[None]:
    """Turn errors that pass through into ours; `what` says what did not work."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        raise _ours(what, str(error)) from error


def _ours(what: str, text: str) -> ZkgroupsException:
    name, words = next(reversed(_OURS.findall(text)), ("", ""))  # the causes of an error come before it
    kind = getattr(exceptions, name, None)
    if not (isinstance(kind, type) and issubclass(kind, ZkgroupsException)):
        if _DAMAGED.search(text):
            return DamagedFileError(f"{what}, because a file is damaged: {_reason(text)}")
        if wrong := _WRONG_PYTHON.search(text):
            return MissingDependencyError(f"{what}: {wrong[0].strip()}; {_PYTHON_CURE}")
        if _STOPPED.search(text):
            return SparkStoppedError(f"{what}: {_reason(text)}; {_STOPPED_CURE}")
        return SparkJobError(f"{what}: {_reason(text)}")
    return kind.__new__(kind, words)  # of what it carried only its words are left


_PYTHON_CURE: Final = (
    "each worker needs a Python {}.{} in which zkgroups {} is installed with the extras that this one has "
    "(pip install 'zkgroups[spark]=={}'); PYSPARK_PYTHON or spark.pyspark.python names that Python"
).format(*sys.version_info[:2], VERSION, VERSION)
_STOPPED_CURE: Final = (
    "if this program did not stop Spark, its cluster did, for example because no executor could be started; see the "
    "logs of the workers. A worker that was not started by sbin/start-worker.sh needs the variable "
    "SPARK_SCALA_VERSION"
)


def _reason(text: str) -> str:
    """What a person needs of it: the last line of a Python traceback, else what Java met first, as told in full."""
    if python := _LAST_OF_TRACEBACK.findall(text):
        return str(python[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    shown = [line.removeprefix(_CAUSE) for line in lines if not line.startswith("An error occurred")] or [text]
    first = next((line.removeprefix(_CAUSE) for line in reversed(lines) if line.startswith(_CAUSE)), shown[0])
    message = first.partition(": ")[2] or first
    return next(line for line in shown if message in line).lstrip(": ")[:500]
