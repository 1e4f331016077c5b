"""Files and folders on any file system, their lists, and names made of a time."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from typing import Any, Final, Protocol

from ..exceptions import StorageError
from ..input_errors import InvalidOptionError

# The operations of a file system that folders of files need. Paths are texts, as their file system shows them.


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

    def readable(self, path: str) -> AbstractContextManager[str]:
        """Yield the path of a file on this machine: the file itself, or a copy that exists until the block ends."""

    def writable(self, path: str) -> AbstractContextManager[str]:
        """Yield the path on this machine to write a new file to. At the end of the block it has its own path."""

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
_INCLUDES: Final = ("xi:include", "HADOOP_CONF_DIR=", "YARN_CONF_DIR=", "--properties-file")
"""Text with which a configuration names other files."""


def configured(*settings: str) -> str | None:
    """Return a file or variable of Spark's configuration that has one of these settings, or may have; None if none."""
    words = (*settings, *_INCLUDES)
    if any(word in os.environ.get("PYSPARK_SUBMIT_ARGS", "") for word in words):
        return "PYSPARK_SUBMIT_ARGS"
    folders = {name: Path(os.environ[name]) for name in CONFIGURATION[:3] if os.environ.get(name)}
    if "SPARK_CONF_DIR" not in folders and (home := os.environ.get("SPARK_HOME")):
        folders["SPARK_HOME"] = Path(home, "conf")
    for name, folder in folders.items():
        try:
            for file in sorted(folder.iterdir()) if folder.exists() else ():
                if file.suffix in {".xml", ".conf", ".sh"}:
                    lines = file.read_text(errors="replace").splitlines()
                    if any(word in line for line in lines if not line.lstrip().startswith("#") for word in words):
                        return str(file)
        except OSError:  # it may have them
            return name
    return None


def other_file_system() -> str | None:
    """Return the file or variable of Spark's configuration that may set a file system for names without a scheme."""
    return configured("fs.default")


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

    def readable(self, path: str) -> AbstractContextManager[str]:
        return nullcontext(str(_path(path)))

    writable = readable

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


# The list of files in a folder, by which readers detect missing, truncated and added files.


_MAX_SHOWN: Final = 5
"""The number of files to name in an error."""


@dataclass(frozen=True, slots=True)
class FileList:
    """The number of rows in a folder, and its files with their lengths."""

    rows: int
    files: Mapping[str, int]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> FileList:
        """Decode a list. Raise ValueError if the text is not a list of files."""
        try:
            fields: dict[str, Any] = json.loads(text)
            return cls(int(fields["rows"]), {str(name): int(length) for name, length in fields["files"].items()})
        except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a list of files: {error!r}") from error


def missing_files(found: Mapping[str, int], expected: Mapping[str, int], of: str = "") -> list[str]:
    """Describe the expected files that are missing or have another length."""
    missing = [f"{file}{of} is missing" for file in expected if file not in found]
    wrong = [
        f"{file}{of} has {found[file]} bytes, not {length}"
        for file, length in expected.items()
        if found.get(file, length) != length
    ]
    return missing + wrong


def added_files(found: Mapping[str, int], expected: Mapping[str, int]) -> list[str]:
    """Describe the files that are not expected."""
    return [f"{file} is not in the list of files" for file in found if file not in expected]


def join_problems(problems: list[str]) -> str:
    """Join descriptions for an error message, and name only the first few files."""
    more = len(problems) - _MAX_SHOWN
    return "; ".join(problems[:_MAX_SHOWN] + [f"and {more} more"] * (more > 0))


# Names made of a time: UTC with milliseconds, sortable, without colons, and never mistaken for a number.


TIMESTAMP: Final = r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z"
"""The regular expression for such a name."""

_FORMAT: Final = "%Y%m%dT%H%M%S.%fZ"


def timestamp_text(at: datetime) -> str:
    """Format a time.

    >>> timestamp_text(datetime(2026, 1, 31, 12, 0, 7, 5000, UTC))
    '20260131T120007.005Z'
    >>> timestamp_text(datetime(206, 1, 31, tzinfo=UTC))
    '02060131T000000.000Z'
    """
    utc = at.astimezone(UTC)
    return f"{utc.year:04d}{utc:%m%dT%H%M%S}.{utc.microsecond // 1000:03d}Z"  # %Y does not pad with zeros


def parse_timestamp(text: str) -> datetime:
    """Parse a formatted time. Raise ValueError if the text is invalid.

    >>> parse_timestamp("20260131T120007.005Z").isoformat()
    '2026-01-31T12:00:07.005000+00:00'
    """
    return datetime.strptime(text, _FORMAT).replace(tzinfo=UTC)
