"""A plan as files for Kafka's own tool, where that is to write: one of offsets for each group, and a script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from ..core.migration.plan_rows import PlanRow
from ..core.migration.rules import Action
from ..core.offsets.file_formats import FileFormat, OffsetRecord
from ..core.offsets.file_writer import format_offsets
from ..core.offsets.reset_script import file_name, script
from ..exceptions import InvalidOptionError, RefusedError

SCRIPT: Final = "reset-offsets.sh"
"""What the script is called; no file of a group is called so."""


@dataclass(frozen=True, slots=True)
class Export:
    """What was written: a script, and a file for each group that has something to write."""

    script: Path
    groups: int
    offsets: int
    blocked: tuple[str, ...]
    """Targets that have no file, because their groups cannot be moved now."""


def export(rows: Iterable[PlanRow], folder: Path) -> Export:
    """Write what the rows say, which are those of whole groups, sorted by target, into a folder that is new or empty.

    Each file has the lines topic,partition,offset, as `kafka-consumer-groups.sh --reset-offsets --from-file` reads
    them. Blocked groups have none. Not more than one group is kept in memory.
    """
    _make(folder)
    groups: list[str] = []
    blocked: list[str] = []
    offsets = 0
    brokers: str | None = None
    for target, found in groupby(rows, key=lambda row: row.target):
        its_rows = list(found)
        brokers = its_rows[0].brokers
        if its_rows[0].obstacles:
            blocked.append(target)
        elif records := list(_records(its_rows)):
            text = "".join(f"{line}\n" for line in format_offsets(records, FileFormat.KAFKA_CSV))
            (folder / file_name(target)).write_text(text, encoding="utf-8", newline="\n")
            groups.append(target)
            offsets += len(records)
    # The script comes last: where it is, all that it names is there.
    with (folder / SCRIPT).open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(script(SCRIPT, groups, brokers))
    return Export(folder / SCRIPT, len(groups), offsets, tuple(blocked))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RefusedError(f"{folder} is not empty: what is there might be taken for a part of this plan")
    except OSError as error:
        raise InvalidOptionError("folder", str(folder), f"it cannot be used: {error.strerror}") from error


def _records(rows: Iterable[PlanRow]) -> Iterator[OffsetRecord]:
    for row in rows:
        if row.action is Action.COMMIT and row.at is not None:
            yield OffsetRecord(None, row.at, row.planned)
