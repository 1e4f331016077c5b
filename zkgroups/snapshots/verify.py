"""Verify that the files and rows of snapshots are unchanged.

Every row is read to detect any damage. The number of rows and their digest must equal those in the summary. A snapshot
of an earlier version has no summary, so it is only checked for being readable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core.doctor.findings import Severity
from ..core.table_columns import COLUMNS, Table, column_types, columns_json
from ..exceptions import DamagedFileError, SparkJobError, StorageError
from ..storage.atomic_folder import MARK
from ..storage.snapshot_folder import Summary, TableSummary
from ..tables.parquet_files import to_columns
from .digest import digest
from .local_snapshot import ArrowLayout

KEY: Final = ("cluster", "group", "topic", "partition")


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


def verify(layout: ArrowLayout, at: str | None = None) -> Iterator[VerifiedSnapshot]:
    """Verify snapshots one after the other, and yield each result; incomplete snapshots come last."""
    layout.check_exists()
    names = layout.snapshots() if at is None else [layout.choose(at)]
    incomplete = _incomplete(layout) if at is None else []
    if not names and not any(each.has_errors for each in incomplete):  # an empty result would look like success
        raise layout.no_snapshot()
    for name in names:
        yield VerifiedSnapshot(name, True, tuple(_snapshot(layout, name)))
    yield from incomplete


def _incomplete(layout: ArrowLayout) -> list[VerifiedSnapshot]:
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


def _snapshot(layout: ArrowLayout, name: str) -> Iterator[SnapshotFinding]:
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
        for fault, detail in _table(layout, name, table, summary):
            yield SnapshotFinding(name, table, fault, detail)


def _table(layout: ArrowLayout, name: str, table: Table, summary: Summary | None) -> Findings:
    contents = None if summary is None else summary.tables[table]
    there = layout.files(table, name)
    if not there:
        yield FindingKind.MISSING_TABLE, "the table has no files"
        return
    if contents is not None:
        yield from _files(there, contents.files)
    try:
        found = layout.read_as_written(table, name)
        there_now = {field.name: _in_spark(field.type) for field in found.schema}
        columns = there_now if contents is None else _written(contents)
        problems = [*_columns(there_now, columns, table), *_rows(found, columns, table, summary)]
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


def _in_spark(kind: Any) -> str:
    """Return a type of Arrow as Spark shows it."""
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_map(kind):
        return f"map<{_in_spark(kind.key_type)},{_in_spark(kind.item_type)}>"
    return {pa.int32(): "int", pa.int64(): "bigint"}.get(kind, str(kind))


# Rows


def _rows(found: Any, columns: Mapping[str, str], table: Table, summary: Summary | None) -> Findings:
    rows = to_columns(found, COLUMNS[table], "the table")
    if summary is not None and columns.keys() <= set(found.column_names):
        yield from _counted(found.select(list(columns)), rows, summary, table)
    if table is Table.OFFSETS:
        yield from _duplicates(rows)


def _counted(found: Any, rows: Any, summary: Summary, table: Table) -> Findings:
    """Compare the counts with the summary: of the columns as they were written, and of the same rows as this version
    reads them.
    """
    contents = summary.tables[table]
    problems = len(rows) - rows.column("problem").null_count
    wanted = {"rows": (len(found), contents.rows), "problems": (problems, contents.problems)}
    wrong = [f"{count} {what}, not {number}" for what, (count, number) in wanted.items() if count != number]
    now = digest(found.combine_chunks().to_batches())
    if wrong:
        yield FindingKind.WRONG_ROWS, f"found {' and '.join(wrong)}"
    elif now != contents.digest:
        yield FindingKind.WRONG_DIGEST, f"the digest of the rows is {now}, not {contents.digest}"
    if others := pc.sum(pc.not_equal(rows.column("cluster"), summary.cluster)).as_py():
        yield FindingKind.WRONG_CLUSTER, f"{others} rows belong to another cluster than the summary names"


def _duplicates(rows: Any) -> Findings:
    """Find partitions with more than one row. Rows without a partition report other nodes."""
    keys = rows.filter(pc.is_valid(rows.column("partition"))).select(KEY)
    counted = keys.group_by(KEY).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted.column("count_all"), 1))
    if len(twice):
        first = twice.sort_by([(each, "ascending") for each in KEY]).slice(0, 1).to_pylist()[0]
        at = f"{first['topic']}/{first['partition']} of group {first['group']!r}"
        yield FindingKind.DUPLICATE, f"{len(twice)} partitions have more than one row; the first is {at}"
