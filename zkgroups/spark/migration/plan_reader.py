"""The rows of a plan or a report, streamed to the driver one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.sql import SparkSession

from ...core.migration.plan_rows import MatchRow, PlanRow, ReportRow
from ..errors import translated
from .arrow_rows import collect_rows, row, schema
from .plan_folder import PlanFolder
from .planning import read_plan
from .reports import read_report

_ORDER: Final = ("target", "group", "topic", "partition")


def plan_head(spark: SparkSession, destination: str) -> PlanRow:
    """Return any row of a plan, for the values that are the same in all rows."""
    rows = collect_rows(PlanRow, read_plan(spark, destination).limit(1))
    if not rows:
        raise PlanFolder(spark, destination).without_rows()
    return rows[0]


def plan_rows(spark: SparkSession, destination: str) -> Iterator[PlanRow]:
    """Yield all rows of a plan, sorted by target. At most the rows of one file are in memory."""
    found = read_plan(spark, destination).sort(*_ORDER).select(*schema(PlanRow).names)
    with translated(f"the plan in {destination} cannot be read"):
        for each in found.toLocalIterator():
            yield row(PlanRow, each.asDict())


def report_rows(spark: SparkSession, destination: str, name: str | None = None) -> Iterator[ReportRow | MatchRow]:
    """Yield all rows of a report, the latest if none is named, sorted by target."""
    found = read_report(spark, destination, name).sort(*_ORDER)
    is_comparison = "match" in found.columns
    with translated(f"the report in {destination} cannot be read"):
        for each in found.toLocalIterator():
            yield row(MatchRow, each.asDict()) if is_comparison else row(ReportRow, each.asDict())
