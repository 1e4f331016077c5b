"""Read the reports of a plan, by row or by group."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...core.migration.plan_rows import GroupPlan, Match, MatchRow, Outcome, Step
from ...exceptions import NotFoundError
from ..snapshots.snapshot import session_beside
from .arrow_rows import parse_enum
from .plan_folder import PlanFolder


def read_report(spark: SparkSession, destination: str, name: str | None = None) -> DataFrame:
    """Return the rows of a report on the plan in this folder; of the latest report by default."""
    folder = PlanFolder(session_beside(spark), destination)
    if name is None:
        names = folder.reports()
        if not names:
            raise NotFoundError(f"no report in {folder}")
        name = names[-1]
    return folder.report(name)


def differing(spark: SparkSession, destination: str, name: str | None = None) -> Iterator[MatchRow]:
    """Iterate over the rows of a verify report that differ, sorted by target, with bounded memory."""
    rows = read_report(spark, destination, name).where(f.col("match") != Match.EQUAL.value)
    for row in rows.sort("target", "group", "topic", "partition").toLocalIterator():
        values = row.asDict()
        yield MatchRow(**values | {"match": parse_enum(Match, values["match"])})


def by_groups(spark: SparkSession, destination: str, name: str | None = None) -> Iterator[GroupPlan]:
    """Summarize a report by group, sorted by target: counts, and why a group was left or overtaken."""
    rows = read_report(spark, destination, name)
    column, kind = _counted_column(rows)
    has_reason = f.col(column).isin(Outcome.LEFT.value, Outcome.OVERTAKEN.value)
    left = f.collect_set(f.when(has_reason, f.col("detail")))
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


def _counted_column(rows: DataFrame) -> tuple[str, type[Outcome] | type[Match]]:
    """Return the column to count by, and its enum."""
    return ("outcome", Outcome) if "outcome" in rows.columns else ("match", Match)


def _counts(column: str, kind: type[Outcome] | type[Match]) -> list[Column]:
    return [f.count_if(f.col(column) == each.value).alias(each.value) for each in kind]


def last_steps(folder: PlanFolder) -> dict[str, str]:
    """Return the last step that wrote to each target."""
    reports = [folder.report(name) for name in folder.reports() if name.endswith(_CHANGES)]
    if not reports:
        return {}
    rows = reduce(DataFrame.unionByName, reports)
    has_written = f.col("outcome").isin(Outcome.WRITTEN.value, Outcome.OVERTAKEN.value)
    written = rows.where(has_written & (f.col("step") != Step.TO_ZOOKEEPER.value))
    found = written.groupBy("target").agg(f.max_by("step", "reported_ms").alias("step"))
    return {row["target"]: row["step"] for row in found.toLocalIterator()}


_CHANGES: Final = (f"-{Step.APPLY}", f"-{Step.ROLLBACK}")
