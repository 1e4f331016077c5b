"""Files on the command line: their parameter types, and reading and writing them as UTF-8.

`click.File` is not used: it does not report text that is not UTF-8.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from .messages import printable

_LONGEST: Final = 2**28
"""In bytes: some million offsets. A device never ends."""


class FilePath(click.Path):
    """A path that is not empty. click takes an empty path, e.g. from an unset variable, for the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as click does, after the check."""
        return super().convert(_not_empty(self, value, param, ctx), param, ctx)


class FolderUri(click.types.StringParamType):
    """A folder on any file system of Spark, with a name that is not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as click does, after the check."""
        return super().convert(_not_empty(self, value, param, ctx), param, ctx)


def _not_empty(kind: FilePath | FolderUri, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if value == "":
        kind.fail("the name is empty", param, ctx)
    if "\0" in str(value):
        kind.fail("the name has a null character", param, ctx)
    return value


def read_text(file: Path) -> str:
    """Read a whole file, or stdin if its name is `-`, as UTF-8."""
    try:
        return _read(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 at byte {error.start}"
        raise click.UsageError(f"{source_name(file)} cannot be read: {reason}", click.get_current_context()) from error


def source_name(file: Path) -> str:
    """Return the name of a file for messages."""
    return "stdin" if str(file) == "-" else str(file)


def _read(file: Path) -> bytes:
    if str(file) == "-":
        found = b"" if sys.stdin is None else sys.stdin.buffer.read(_LONGEST + 1)  # the shell may have closed stdin
    else:
        with file.open("rb") as opened:
            found = opened.read(_LONGEST + 1)
    if len(found) > _LONGEST:
        raise OSError(errno.EFBIG, f"it is longer than {_LONGEST >> 20} MiB: split it")
    return found


def write_lines(lines: Iterable[str]) -> None:
    """Write the lines of a file to stdout, as UTF-8. Only on a terminal, invisible characters are escaped."""
    stream = sys.stdout
    for line in lines:
        if stream is None or stream.isatty():
            click.echo(printable(line))
        else:
            stream.buffer.write(f"{line}\n".encode())
    if stream is not None:
        stream.flush()
