"""Whether snapshots are whole: all files are there as they were written, and all rows are what they were.

Of each table every row is read to its end, so that nothing that was damaged stays unseen: the rows are counted, and
have the digest that was made of them while they were written. A snapshot of an earlier version has no summary of all
this: of it, what can be read is all that is known.
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
from ...exceptions import NotFoundError, SparkJobError
from ..errors import translated
from ..source.table_versions import as_it_is, as_today
from ..source.tables import SCHEMAS, Table
from .layout import MARK, Layout
from .moments import moment
from .summary import Contents, Summary, digest


class Fault(StrEnum):
    """What can be found."""

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
        """An error, or only worth knowing: an earlier version, a later one, and what may be under way."""
        told = {Fault.NO_SUMMARY, Fault.OTHER_COLUMNS, Fault.UNFINISHED}
        return Severity.INFO if self in told else Severity.ERROR


@dataclass(frozen=True, slots=True)
class SnapshotFinding:
    """One thing that was found of a snapshot, or of one of its tables."""

    snapshot: str
    table: Table | None
    finding: Fault
    detail: str

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.finding.severity


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of one name; `is_there` is whether that is a snapshot."""

    name: str
    is_there: bool
    findings: tuple[SnapshotFinding, ...]

    @property
    def is_wrong(self) -> bool:
        """Whether there is more than what is only worth knowing."""
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

Found: TypeAlias = Iterator[tuple[Fault, str]]


def verify_snapshots(spark: SparkSession, destination: str, at: str | None = None) -> DataFrame:
    """What was found of all snapshots, or of the one that is meant (see `moments.py`); whatever has the severity
    `error` is in the way of trusting it. No row says that all is well."""
    findings = [finding for each in verify(spark, destination, at) for finding in each.findings]
    columns = {name: [getattr(each, name) for each in findings] for name in SCHEMA.names}
    return spark.createDataFrame(pa.table(columns, pa.schema([(name, pa.string()) for name in columns])), SCHEMA)


def verify(spark: SparkSession, destination: str, at: str | None = None) -> Iterator[Checked]:
    """The same as objects, one snapshot after the other, as they are looked through; last, what is none."""
    layout = Layout(spark, destination)
    layout.check_there()
    names = layout.snapshots() if at is None else [moment(spark, destination, at)]
    left = _left(layout) if at is None else []
    if not names and not any(each.is_wrong for each in left):  # or nothing would be taken for whole
        raise NotFoundError(f"there is no snapshot in {layout}")
    for name in names:
        yield Checked(name, True, tuple(_snapshot(spark, layout, name)))
    yield from left


def _left(layout: Layout) -> list[Checked]:
    """What was begun and is no snapshot. Looked for in this order, what is just being finished is not taken for lost:
    its folder goes last."""
    begun, unfinished = layout.begun(), layout.unfinished()
    lost = [name for name in begun if name not in unfinished and not layout.has(name)]
    found = [(name, Fault.UNMARKED, f"it has no {MARK}, and so is no snapshot") for name in lost]
    found += [
        (name, Fault.UNFINISHED, "it is being written, or was when somebody died")
        for name in unfinished
        if not layout.has(name)
    ]
    return [Checked(name, False, (SnapshotFinding(name, None, what, detail),)) for name, what, detail in sorted(found)]


def _snapshot(spark: SparkSession, layout: Layout, name: str) -> Iterator[SnapshotFinding]:
    summary: Summary | None = None
    try:
        summary = layout.summary(name)
        if summary is None:
            yield SnapshotFinding(name, None, Fault.NO_SUMMARY, "an earlier version wrote it: it can only be read")
    except SparkJobError as error:
        yield SnapshotFinding(name, None, Fault.BAD_SUMMARY, str(error))
    for table in Table:
        for fault, detail in _table(spark, layout, name, table, summary):
            yield SnapshotFinding(name, table, fault, detail)


def _table(spark: SparkSession, layout: Layout, name: str, table: Table, summary: Summary | None) -> Found:
    contents = None if summary is None else summary.tables[table]
    there = layout.files(table, name)
    if not there:
        yield Fault.MISSING_TABLE, "it has no file"
        return
    if contents is not None:
        yield from _files(there, contents.files)
    try:
        rows = as_it_is(spark, layout, table, name)
        columns = rows.schema if contents is None else _written(contents)
        found = [*_columns(rows.schema, columns, table), *_rows(rows, columns, table, summary)]
    except SparkJobError as error:
        yield Fault.UNREADABLE, str(error)
    else:
        yield from found


