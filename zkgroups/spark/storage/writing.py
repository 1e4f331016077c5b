"""Write Parquet on the workers, and check on the driver that all rows can be read.

Spark reports success when its tasks succeed. But if a worker has its own file system, the driver cannot see its files.
So each write counts its rows. The driver adds up the row counts in the footers of the files, and compares the sums.
A snapshot, a checkpoint or a plan is marked as written only after this check.

A folder on the driver's local disk (`file:`) is refused in advance, unless Spark runs on this machine only, or a
setting of the session declares that all machines have mounted that folder:

    spark.conf.set("spark.zkgroups.sharedFileSystem", "true")
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from ...exceptions import NotSharedError
from ...storage.atomic_folder import write_list
from ...storage.files import local_path, may_have_hadoop_settings
from ..pyspark_internals import row_counter
from ..spark_thread import run_in_parallel
from .hadoop_files import HadoopFiles

SHARED: Final = "spark.zkgroups.sharedFileSystem"
"""The setting that declares the destination to be mounted on all machines."""

_UNMARKED: Final = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
_FILES_OF_A_THREAD: Final = 8
_THREADS: Final = 16
"""An object store needs about 0.1 s to read a footer, and there may be thousands."""


def check_shared(spark: SparkSession, destination: str) -> None:
    """Raise NotSharedError for a destination on the local disk if workers may run on other machines."""
    master = str(spark.sparkContext.master)
    if _is_shared(master, spark.conf.get(SHARED, "false")):
        return
    files = HadoopFiles(spark, destination)
    root = files.resolve(destination)
    if files.local_path(root) is not None:
        raise _not_shared(root, master)


def check_shared_before_start(master: str, settings: Mapping[str, str], destination: str) -> None:
    """Raise the error of `check_shared` before Spark starts, if the outcome is already known.

    The outcome is unknown if a cluster configuration may set another default file system, or declare it as shared.
    """
    master = settings.get("spark.master", master)
    configured = may_have_hadoop_settings() or any("fs.default" in name for name in settings)
    if local_path(destination) is not None and not configured and not _is_shared(master, settings.get(SHARED)):
        raise _not_shared(destination, master)


def _is_shared(master: str, setting: str | None) -> bool:
    return master.startswith("local") or (setting or "").lower() == "true"


def _not_shared(destination: str, master: str) -> NotSharedError:
    return NotSharedError(
        destination,
        f"the workers of {master} might not see this file system",
        f"if all machines have mounted it, use --shared-file-system or the setting {SHARED}=true",
    )


def write_and_list(rows: DataFrame, path: str) -> None:
    """Write rows to a new folder, with the list of files that `AtomicFolder.publish` needs.

    Raise NotSharedError if the driver does not find all rows.
    """
    counted = Observation()
    write_plain(rows.observe(counted, f.count(f.lit(1)).alias("rows")), path)
    found = int(counted.get["rows"] or 0)
    check_row_count(rows.sparkSession, path, found)
    write_list(HadoopFiles(rows.sparkSession, path), path, found)


def write_plain(rows: DataFrame, path: str, **options: str) -> None:
    """Write rows to a new folder without a `_SUCCESS`. The caller checks their number."""
    rows.write.options(**{_UNMARKED: "false", **options}).parquet(path)


def check_row_count(spark: SparkSession, path: str, written: int) -> None:
    """Raise NotSharedError unless the driver finds that many rows. Spark writes a file even for no rows."""
    files, seen = rows_in(spark, path)
    if not files or seen != written:
        raise NotSharedError(
            path,
            f"the workers wrote {written} rows, but the driver finds {seen} rows in {files} files: the workers do "
            "not share this file system",
        )


def rows_in(spark: SparkSession, path: str) -> tuple[int, int]:
    """Return how many files a folder has, and how many rows their footers count. Threads read them."""
    found, count = list(HadoopFiles(spark, path).data_files(path).values()), row_counter(spark)

    def rows(files: list[Any]) -> int:
        return sum(map(count, files))

    shares = min(_THREADS, 1 + len(found) // _FILES_OF_A_THREAD)
    if shares == 1:
        return len(found), rows(found)
    return len(found), sum(run_in_parallel(spark, [partial(rows, found[number::shares]) for number in range(shares)]))
