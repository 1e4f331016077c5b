"""Files and folders on any Hadoop file system, and Parquet that the workers write and the driver checks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from ..exceptions import InvalidOptionError, NotSharedError
from ..storage.atomic_folder import write_list
from ..storage.files import configured, is_data_file, local_path
from .errors import translated
from .pyspark_internals import file_system, hadoop_path, read_stream, row_counter
from .session import run_in_parallel

# Access from the driver to any file system that Spark supports.


class HadoopFiles:
    """The file system with which Spark reads and writes a destination. `Files` describes the methods."""

    errors: tuple[type[Exception], ...] = (Py4JError, OSError)

    def __init__(self, spark: SparkSession, destination: str) -> None:
        if not isinstance(destination, str) or not destination:
            raise InvalidOptionError("destination", destination, "it must be the name of a folder, as text")
        self._spark = spark
        with translated(f"{destination} cannot be used"):
            self._files = file_system(spark, self._path(destination))

    def _path(self, path: str) -> Any:
        return hadoop_path(self._spark, path)

    def translated(self, failure: str) -> AbstractContextManager[None]:
        return translated(failure)

    def resolve(self, destination: str) -> str:
        with translated(f"{destination} cannot be used"):
            return str(self._files.makeQualified(self._path(destination)).toString())

    def local_path(self, path: str) -> str | None:
        uri = self._path(path).toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    def is_folder(self, path: str) -> bool:
        return bool(self._files.isDirectory(self._path(path)))

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        return [str(each.getPath().getName()) for each in self._list(folder)]

    def data_files(self, folder: str) -> dict[str, Any]:
        """Return the status of each file in a folder that Spark would read, by name; empty if the folder is missing."""
        named = {str(each.getPath().getName()): each for each in self._list(folder) if each.isFile()}
        return {name: each for name, each in named.items() if is_data_file(name)}

    def lengths(self, folder: str) -> dict[str, int]:
        return {name: int(each.getLen()) for name, each in self.data_files(folder).items()}

    def _list(self, folder: str) -> Any:
        path = self._path(folder)
        return self._files.listStatus(path) if self._files.exists(path) else ()

    def read_text(self, path: str) -> str:
        stream = self._files.open(self._path(path))
        try:
            return read_stream(self._spark, stream)
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        stream = self._files.create(self._path(path), False)
        try:
            stream.write(bytearray(text, "utf-8"))
        finally:
            stream.close()

    @contextmanager
    def readable(self, path: str) -> Iterator[str]:
        if (here := self.local_path(path)) is not None:
            yield here
            return
        with tempfile.TemporaryDirectory(prefix="zkgroups-") as folder:
            here = f"{folder}/file"
            with translated(f"{path} cannot be read"):
                self._files.copyToLocalFile(False, self._path(path), self._path(f"file:{here}"), True)
            yield here

    @contextmanager
    def writable(self, path: str) -> Iterator[str]:
        if (here := self.local_path(path)) is not None:
            yield here
            return
        with tempfile.TemporaryDirectory(prefix="zkgroups-") as folder:
            here = f"{folder}/file"
            yield here
            with translated(f"{path} could not be written"):
                self._files.copyFromLocalFile(False, False, self._path(f"file:{here}"), self._path(path))

    def make_folder(self, path: str) -> None:
        if not self._files.mkdirs(self._path(path)):
            raise OSError("the folder could not be created")

    def move(self, here: str, there: str) -> None:
        target = self._path(there)
        self._files.mkdirs(target.getParent())
        if not self._files.rename(self._path(here), target):
            raise OSError(f"{here} was not renamed to {there}")

    def delete(self, path: str) -> None:
        self._files.delete(self._path(path), True)


# Write Parquet on the workers, and check on the driver that all rows can be read.
#
# Spark reports success when its tasks succeed. But if a worker has its own file system, the driver cannot see its
# files. So each write counts its rows. The driver adds up the row counts in the footers of the files, and compares
# the sums. A snapshot, a checkpoint or a plan is marked as written only after this check.
#
# A folder on the driver's local disk (`file:`) is refused in advance, unless Spark runs on this machine only, or a
# setting of the session declares that all machines have mounted that folder:
#
#     spark.conf.set("spark.zkgroups.sharedFileSystem", "true")


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
    if local_path(destination) is None or _is_shared(master, settings.get(SHARED)):
        return
    has_scheme = destination.lower().startswith("file:")
    words = () if has_scheme else ("fs.default",)
    if not any(word in name for name in settings for word in words) and configured(SHARED, *words) is None:
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
