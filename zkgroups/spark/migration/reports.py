"""The reports beside a plan: read, and told by groups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...core.migration.plan_rows import GroupPlan, Match, MatchRow, Outcome, Step
from ...exceptions import NotFoundError
from ..snapshots.snapshot import session_beside
from .arrow_rows import word
from .plan_folder import Folder


def read_report(spark: SparkSession, destination: str, name: str | None = None) -> DataFrame:
    """The rows of a report of what was done with the plan in this folder: the one named, or the newest."""
    folder = Folder(session_beside(spark), destination)
    if name is None:
        names = folder.reports()
        if not names:
            raise NotFoundError(f"there is no report in {folder}")
        name = names[-1]
    return folder.report(name)


def differing(spark: SparkSession, destination: str, name: str | None = None) -> Iterator[MatchRow]:
    """The rows of a comparison that are not equal, in order; memory does not grow with their number."""
    rows = read_report(spark, destination, name).where(f.col("match") != Match.EQUAL.value)
    for row in rows.sort("target", "group", "topic", "partition").toLocalIterator():
        values = row.asDict()
        yield MatchRow(**values | {"match": word(Match, values["match"])})


def by_groups(spark: SparkSession, destination: str, name: str | None = None) -> Iterator[GroupPlan]:
    """A report by groups, in order: how many rows of each outcome or match, and why a group was left, or overtaken."""
    rows = read_report(spark, destination, name)
    column, kind = _what(rows)
    told = f.col(column).isin(Outcome.LEFT.value, Outcome.OVERTAKEN.value)
    left = f.collect_set(f.when(told, f.col("detail")))
    found = rows.groupBy("group", "target").agg(left.alias("obstacles"), *_counts(column, kind))
    for row in found.sort("target", "group").toLocalIterator():
        yield GroupPlan(
            group=row["group"],
            target=row["target"],
            obstacles=tuple(row["obstacles"]),
            counts={each.value: row[each.value] for each in kind if row[each.value]},
            lag_before=None,
            lag_after=None,
        )


def _what(rows: DataFrame) -> tuple[str, type[Outcome] | type[Match]]:
    """The column by which the rows of a report differ."""
    return ("outcome", Outcome) if "outcome" in rows.columns else ("match", Match)


def _counts(column: str, kind: type[Outcome] | type[Match]) -> list[Column]:
    return [f.count_if(f.col(column) == each.value).alias(each.value) for each in kind]


def last_steps(folder: Folder) -> dict[str, str]:
    """For each target that was ever written to, by which step that was done last."""
    reports = [folder.report(name) for name in folder.reports() if name.endswith(_CHANGES)]
    if not reports:
        return {}
    rows = reduce(DataFrame.unionByName, reports)
    has_written = f.col("outcome").isin(Outcome.WRITTEN.value, Outcome.OVERTAKEN.value)
    written = rows.where(has_written & (f.col("step") != Step.TO_ZOOKEEPER.value))
    found = written.groupBy("target").agg(f.max_by("step", "reported_ms").alias("step"))
    return {row["target"]: row["step"] for row in found.toLocalIterator()}


_CHANGES: Final = (f"-{Step.APPLY}", f"-{Step.ROLLBACK}")
