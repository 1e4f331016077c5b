"""The commits of an audit as a table, and the offsets that were committed at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ...core.audit_columns import KEY
from ...core.layouts.legacy import LEGACY
from ...core.selection import check_expression
from ...core.times import utc
from ...exceptions import InvalidOptionError, RefusedError
from ...tables.history_options import HistoryOptions
from ..errors import translated
from .journal import SparkJournal
from .with_logs import with_logs


def read_audit(spark: SparkSession, destination: str, *, logs: HistoryOptions | None = None) -> DataFrame:
    """Return every recorded commit of an audit.

    The columns are group, topic, partition, `before` (the previous offset in the audit), `offset` (null if malformed),
    `commit_count`, `committed_at`, `zxid`, `layout`, `log_start`, `log_end`, `problem` (why it is malformed), `read_at`
    and `batch`.

    With `logs`, the result also has every commit in the transaction logs of the same ZooKeeper, each commit once. They
    fill the audit where it missed commits between two reads. `read_at` and `batch` are null for a commit from the logs.
    Unless `logs` says which groups and topics, they are those of the audit. Raise RefusedError for another layout.
    """
    journal = SparkJournal(spark, destination)
    journal.check_exists()
    commits = journal.read(journal.pieces())
    return commits if logs is None else with_logs(commits, _selected(logs, journal))


def _selected(logs: HistoryOptions, journal: SparkJournal) -> HistoryOptions:
    """Select the groups and topics of the audit in the logs."""
    audit = journal.description()
    if audit.layout != LEGACY.text:
        raise RefusedError(f"the audit in {journal} has the layout {audit.layout}, which is not read from logs")
    return replace(logs, groups=logs.groups or audit.groups, topics=logs.topics or audit.topics)


def offsets_at(spark: SparkSession, destination: str, at: datetime, group: str | None = None) -> DataFrame:
    """Return the offsets committed at a time, of one group or of all: group, topic, partition, offset, committed_at.

    For each partition the result has the last recorded commit made at or before `at`. The true offset may be newer,
    because an audit does not see commits that are overwritten between two batches; it is never older. Offsets that were
    deleted before `at` are included. Partitions whose last commit is malformed are left out, and so are commits made
    before the audit started over with another ZooKeeper. Raise RefusedError for a time after the last batch.
    """
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidOptionError("at", str(at), "it must be a datetime with a time zone")
    journal = SparkJournal(spark, destination)
    journal.check_exists()
    _check_not_after_last_read(journal, at)
    commits = journal.read(journal.pieces())
    first = journal.description().first_batch
    commits = commits.where((f.col("committed_at") <= f.lit(at)) & (f.col("batch") >= first))
    if group is not None:
        commits = commits.where(f.col("group") == group)
    last = f.max_by(f.struct("offset", "committed_at"), "batch").alias("last")
    found = commits.groupBy(*KEY).agg(last).select(*KEY, "last.*")
    return found.where(f.col("offset").isNotNull())


def _check_not_after_last_read(journal: SparkJournal, at: datetime) -> None:
    finished = journal.finished_batch()
    if finished is None:
        raise RefusedError(f"the audit in {journal} has no finished batch yet: try again later")
    if at.timestamp() * 1000 > finished.read_ms:
        raise RefusedError(
            f"the audit in {journal} last read offsets at {utc(finished.read_ms)} and does not know later commits: "
            "choose an earlier time"
        )


def find_commits(
    spark: SparkSession,
    destination: str,
    *,
    groups: str | None = None,
    topics: str | None = None,
    logs: HistoryOptions | None = None,
) -> Iterator[dict[str, Any]]:
    """Return the commits of groups and topics whose whole names match, oldest first. See `read_audit` for `logs`."""
    commits = read_audit(spark, destination, logs=logs)
    for column, expression in (("group", groups), ("topic", topics)):
        check_expression(f"{column}s", expression)
        if expression is not None:
            names = [row[0] for row in commits.select(column).distinct().toLocalIterator()]
            matching = re.compile(expression, re.DOTALL)  # Java's regular expressions differ slightly
            commits = commits.where(f.col(column).isin([name for name in names if matching.fullmatch(name)]))
    with translated(f"the audit in {destination} cannot be read"):
        for row in commits.orderBy(*([] if logs else ["batch"]), "zxid", *KEY).toLocalIterator():
            yield row.asDict()
