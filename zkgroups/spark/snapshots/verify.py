"""Verify that the files and rows of snapshots are unchanged.

Every row is read to detect any damage. The number of rows and their digest must equal those in the summary. A snapshot
of an earlier version has no summary, so it is only checked for being readable.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from ...core.doctor.findings import Severity
from ...core.tables import Table
from ...exceptions import SparkJobError
from ...storage.atomic_folder import MARK
from ...storage.snapshot_summary import Summary, TableSummary
from ..errors import translated
from ..source.table_versions import to_current_columns
from ..source.tables import SCHEMAS
from .digest import digest
from .layout import Layout


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


SCHEMA: Final = StructType(
    [
        StructField("severity", StringType(), False),
        StructField("snapshot", StringType(), False),
        StructField("table", StringType()),
        StructField("finding", StringType(), False),
        StructField("detail", StringType(), False),
    ]
)

Findings: TypeAlias = Iterator[tuple[FindingKind, str]]


def verify_snapshots(spark: SparkSession, destination: str, at: str | None = None) -> DataFrame:
    """Verify all snapshots, or the one chosen by `at`, and return the findings: no rows if all is well.

    `at` is "latest", "previous", a name, or a time. The columns are severity, snapshot, table, finding and detail. A
    snapshot without findings of the severity `error` is intact.
    """
    findings = [finding for each in verify(spark, destination, at) for finding in each.findings]
    columns = {name: [getattr(each, name) for each in findings] for name in SCHEMA.names}
    return spark.createDataFrame(pa.table(columns, pa.schema([(name, pa.string()) for name in columns])), SCHEMA)


def verify(spark: SparkSession, destination: str, at: str | None = None) -> Iterator[VerifiedSnapshot]:
    """Verify snapshots one after the other, and yield each result; incomplete snapshots come last."""
    layout = Layout(spark, destination)
    layout.check_exists()
    names = layout.snapshots() if at is None else [layout.choose(at)]
    incomplete = _incomplete(layout) if at is None else []
    if not names and not any(each.has_errors for each in incomplete):  # an empty result would look like success
        raise layout.no_snapshot()
    for name in names:
        yield VerifiedSnapshot(name, True, tuple(_snapshot(layout, name)))
    yield from incomplete


def _incomplete(layout: Layout) -> list[VerifiedSnapshot]:
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


def _snapshot(layout: Layout, name: str) -> Iterator[SnapshotFinding]:
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
    except SparkJobError as error:
        yield SnapshotFinding(name, None, FindingKind.BAD_SUMMARY, str(error))
    for table in Table:
        for fault, detail in _table(layout, name, table, summary):
            yield SnapshotFinding(name, table, fault, detail)


def _table(layout: Layout, name: str, table: Table, summary: Summary | None) -> Findings:
    contents = None if summary is None else summary.tables[table]
    there = layout.files(table, name)
    if not there:
        yield FindingKind.MISSING_TABLE, "the table has no files"
        return
    if contents is not None:
        yield from _files(there, contents.files)
    try:
        rows = layout.read_as_written(table, name)
        columns = rows.schema if contents is None else _written(contents)
        found = [*_columns(rows.schema, columns, table), *_rows(rows, columns, table, summary)]
    except SparkJobError as error:
        yield FindingKind.UNREADABLE, str(error)
    else:
        yield from found


def _files(there: Mapping[str, int], written: Mapping[str, int]) -> Findings:
    for file in sorted(there.keys() | written.keys()):
        if file not in there:
            yield FindingKind.MISSING_FILE, f"{file} is missing"
        elif file not in written:
            yield FindingKind.OTHER_FILE, f"{file} does not belong to the snapshot"
        elif there[file] != written[file]:
            yield FindingKind.WRONG_LENGTH, f"{file} has {there[file]} bytes, not {written[file]}"


# Columns


def _written(contents: TableSummary) -> StructType:
    try:
        return StructType.fromJson(json.loads(contents.columns))
    except (ValueError, LookupError, TypeError) as error:
        raise SparkJobError(f"the columns in the summary cannot be read: {error!r}") from error


def _columns(found: StructType, written: StructType, table: Table) -> Findings:
    """Compare the columns with the summary (errors), and with those of this version (info)."""
    missing, more = _compared(found, written)
    if missing or more:
        yield FindingKind.WRONG_COLUMNS, _describe((missing, "missing"), (more, "not in the summary"))
    missing, more = ([each.partition(" ")[0] for each in some] for some in _compared(found, SCHEMAS[table]))
    changed = set(missing) & set(more)
    if missing or more:
        differences = (changed, "of another type"), (set(missing) - changed, "null"), (set(more) - changed, "left out")
        yield FindingKind.OTHER_COLUMNS, f"on reading: {_describe(*differences)}"


def _compared(found: StructType, wanted: StructType) -> tuple[list[str], list[str]]:
    """Return the missing and the additional columns, with their types."""
    found_names, wanted_names = (
        [f"{each.name} {each.dataType.simpleString()}" for each in some] for some in (found, wanted)
    )
    return [each for each in wanted_names if each not in found_names], [
        each for each in found_names if each not in wanted_names
    ]


def _describe(*what: tuple[Collection[str], str]) -> str:
    return "; ".join(f"{', '.join(sorted(names))}: {state}" for names, state in what if names)


# Rows

_KEY: Final = ("cluster", "group", "topic", "partition")


def _rows(rows: DataFrame, columns: StructType, table: Table, summary: Summary | None) -> Findings:
    today = to_current_columns(rows, table, "the table")  # raises SparkJobError for a column of an incompatible type
    if summary is None:
        _counts(rows, rows.schema, None)
    elif set(columns.names) <= set(rows.columns):
        yield from _counted(_counts(rows, columns, summary.cluster), summary.tables[table])
    if table is Table.OFFSETS:
        yield from _duplicates(today)


def _counts(rows: DataFrame, columns: StructType, cluster: str | None) -> Mapping[str, Any]:
    """Count all rows. The digest reads every column."""
    problem = f.col("problem") if "problem" in rows.columns else f.lit(None)
    counts = rows.agg(
        f.count(f.lit(1)).alias("rows"),
        f.count(problem).alias("problems"),
        f.count_if(f.col("cluster") != f.lit(cluster)).alias("others"),
        digest(columns).alias("digest"),
    )
    with translated("its rows cannot be read"):
        return counts.collect()[0].asDict()


def _counted(counts: Mapping[str, Any], contents: TableSummary) -> Findings:
    wanted = {"rows": contents.rows, "problems": contents.problems}
    wrong = [f"{counts[what]} {what}, not {number}" for what, number in wanted.items() if counts[what] != number]
    if wrong:
        yield FindingKind.WRONG_ROWS, f"found {' and '.join(wrong)}"
    elif counts["digest"] != contents.digest:
        yield FindingKind.WRONG_DIGEST, f"the digest of the rows is {counts['digest']}, not {contents.digest}"
    if counts["others"]:
        yield FindingKind.WRONG_CLUSTER, f"{counts['others']} rows belong to another cluster than the summary names"


def _duplicates(rows: DataFrame) -> Findings:
    """Find partitions with more than one row. Rows without a partition report other nodes."""
    found = rows.where("partition is not null").groupBy(*_KEY).count().where("count > 1")
    with translated("its rows cannot be read"):
        [row] = found.agg(f.count(f.lit(1)).alias("partitions"), f.min(f.struct(*_KEY)).alias("first")).collect()
    if row["partitions"]:
        first = row["first"]
        at = f"{first['topic']}/{first['partition']} of group {first['group']!r}"
        yield FindingKind.DUPLICATE, f"{row['partitions']} partitions have more than one row; the first is {at}"
