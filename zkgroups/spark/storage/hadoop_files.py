"""Access from the driver to any file system that Spark supports."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ...exceptions import InvalidOptionError
from ...storage.files import is_data_file
from ..errors import translated
from ..pyspark_internals import file_system, hadoop_path, read_stream


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
