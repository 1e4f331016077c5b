"""Iterate over the rows of a plan or a report on the driver, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.sql import SparkSession

from ...core.migration.plan_rows import Match, MatchRow, Outcome, PlanRow, ReportRow, Step
from ...core.migration.rules import Action, Reason
from ..errors import translated
from .arrow_rows import collect_rows, parse_enum, schema
from .plan_folder import PlanFolder
from .planning import read_plan
from .reports import read_report

_ORDER: Final = ("target", "group", "topic", "partition")


def plan_head(spark: SparkSession, destination: str) -> PlanRow:
    """Return any row of a plan, for the columns that are equal in all rows."""
    rows = collect_rows(PlanRow, read_plan(spark, destination).limit(1))
    if not rows:
        raise PlanFolder(spark, destination).without_rows()
    return rows[0]


def plan_rows(spark: SparkSession, destination: str) -> Iterator[PlanRow]:
    """Iterate over all rows, sorted by target, with at most the rows of one file in memory."""
    rows = read_plan(spark, destination).sort(*_ORDER).select(*schema(PlanRow).names)
    with translated(f"the plan in {destination} cannot be read"):
        for row in rows.toLocalIterator():
            found = row.asDict()
            words = {"action": parse_enum(Action, found["action"]), "reason": parse_enum(Reason, found["reason"])}
            yield PlanRow(**found | words | {"obstacles": tuple(found["obstacles"])})


def report_rows(spark: SparkSession, destination: str, name: str | None = None) -> Iterator[ReportRow | MatchRow]:
    """Iterate over the rows of a report, sorted by target; of the latest report by default."""
    rows = read_report(spark, destination, name).sort(*_ORDER)
    with translated(f"the report in {destination} cannot be read"):
        for row in rows.toLocalIterator():
            found = row.asDict()
            if "match" in found:
                yield MatchRow(**found | {"match": parse_enum(Match, found["match"])})
            else:
                yield ReportRow(
                    **found
                    | {"step": parse_enum(Step, found["step"]), "outcome": parse_enum(Outcome, found["outcome"])}
                )
