"""List the snapshots of a destination, with the counts from their summaries.

Snapshots of earlier versions have no summary, so their rows are counted. The number of groups is then unknown, because
groups without rows count, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from ..core.tables import Table
from ..exceptions import SparkJobError, StorageError
from ..storage.files import LocalFiles
from ..storage.snapshot_folder import SnapshotFolder
from ..storage.snapshot_summary import Summary
from ..storage.timestamps import parse_timestamp


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """A snapshot with its start time, cluster and counts; None if unknown.

    `problems` is the number of rows for unreadable nodes. `size` is the size of the files in bytes. `lag` is the sum of
    the known lags, and `unknown_lags` the number of offsets whose lag is unknown; None for a snapshot without log ends.
    """

    name: str
    time: datetime
    cluster: str | None
    groups: int | None
    offsets: int | None
    owners: int | None
    members: int | None
    problems: int | None
    size: int
    zxid: int | None = None
    """The zxid of the state, if it was read from files."""
    lag: int | None = None
    unknown_lags: int | None = None


RowCounts: TypeAlias = Mapping[tuple[str, str], Mapping[str, Any]]
"""The cluster, the `rows` and the `problems` by snapshot and table name. Tables that cannot be read are missing."""

RowCounter: TypeAlias = Callable[[Mapping[str, Mapping[Table, Collection[str]]]], RowCounts]
"""Counts the rows of snapshots, given their files."""


def list_local_snapshots(destination: str) -> list[ListedSnapshot]:
    """Return the snapshots of a folder of this machine, oldest first, without Spark."""
    return listing(SnapshotFolder(LocalFiles(), destination), lambda files: _count_rows(destination, files))


def _count_rows(destination: str, files: Mapping[str, Mapping[Table, Collection[str]]]) -> RowCounts:
    from .arrow_layout import ArrowLayout  # importing Arrow takes longer than reading summaries

    layout = ArrowLayout.at(destination)
    counts = {}
    for name, tables in files.items():
        for table in (table for table, found in tables.items() if found):
            with suppress(SparkJobError, StorageError):
                counts[name, str(table)] = layout.count_rows(table, name)
    return counts


def listing(layout: SnapshotFolder, count_rows: RowCounter) -> list[ListedSnapshot]:
    """Return the snapshots of a destination, oldest first. Raise NotFoundError if it does not exist."""
    layout.check_exists()
    summaries = {name: _summary(layout, name) for name in layout.snapshots()}
    without_summary = {
        name: {table: layout.files(table, name) for table in Table}
        for name, summary in summaries.items()
        if summary is None
    }
    counts = count_rows(without_summary) if without_summary else {}
    return [
        _without_summary(name, without_summary[name], counts) if summary is None else _with_summary(name, summary)
        for name, summary in summaries.items()
    ]


def _summary(layout: SnapshotFolder, name: str) -> Summary | None:
    with suppress(SparkJobError, StorageError):  # a damaged summary must not prevent a listing: see `verify.py`
        return layout.summary(name)
    return None


def _with_summary(name: str, summary: Summary) -> ListedSnapshot:
    tables = summary.tables
    return ListedSnapshot(
        name,
        parse_timestamp(name),
        summary.cluster,
        summary.groups,
        offsets=tables[Table.OFFSETS].rows,
        owners=tables[Table.OWNERS].rows,
        members=tables[Table.MEMBERS].rows,
        problems=sum(each.problems for each in tables.values()),
        size=sum(sum(each.files.values()) for each in tables.values()),
        zxid=summary.zxid,
        lag=None if summary.lag is None else summary.lag.total,
        unknown_lags=None if summary.lag is None else summary.lag.unknown,
    )


def _without_summary(name: str, files: Mapping[Table, Mapping[str, int]], counts: RowCounts) -> ListedSnapshot:
    rows = {table: counts[name, table]["rows"] if (name, table) in counts else None for table in Table}
    found = [counts[name, table] for table in Table if (name, table) in counts]
    return ListedSnapshot(
        name,
        parse_timestamp(name),
        cluster=next((each["cluster"] for each in found if each["cluster"] is not None), None),
        groups=None,
        offsets=rows[Table.OFFSETS],
        owners=rows[Table.OWNERS],
        members=rows[Table.MEMBERS],
        problems=sum(each["problems"] for each in found) if len(found) == len(Table) else None,
        size=sum(sum(each.values()) for each in files.values()),
    )