def _files(there: Mapping[str, int], written: Mapping[str, int]) -> Found:
    for file in sorted(there.keys() | written.keys()):
        if file not in there:
            yield Fault.MISSING_FILE, f"{file} is not there"
        elif file not in written:
            yield Fault.OTHER_FILE, f"{file} was not written with it"
        elif there[file] != written[file]:
            yield Fault.WRONG_LENGTH, f"{file} has {there[file]} bytes, not {written[file]}"


# Columns


def _written(contents: Contents) -> StructType:
    try:
        return StructType.fromJson(json.loads(contents.columns))
    except (ValueError, LookupError, TypeError) as error:
        raise SparkJobError(f"the summary has no columns that can be read: {error!r}") from error


def _columns(found: StructType, written: StructType, table: Table) -> Found:
    """What is not as it was written is wrong; what another version has written is only told."""
    missing, more = _compared(found, written)
    if missing or more:
        yield Fault.WRONG_COLUMNS, _told((missing, "not there"), (more, "not in the summary"))
    missing, more = ([each.partition(" ")[0] for each in some] for some in _compared(found, SCHEMAS[table]))
    changed = set(missing) & set(more)
    if missing or more:
        told = (changed, "of another type"), (set(missing) - changed, "null"), (set(more) - changed, "left out")
        yield Fault.OTHER_COLUMNS, f"when it is read, {_told(*told)}"


def _compared(found: StructType, wanted: StructType) -> tuple[list[str], list[str]]:
    """Which of those wanted are not there, and which others are, with their types."""
    there, asked = ([f"{each.name} {each.dataType.simpleString()}" for each in some] for some in (found, wanted))
    return [each for each in asked if each not in there], [each for each in there if each not in asked]


def _told(*what: tuple[Collection[str], str]) -> str:
    return "; ".join(f"{', '.join(sorted(names))}: {said}" for names, said in what if names)


# Rows

_KEY: Final = ("cluster", "group", "topic", "partition")


def _rows(rows: DataFrame, columns: StructType, table: Table, summary: Summary | None) -> Found:
    today = as_today(rows, table)  # which is an error, where a column is of a type that cannot be read
    if summary is None:
        _counts(rows, rows.schema, None)
    elif set(columns.names) <= set(rows.columns):
        yield from _counted(_counts(rows, columns, summary.cluster), summary.tables[table])
    if table is Table.OFFSETS:
        yield from _duplicates(today)


def _counts(rows: DataFrame, columns: StructType, cluster: str | None) -> Mapping[str, Any]:
    """Of all rows; for the digest every column of them is read."""
    problem = f.col("problem") if "problem" in rows.columns else f.lit(None)
    counts = rows.agg(
        f.count(f.lit(1)).alias("rows"),
        f.count(problem).alias("problems"),
        f.count_if(f.col("cluster") != f.lit(cluster)).alias("others"),
        digest(columns).alias("digest"),
    )
    with translated("its rows cannot be read"):
        return counts.collect()[0].asDict()


def _counted(counts: Mapping[str, Any], contents: Contents) -> Found:
    wanted = {"rows": contents.rows, "problems": contents.problems}
    wrong = [f"{counts[what]} {what}, not {number}" for what, number in wanted.items() if counts[what] != number]
    if wrong:
        yield Fault.WRONG_ROWS, f"there are {' and '.join(wrong)}"
    elif counts["digest"] != contents.digest:
        yield Fault.WRONG_DIGEST, f"the digest of the rows is {counts['digest']}, not {contents.digest}"
    if counts["others"]:
        yield Fault.WRONG_CLUSTER, f"{counts['others']} rows are not of the cluster in the summary"


def _duplicates(rows: DataFrame) -> Found:
    """A partition has one offset; rows without a partition are about something else."""
    found = rows.where("partition is not null").groupBy(*_KEY).count().where("count > 1")
    with translated("its rows cannot be read"):
        [row] = found.agg(f.count(f.lit(1)).alias("partitions"), f.min(f.struct(*_KEY)).alias("first")).collect()
    if row["partitions"]:
        first = row["first"]
        at = f"{first['topic']}/{first['partition']} of group {first['group']!r}"
        yield Fault.DUPLICATE, f"{row['partitions']} partitions have more than one row; the first is {at}"
