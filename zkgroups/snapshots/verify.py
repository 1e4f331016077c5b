"""Verify that the files and rows of snapshots are unchanged.

Every row is read to detect any damage. The number of rows and their digest must equal those in the summary. A snapshot
of an earlier version has no summary, so it is only checked for being readable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias

from ..core.doctor.findings import Severity
from ..core.table_columns import COLUMNS, Table, column_types, columns_json
from ..exceptions import DamagedFileError, SparkJobError, StorageError
from ..storage.atomic_folder import MARK
from ..storage.snapshot_folder import SnapshotFolder, Summary, TableSummary

KEY: Final = ("cluster", "group", "topic", "partition")


class StoredTable(Protocol):
    """A table of a snapshot, as it was written. All methods raise SparkJobError if it cannot be read."""

    @property
    def columns(self) -> Mapping[str, str]:
        """The types of the columns by name, as Spark shows them."""

    def check_types(self) -> None:
        """Raise an error for a column that cannot be converted to the type in this version."""

    def counts(self, columns: Sequence[str], cluster: str | None) -> Mapping[str, Any]:
        """Read all rows. Count `rows`, `problems` and `others` (of another cluster), and compute the `digest`."""

    def duplicates(self) -> tuple[int, Mapping[str, Any]]:
        """Return how many partitions have more than one row, and the `KEY` of the first one."""


TableOpener: TypeAlias = Callable[[Table, str], StoredTable]
"""Opens a table of the named snapshot. Raises SparkJobError if it cannot be read."""


class FindingKind(StrEnum):
    """The problems that a verification can find."""

    BAD_SUMMARY = "bad-summary"
    MISSING_TABLE = "missing-table"
    MISSING_FILE = "missing-file"
    OTHER_FILE = "other-file"
    WRONG_LENGTH = "wrong-length"
    WRONG_COLUMNS = "wrong-columns"
    UNREADABLE = "unreadable"
    WRONG_ROWS = "wrong-rows"
    WRONG_DIGEST = "wrong-digest"
    WRONG_CLUSTER = "wrong-cluster"
    DUPLICATE = "duplicate"
    UNMARKED = "unmarked"
    NO_SUMMARY = "no-summary"
    OTHER_COLUMNS = "other-columns"
    UNFINISHED = "unfinished"

    @property
    def severity(self) -> Severity:
        """The severity: info for other versions and unfinished snapshots, else error."""
        info = {FindingKind.NO_SUMMARY, FindingKind.OTHER_COLUMNS, FindingKind.UNFINISHED}
        return Severity.INFO if self in info else Severity.ERROR


@dataclass(frozen=True, slots=True)
class SnapshotFinding:
    """A finding about a snapshot, or about one of its tables."""

    snapshot: str
    table: Table | None
    finding: FindingKind
    detail: str

    @property
    def severity(self) -> Severity:
        return self.finding.severity


@dataclass(frozen=True, slots=True)
class VerifiedSnapshot:
    """The findings about one name. `is_complete` is False if no complete snapshot has that name."""

    name: str
    is_complete: bool
    findings: tuple[SnapshotFinding, ...]

    @property
    def has_errors(self) -> bool:
        return any(each.severity is Severity.ERROR for each in self.findings)


Findings: TypeAlias = Iterator[tuple[FindingKind, str]]


def verify(layout: SnapshotFolder, open_table: TableOpener, at: str | None = None) -> Iterator[VerifiedSnapshot]:
    """Verify snapshots one after the other, and yield each result; incomplete snapshots come last."""
    layout.check_exists()
    names = layout.snapshots() if at is None else [layout.choose(at)]
    incomplete = _incomplete(layout) if at is None else []
    if not names and not any(each.has_errors for each in incomplete):  # an empty result would look like success
        raise layout.no_snapshot()
    for name in names:
        yield VerifiedSnapshot(name, True, tuple(_snapshot(layout, open_table, name)))
    yield from incomplete


def _incomplete(layout: SnapshotFolder) -> list[VerifiedSnapshot]:
    """Return incomplete snapshots.

    The order of the listings matters: the folder in `_unfinished` is deleted last, so a snapshot that is just being
    completed is not reported as unmarked.
    """
    started, unfinished = layout.started_names(), layout.unfinished()
    lost = [name for name in started if name not in unfinished and not layout.has(name)]
    found = [(name, FindingKind.UNMARKED, f"{MARK} is missing, so it is not a complete snapshot") for name in lost]
    found += [
        (name, FindingKind.UNFINISHED, "it is being written, or the process that wrote it died")
        for name in unfinished
        if not layout.has(name)
    ]
    return [
        VerifiedSnapshot(name, False, (SnapshotFinding(name, None, what, detail),))
        for name, what, detail in sorted(found)
    ]


def _snapshot(layout: SnapshotFolder, open_table: TableOpener, name: str) -> Iterator[SnapshotFinding]:
    summary: Summary | None = None
    try:
        summary = layout.summary(name)
        if summary is None:
            yield SnapshotFinding(
                name,
                None,
                FindingKind.NO_SUMMARY,
                "written by an earlier version without a summary: only readability was checked",
            )
    except (SparkJobError, StorageError) as error:
        yield SnapshotFinding(name, None, FindingKind.BAD_SUMMARY, str(error))
    for table in Table:
        for fault, detail in _table(layout, open_table, name, table, summary):
            yield SnapshotFinding(name, table, fault, detail)


def _table(
    layout: SnapshotFolder, open_table: TableOpener, name: str, table: Table, summary: Summary | None
) -> Findings:
    contents = None if summary is None else summary.tables[table]
    there = layout.files(table, name)
    if not there:
        yield FindingKind.MISSING_TABLE, "the table has no files"
        return
    if contents is not None:
        yield from _files(there, contents.files)
    try:
        found = open_table(table, name)
        columns = found.columns if contents is None else _written(contents)
        problems = [*_columns(found.columns, columns, table), *_rows(found, columns, table, summary)]
    except (SparkJobError, StorageError) as error:
        yield FindingKind.UNREADABLE, str(error)
    else:
        yield from problems


def _files(there: Mapping[str, int], written: Mapping[str, int]) -> Findings:
    for file in sorted(there.keys() | written.keys()):
        if file not in there:
            yield FindingKind.MISSING_FILE, f"{file} is missing"
        elif file not in written:
            yield FindingKind.OTHER_FILE, f"{file} does not belong to the snapshot"
        elif there[file] != written[file]:
            yield FindingKind.WRONG_LENGTH, f"{file} has {there[file]} bytes, not {written[file]}"


# Columns


def _written(contents: TableSummary) -> Mapping[str, str]:
    try:
        return column_types(contents.columns)
    except ValueError as error:
        raise DamagedFileError(f"the columns in the summary cannot be read: {error}") from error


def _columns(found: Mapping[str, str], written: Mapping[str, str], table: Table) -> Findings:
    """Compare the columns with the summary (errors), and with those of this version (info)."""
    missing, more = _compared(found, written)
    if missing or more:
        yield FindingKind.WRONG_COLUMNS, _describe((missing, "missing"), (more, "not in the summary"))
    current = column_types(columns_json(COLUMNS[table]))
    missing, more = ([each.partition(" ")[0] for each in some] for some in _compared(found, current))
    changed = set(missing) & set(more)
    if missing or more:
        differences = (changed, "of another type"), (set(missing) - changed, "null"), (set(more) - changed, "left out")
        yield FindingKind.OTHER_COLUMNS, f"on reading: {_describe(*differences)}"


def _compared(found: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the missing and the additional columns, with their types."""
    found_names, wanted_names = ([f"{name} {kind}" for name, kind in some.items()] for some in (found, wanted))
    return [each for each in wanted_names if each not in found_names], [
        each for each in found_names if each not in wanted_names
    ]


