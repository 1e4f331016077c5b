"""A zip file with zkgroups and the packages that it needs, for workers that do not have them.

    spark.sparkContext.addPyFile(str(write_worker_package("zkgroups.zip")))

Spark copies the file to each machine, and all its Python processes import from it: those of the tasks, and those on the
driver that plan a read. This works with every cluster manager. A packed environment (`spark.archives`) would not: the
processes on the driver do not see it.

The file does not contain pyarrow, which is large, and which Spark itself needs on each worker for Python data sources.
Python cannot import a compiled module from a zip file. So the file has such a module as data, and a module of the same
name which loads a temporary copy. Compiled modules and bytecode are those of the interpreter that runs here: Spark
requires the same version of Python on the workers anyway.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Final

from .._version import VERSION
from ..input_errors import InvalidOptionError

_SUFFIX: Final = ".zip"
"""Spark puts only files with this suffix, `.egg` and `.jar` on the path of the workers."""

_REQUIRED: Final = ("kazoo", "google-re2")
_IF_INSTALLED: Final = ("kafka-python", "pure-sasl")

_DATE: Final = (1980, 1, 1, 0, 0, 0)
"""The time of all files, so that one installation always writes the same archive."""

_UNCHECKED: Final = (1).to_bytes(4, "little")
"""The flags of bytecode that is not compared with its source (PEP 552)."""

_LOADER: Final = '''"""Load the compiled module {data}, which Python cannot import from a zip file."""

import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from os.path import dirname, join

with tempfile.TemporaryDirectory() as folder:
    copy = join(folder, {data!r})
    with open(copy, "wb") as file:
        file.write(__loader__.get_data(join(dirname(__file__), {data!r})))
    spec = spec_from_file_location(__name__, copy)
    sys.modules[__name__] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[__name__])
'''


@dataclass(frozen=True, slots=True)
class WorkerPackage:
    """A written file, and the packages in it with their versions."""

    file: Path
    packages: dict[str, str]


def write_worker_package(file: Path | str) -> WorkerPackage:
    """Write a new zip file with zkgroups and the packages that its tasks need, for `spark.submit.pyFiles`.

    Raise FileExistsError if the file exists. After an error, it does not exist.
    """
    file = Path(file)
    if file.suffix != _SUFFIX:
        raise InvalidOptionError("file", str(file), f"its name must end with {_SUFFIX}, or Spark would not import it")
    optional = [name for name in _IF_INSTALLED if _is_installed(name)]
    packages = {"zkgroups": VERSION} | {name: distribution(name).version for name in (*_REQUIRED, *optional)}
    with file.open("xb") as target:
        try:
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, data in _contents([*_REQUIRED, *optional]):
                    archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED)
            target.flush()
            os.fsync(target.fileno())
        except BaseException:
            file.unlink(missing_ok=True)
            raise
    return WorkerPackage(file, packages)


def _is_installed(name: str) -> bool:
    with suppress(PackageNotFoundError):
        distribution(name)
        return True
    return False


def _contents(names: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the bytes of all files in the archive."""
    for name, data in chain(_own_files(), _files_of(names)):
        yield name, data
        if name.endswith(".py"):
            yield f"{name}c", _bytecode(name, data)
        elif (suffix := next(filter(name.endswith, EXTENSION_SUFFIXES), None)) is not None:
            yield f"{name.removesuffix(suffix)}.py", _LOADER.format(data=PurePosixPath(name).name).encode()


def _own_files() -> Iterator[tuple[str, bytes]]:
    folder = Path(__file__).parent.parent
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder.parent).as_posix(), path.read_bytes()


def _files_of(names: list[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        for file in sorted(distribution(name).files or ()):
            if not {"..", "__pycache__"} & set(file.parts):
                yield file.as_posix(), Path(str(file.locate())).read_bytes()


def _bytecode(name: str, source: bytes) -> bytes:
    """Compile a module: without bytecode, each process would spend a second on all of them."""
    code = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
    return importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source) + code
