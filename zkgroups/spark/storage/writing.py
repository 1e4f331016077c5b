"""Write Parquet on the workers, and check on the driver that a reader finds all rows.

Spark reports success when its tasks do. If a worker has a file system of its own, its files stay there, and the driver
does not find them. So each write counts its rows, and the driver then adds up the row counts in the footers of the
files. Only footers are read. Only after that is a snapshot, a checkpoint or a plan marked as written.

A folder on the driver's own disk (`file:`) is refused in advance, unless Spark runs on this machine alone, or a setting
of the session says that all its machines have that folder mounted:

    spark.conf.set("spark.zkgroups.sharedFileSystem", "true")
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from ...exceptions import NotSharedError
from ..spark_thread import at_once
from .files import data_files, hadoop, java, reached

SHARED: Final = "spark.zkgroups.sharedFileSystem"
"""The setting of a session whose machines have all mounted the destination."""

ROWS: Final = "rows"
"""The key under which `write` returns the number of rows."""

_UNMARKED: Final = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
_FILES_OF_A_THREAD: Final = 8
_THREADS: Final = 16
"""Many, because an object store needs about 0.1 s for a footer, and there may be thousands."""


def check_shared(spark: SparkSession, destination: str) -> None:
    """Refuse a destination on this machine's disk if workers may run on other machines."""
    master = str(spark.sparkContext.master)
    if _is_shared(master, spark.conf.get(SHARED, "false")):
        return
    _files, root = reached(spark, destination)
    if root.toUri().getScheme() == "file":
        raise _not_shared(str(root.toString()), master)


def check_shared_before_start(master: str, settings: Mapping[str, str], destination: str) -> None:
    """Refuse what `check_shared` will refuse, as far as that is known before Spark starts.

    Where the configuration of a cluster may name another file system, or say that it is shared, nothing is refused.
    """
    master = settings.get("spark.master", master)
    configured = any(map(os.environ.get, _CONFIGURATION)) or any("fs.default" in name for name in settings)
    scheme = _SCHEME.match(destination)
    is_local = scheme[1].lower() == "file" if scheme else True
    if is_local and not configured and not _is_shared(master, settings.get(SHARED)):
        raise _not_shared(destination, master)


_CONFIGURATION: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS")
_SCHEME: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]*):")


def _is_shared(master: str, setting: str | None) -> bool:
    return master.startswith("local") or (setting or "").lower() == "true"


def _not_shared(destination: str, master: str) -> NotSharedError:
    return NotSharedError(
        destination,
        f"the workers of {master} may have a file system of their own",
        f"for such a mount, give --shared-file-system, or the setting {SHARED}=true",
    )


def write(rows: DataFrame, path: str, *counts: Column, without: str = "") -> dict[str, Any]:
    """Write rows to a new folder without a `_SUCCESS`, and return these counts, with the number of `ROWS`.

    The column `without` is not written, but may be counted. Raise NotSharedError if the driver does not find all rows
    there.
    """
    counted = Observation()
    observed = rows.observe(counted, f.count(f.lit(1)).alias(ROWS), *counts)
    observed.drop(without).write.option(_UNMARKED, "false").parquet(path)
    found = counted.get
    check_seen(rows.sparkSession, path, int(found[ROWS] or 0))
    return found


def check_seen(spark: SparkSession, path: str, written: int) -> None:
    """Raise NotSharedError unless the driver finds so many rows; Spark writes a file even for no rows."""
    found = list(data_files(*reached(spark, path)).values())
    seen = _rows_in(spark, found)
    if not found or seen != written:
        raise NotSharedError(
            path,
            f"the workers wrote {written} rows, and the driver finds {seen} rows in {len(found)} files: workers wrote "
            "to a file system that the driver does not see",
        )


def _rows_in(spark: SparkSession, found: list[Any]) -> int:
    """The number of rows in these files, from their footers; several threads read the footers of many files."""
    parquet, conf = java(spark).org.apache.parquet.hadoop, hadoop(spark)

    def rows(some: list[Any]) -> int:
        return sum(_record_count(parquet, file, conf) for file in some)

    shares = min(_THREADS, 1 + len(found) // _FILES_OF_A_THREAD)
    if shares == 1:
        return rows(found)
    return sum(at_once(spark, [partial(rows, found[number::shares]) for number in range(shares)]))


def _record_count(parquet: Any, file: Any, conf: Any) -> int:
    reader = parquet.ParquetFileReader.open(parquet.util.HadoopInputFile.fromStatus(file, conf))
    try:
        return int(reader.getRecordCount())
    finally:
        reader.close()
