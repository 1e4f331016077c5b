"""The operations of a file system that folders of files need. Paths are texts, as their file system shows them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Final, Protocol

from ..exceptions import StorageError
from ..input_errors import InvalidOptionError


class Files(Protocol):
    """A file system. All methods except `translated` raise its own errors, which `errors` lists."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The errors of the file system."""

    def translated(self, failure: str) -> AbstractContextManager[None]:
        """Convert errors of the file system; `failure` begins the new message."""

    def resolve(self, destination: str) -> str:
        """Return the full path of a destination."""

    def local_path(self, path: str) -> str | None:
        """Return a path on the local disk without its scheme; None on another file system."""

    def is_folder(self, path: str) -> bool:
        """Return whether a folder exists."""

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; empty if it does not exist."""

    def lengths(self, folder: str) -> dict[str, int]:
        """Return the length of each data file in a folder, by name. Names with a `_` or `.` in front are left out."""

    def read_text(self, path: str) -> str:
        """Read a small text file."""

    def write_text(self, path: str, text: str) -> None:
        """Write a small text file; fail if it exists. Creates the folders above it."""

    def make_folder(self, path: str) -> None:
        """Create a folder, with those above it."""

    def move(self, here: str, there: str) -> None:
        """Rename a file or folder to a name that does not exist. Creates the folders above it."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""


def join(path: str, *names: str) -> str:
    """Return the path of a file in a folder."""
    return "/".join((path.rstrip("/"), *names))


def is_data_file(name: str) -> bool:
    """Return whether a file has data: readers skip other names."""
    return not name.startswith(("_", "."))


# The local disk

_FILE: Final = "file:"
_LONGEST_TEXT: Final = 2**28
"""In bytes. A list of a million files is shorter."""
_SCHEME: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]*):(//[^/]*)?")
CONFIGURATION: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS")


def may_have_hadoop_settings() -> bool:
    """Return whether a configuration of Spark may set another file system for names without a scheme."""
    return any(map(os.environ.get, CONFIGURATION))


def local_path(destination: str) -> Path | None:
    """Return the path of a destination on the local disk, with or without `file:`; None on another file system."""
    scheme = _SCHEME.match(destination)
    if scheme is None:
        return Path(destination)
    return Path(destination[scheme.end() :]) if scheme[1].lower() == "file" else None


class LocalFiles:
    """The disk of this machine. Paths begin with `file:`, as Spark shows them. `Files` describes the methods.

    Hadoop writes a checksum beside each file on a local disk, and refuses a file that does not fit its checksum. So a
    checksum is moved and deleted with its file.
    """

    errors: tuple[type[Exception], ...] = (OSError,)

    @contextmanager
    def translated(self, failure: str) -> Iterator[None]:
        try:
            yield
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{failure}: {error}") from error

    def resolve(self, destination: str) -> str:
        path = local_path(destination) if isinstance(destination, str) and destination else None
        if path is None:
            raise InvalidOptionError("destination", destination, "it must be the name of a folder on this machine")
        return f"{_FILE}{path.absolute()}"

    def local_path(self, path: str) -> str | None:
        return str(_path(path))

    def is_folder(self, path: str) -> bool:
        return _path(path).is_dir()

    def exists(self, path: str) -> bool:
        return _path(path).exists()

    def names(self, folder: str) -> list[str]:
        return [each.name for each in _path(folder).iterdir()] if self.is_folder(folder) else []

    def lengths(self, folder: str) -> dict[str, int]:
        found = _path(folder).iterdir() if self.is_folder(folder) else ()
        return {each.name: each.stat().st_size for each in found if is_data_file(each.name) and each.is_file()}

    def read_text(self, path: str) -> str:
        with _path(path).open("rb") as file:
            data = file.read(_LONGEST_TEXT + 1)
        if len(data) > _LONGEST_TEXT:
            raise OSError(errno.EFBIG, f"it is longer than {_LONGEST_TEXT >> 20} MiB", path)
        return data.decode()

    def write_text(self, path: str, text: str) -> None:
        found = _path(path)
        found.parent.mkdir(parents=True, exist_ok=True)
        if not found.exists():
            _checksum(found).unlink(missing_ok=True)
        with found.open("x", encoding="utf-8") as file:
            file.write(text)

    def make_folder(self, path: str) -> None:
        _path(path).mkdir(parents=True, exist_ok=True)

    def move(self, here: str, there: str) -> None:
        found, target = _path(here), _path(there)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise FileExistsError(f"{there} already exists")
        _checksum(target).unlink(missing_ok=True)
        found.rename(target)
        with suppress(FileNotFoundError):
            _checksum(found).rename(_checksum(target))

    def delete(self, path: str) -> None:
        if (found := _path(path)).is_dir() and not found.is_symlink():
            rmtree(found)
        else:
            found.unlink(missing_ok=True)
            _checksum(found).unlink(missing_ok=True)


def _checksum(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")


def _path(path: str) -> Path:
    return Path(path.removeprefix(_FILE))
