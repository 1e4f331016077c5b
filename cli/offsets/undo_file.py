"""The undo file of a reset, delete or import: the offsets as they were before, for `zkgroups offsets import`.

The file is on the disk before the first offset is changed, and an existing file is never overwritten. Afterwards it
loses the offsets that were not changed: restoring them later would undo commits of consumers.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click

from zkgroups import UnreadableNode
from zkgroups.core.offsets.file_formats import FileFormat, OffsetRecord
from zkgroups.core.offsets.file_writer import format_offsets
from zkgroups.core.offsets.reset import OffsetChange

from ..shared.global_options import as_typed
from ..shared.input_files import FilePath
from ..shared.messages import say
from ..shared.new_files import file_exists, write_new_file
from ..shared.options import Options
from ..shared.private_files import replace_file

Changes: TypeAlias = Iterable[tuple[str, Sequence[OffsetChange]]]
"""The changes of each group."""
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def undo_file_option(command: Decorated) -> Decorated:
    """Add `--undo-file` to a command, as `undo_file`."""
    return click.option(
        "--undo-file",
        metavar="FILE",
        type=FilePath(path_type=Path),
        callback=_check_new,
        help="Save the old offsets to this new file first. `zkgroups offsets import` restores them.",
    )(command)


def _check_new(_ctx: click.Context, _param: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and os.path.lexists(file):
        raise file_exists(file)
    return file


def save_undo_file(options: Options, plans: Changes, file: Path) -> None:
    """Save the current offsets of all changes, and return only when the file is on the disk."""
    if not (records := _records(plans)):
        return
    write_new_file(file, format_offsets(records, FileFormat.JSON))
    say(options, f"Saved the old offsets to {file}. To restore them: {import_command(options, file, '--backward')}")
    if missing := sum(record.offset is None for record in records):
        say(
            options,
            f"Partitions among them that had no valid offset: {missing}. The import leaves these unchanged; "
            "`zkgroups offsets delete` deletes their new offsets.",
        )


def shorten_undo_file(options: Options, saved: Changes, made: Changes, file: Path) -> None:
    """Leave only the changes that were made, or may have been made, in a file that was saved before."""
    before, records = _records(saved), _records(made)
    if len(records) == len(before):
        return
    if records:
        replace_file(file, "".join(f"{line}\n" for line in format_offsets(records, FileFormat.JSON)))
        say(options, f"Offsets that were not changed are no longer in {file}: {len(before) - len(records)}.")
    else:
        file.unlink(missing_ok=True)
        say(options, f"Nothing was changed, so {file} was deleted.")


def _records(plans: Changes) -> list[OffsetRecord]:
    return [_record(group, change) for group, changes in plans for change in changes if change.changes]


def import_command(options: Options, file: Path, *more: str) -> str:
    """Return the command line that imports the file, with the connection options of this one."""
    name = f"./{file}" if str(file).startswith("-") else str(file)
    return shlex.join(["zkgroups", *as_typed(options), "offsets", "import", name, *more, "--execute"])


def _record(group: str, change: OffsetChange) -> OffsetRecord:
    if isinstance(change.found, UnreadableNode):
        return OffsetRecord(group, change.at, None, f"invalid offset: {change.found.shown}")
    return OffsetRecord(group, change.at, change.old, "nothing was committed" if change.found is None else None)
