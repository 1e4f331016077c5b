"""The reports in the folder of a plan: reading them, and summaries by group."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...core.migration.plan_rows import GroupResult, Match, MatchRow, MigrationStep, Outcome
from ...exceptions import NotFoundError
from ..snapshots.snapshot import session_beside
from .arrow_rows import row
from .plan_folder import PlanFolder


def read_report(spark: SparkSession, destination: str, name: str | None = None) -> DataFrame:
    """Return the rows of a report in the folder of a plan, the latest if none is named."""
    folder = PlanFolder(session_beside(spark), destination)
    if name is None:
        names = folder.reports()
        if not names:
            raise NotFoundError(f"no report in {folder}: run `zkgroups migrate apply` first")
        name = names[-1]
    return folder.report(name)


def differing(spark: SparkSession, destination: str, name: str | None = None) -> Iterator[MatchRow]:
    """Yield the rows of a comparison that are not equal, sorted by target, in constant memory."""
    found = read_report(spark, destination, name).where(f.col("match") != Match.EQUAL.value)
    for each in found.sort("target", "group", "topic", "partition").toLocalIterator():
        yield row(MatchRow, each.asDict())


def group_results(spark: SparkSession, destination: str, name: str | None = None) -> Iterator[GroupResult]:
    """Yield a summary of each group of a report, sorted by target."""
    rows = read_report(spark, destination, name)
    column, kind = _result_column(rows)
    explained = f.col(column).isin(Outcome.LEFT.value, Outcome.OVERTAKEN.value)
    details = f.collect_set(f.when(explained, f.col("detail")))
    found = rows.groupBy("group", "target").agg(details.alias("details"), *_counts(column, kind))
    for each in found.sort("target", "group").toLocalIterator():
        yield GroupResult(
            group=each["group"],
            target=each["target"],
            details=tuple(each["details"]),
            counts={result.value: each[result.value] for result in kind if each[result.value]},
        )


def _result_column(rows: DataFrame) -> tuple[str, type[Outcome] | type[Match]]:
    """Return the column with the result of each row."""
    return ("outcome", Outcome) if "outcome" in rows.columns else ("match", Match)


def _counts(column: str, kind: type[Outcome] | type[Match]) -> list[Column]:
    return [f.count_if(f.col(column) == each.value).alias(each.value) for each in kind]


def last_steps(folder: PlanFolder) -> dict[str, str]:
    """Return the last step that wrote to each target."""
    reports = [folder.report(name) for name in folder.reports() if name.endswith(_WRITING_STEPS)]
    if not reports:
        return {}
    rows = reduce(DataFrame.unionByName, reports)
    has_written = f.col("outcome").isin(Outcome.WRITTEN.value, Outcome.OVERTAKEN.value)
    written = rows.where(has_written & (f.col("step") != MigrationStep.TO_ZOOKEEPER.value))
    found = written.groupBy("target").agg(f.max_by("step", "reported_ms").alias("step"))
    return {each["target"]: each["step"] for each in found.toLocalIterator()}


_WRITING_STEPS: Final = (f"-{MigrationStep.APPLY}", f"-{MigrationStep.ROLLBACK}")
"""The ends of the names of reports about steps that write."""
