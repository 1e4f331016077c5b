"""Files that people name, read with a sentence for whatever is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from .escape import printable


class FilePath(click.Path):
    """A path that is not empty: `"$NOT_SET"` would otherwise be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does."""
        return super().convert(_not_empty(self, value, param, ctx), param, ctx)


class Place(click.types.StringParamType):
    """A folder, or whatever else Spark can read and write, by a name that is not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does."""
        return super().convert(_not_empty(self, value, param, ctx), param, ctx)


def _not_empty(kind: FilePath | Place, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if value == "":
        kind.fail("the name is empty", param, ctx)
    return value


def read_text(file: Path) -> str:
    """All of a file, or of stdin where its name is `-`: UTF-8, whatever the terminal speaks."""
    try:
        return _read(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"is no UTF-8 at byte {error.start}"
        raise click.UsageError(f"{source_name(file)}: {reason}", click.get_current_context()) from error


def source_name(file: Path) -> str:
    """How messages name it."""
    return "stdin" if str(file) == "-" else str(file)


def _read(file: Path) -> bytes:
    if str(file) != "-":
        return file.read_bytes()
    return b"" if sys.stdin is None else sys.stdin.buffer.read()  # Python has no stdin where the shell has closed it


def write_lines(lines: Iterable[str]) -> None:
    """Write a file to stdout, as it is to be read again: UTF-8, and no name changed; only a terminal is protected."""
    stream = sys.stdout
    for line in lines:
        if stream is None or stream.isatty():
            click.echo(printable(line))
        else:
            stream.buffer.write(f"{line}\n".encode())
    if stream is not None:
        stream.flush()
