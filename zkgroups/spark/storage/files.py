"""Files wherever Spark can write, seen from the driver."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from ...exceptions import InvalidOptionError
from ..errors import translated


def java(spark: SparkSession) -> Any:
    """The JVM of a session."""
    return spark.sparkContext._jvm


def hadoop(spark: SparkSession) -> Any:
    """Hadoop's settings, including those of the session."""
    return spark._jsparkSession.sessionState().newHadoopConf()


def reached(spark: SparkSession, destination: str) -> tuple[Any, Any]:
    """The file system of a destination, and the full path in it."""
    if not isinstance(destination, str) or not destination:
        raise InvalidOptionError("destination", destination, "it must be the name of a folder, as text")
    with translated(f"{destination} cannot be used"):
        root = java(spark).org.apache.hadoop.fs.Path(destination)
        files = root.getFileSystem(hadoop(spark))
        return files, files.makeQualified(root)


def data_files(files: Any, folder: Any) -> dict[str, Any]:
    """The files in a folder that Spark reads, as Hadoop describes them, by name; empty if there is none."""
    found = files.listStatus(folder) if files.exists(folder) else ()
    named = {str(each.getPath().getName()): each for each in found if each.isFile()}
    return {name: each for name, each in named.items() if not name.startswith(("_", "."))}


def lengths(files: Any, folder: Any) -> dict[str, int]:
    """The lengths of the files in a folder that Spark reads, by name."""
    return {name: int(each.getLen()) for name, each in data_files(files, folder).items()}


def read_text(spark: SparkSession, files: Any, path: Any) -> str:
    """The text of a small file."""
    stream = files.open(path)
    try:
        return str(java(spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(files: Any, path: Any, text: str) -> None:
    """Write a small file that does not exist yet."""
    stream = files.create(path, False)
    try:
        stream.write(bytearray(text, "utf-8"))
    finally:
        stream.close()