def _describe(*what: tuple[Collection[str], str]) -> str:
    return "; ".join(f"{', '.join(sorted(names))}: {state}" for names, state in what if names)


# Rows


def _rows(found: StoredTable, columns: Mapping[str, str], table: Table, summary: Summary | None) -> Findings:
    found.check_types()
    if summary is None:
        found.counts(list(found.columns), None)
    elif columns.keys() <= found.columns.keys():
        yield from _counted(found.counts(list(columns), summary.cluster), summary.tables[table])
    if table is Table.OFFSETS:
        yield from _duplicates(found)


def _counted(counts: Mapping[str, Any], contents: TableSummary) -> Findings:
    wanted = {"rows": contents.rows, "problems": contents.problems}
    wrong = [f"{counts[what]} {what}, not {number}" for what, number in wanted.items() if counts[what] != number]
    if wrong:
        yield FindingKind.WRONG_ROWS, f"found {' and '.join(wrong)}"
    elif counts["digest"] != contents.digest:
        yield FindingKind.WRONG_DIGEST, f"the digest of the rows is {counts['digest']}, not {contents.digest}"
    if counts["others"]:
        yield FindingKind.WRONG_CLUSTER, f"{counts['others']} rows belong to another cluster than the summary names"


def _duplicates(found: StoredTable) -> Findings:
    """Find partitions with more than one row. Rows without a partition report other nodes."""
    partitions, first = found.duplicates()
    if partitions:
        at = f"{first['topic']}/{first['partition']} of group {first['group']!r}"
        yield FindingKind.DUPLICATE, f"{partitions} partitions have more than one row; the first is {at}"
