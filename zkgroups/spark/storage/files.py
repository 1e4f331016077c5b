"""Access from the driver to any file system that Spark supports."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from ...exceptions import InvalidOptionError
from ..errors import translated
from ..pyspark_internals import file_system, hadoop_path, read_stream


def resolve(spark: SparkSession, destination: str) -> tuple[Any, Any]:
    """Return the file system of a destination, and its qualified path."""
    if not isinstance(destination, str) or not destination:
        raise InvalidOptionError("destination", destination, "it must be the name of a folder, as text")
    with translated(f"{destination} cannot be used"):
        root = hadoop_path(spark, destination)
        files = file_system(spark, root)
        return files, files.makeQualified(root)


def data_files(files: Any, folder: Any) -> dict[str, Any]:
    """Return the status of each file in a folder that Spark would read, by name; empty if the folder is missing."""
    found = files.listStatus(folder) if files.exists(folder) else ()
    named = {str(each.getPath().getName()): each for each in found if each.isFile()}
    return {name: each for name, each in named.items() if not name.startswith(("_", "."))}


def file_lengths(files: Any, folder: Any) -> dict[str, int]:
    """Return the length of each file in a folder that Spark would read, by name."""
    return {name: int(each.getLen()) for name, each in data_files(files, folder).items()}


def read_text(spark: SparkSession, files: Any, path: Any) -> str:
    """Read a small text file."""
    stream = files.open(path)
    try:
        return read_stream(spark, stream)
    finally:
        stream.close()


def write_text(files: Any, path: Any, text: str) -> None:
    """Write a small text file; fail if it exists."""
    stream = files.create(path, False)
    try:
        stream.write(bytearray(text, "utf-8"))
    finally:
        stream.close()
