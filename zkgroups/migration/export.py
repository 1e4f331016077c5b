"""Exporting a plan for `kafka-consumer-groups.sh`: one file of offsets for each group, and a script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from ..core.migration.offset_decision import Action
from ..core.migration.plan_rows import PlanRow
from ..core.offsets.file_formats import FileFormat, OffsetRecord
from ..core.offsets.file_writer import format_offsets
from ..core.offsets.reset_script import group_file_name, reset_script
from ..exceptions import RefusedError, StorageError
from ..input_errors import InvalidOptionError

SCRIPT: Final = "reset-offsets.sh"
"""No file of a group has this name."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The files written: a script, and one file for each group with offsets to write."""

    script: Path
    groups: int
    offsets: int
    blocked: tuple[str, ...]
    """Targets without a file, because their groups have obstacles."""


def export(rows: Iterable[PlanRow], folder: Path) -> ExportResult:
    """Export the rows of whole groups, sorted by target, to a new or empty folder.

    Each file has the lines topic,partition,offset, as `kafka-consumer-groups.sh --reset-offsets --from-file` reads
    them. Blocked groups have no file. At most one group is in memory.
    """
    _create_empty(folder)
    try:
        return _write(rows, folder)
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"{folder} could not be written: {reason}; delete it, and export again") from error


def _write(rows: Iterable[PlanRow], folder: Path) -> ExportResult:
    groups: list[str] = []
    blocked: list[str] = []
    offsets = 0
    brokers: str | None = None
    for target, found in groupby(rows, key=lambda row: row.target):
        group = list(found)
        brokers = group[0].brokers
        if group[0].obstacles:
            blocked.append(target)
        elif records := list(_records(group)):
            text = "".join(f"{line}\n" for line in format_offsets(records, FileFormat.KAFKA_CSV))
            with (folder / group_file_name(target)).open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
            groups.append(target)
            offsets += len(records)
    # The script comes last, so that all files that it names exist.
    with (folder / SCRIPT).open("x", encoding="utf-8", newline="\n") as file:
        file.writelines(reset_script(SCRIPT, groups, brokers))
    return ExportResult(folder / SCRIPT, len(groups), offsets, tuple(blocked))


def _create_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RefusedError(f"{folder} is not empty: export to a new folder")
    except OSError as error:
        raise InvalidOptionError(
            "folder", str(folder), f"it cannot be used: {error.strerror}; choose another folder"
        ) from error


def _records(rows: Iterable[PlanRow]) -> Iterator[OffsetRecord]:
    for row in rows:
        if row.action is Action.COMMIT and row.at is not None:
            yield OffsetRecord(None, row.at, row.planned)
