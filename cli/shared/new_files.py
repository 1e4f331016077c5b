"""New files that save offsets before they are changed: complete and on the disk, or not there at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from zkgroups.exceptions import RefusedError, StorageError

from .private_files import create_file


def file_exists(file: Path) -> RefusedError:
    """Return the error for a file that must be new."""
    return RefusedError(f"{file} already exists and is not overwritten: choose another name")


def write_new_file(file: Path, lines: Iterable[str]) -> None:
    """Write lines to a new file, and return only when it is on the disk. After an error it does not exist."""
    try:
        create_file(file, (f"{line}\n" for line in lines))
    except FileExistsError as error:
        raise file_exists(file) from error
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise click.UsageError(f"{file}: {error.strerror}", click.get_current_context()) from error
    except OSError as error:
        raise StorageError(f"{file} could not be written: {error.strerror}; no offset was changed") from error
