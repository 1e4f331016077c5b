"""The rows of a plan, or of a report, one after the other in the driver, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.sql import SparkSession

from ...core.migration.plan_rows import Match, MatchRow, Outcome, PlanRow, ReportRow, Step
from ...core.migration.rules import Action, Reason
from ..errors import translated
from .arrow_rows import collected, schema, word
from .plan_folder import Folder
from .planning import read_plan
from .reports import read_report

_ORDER: Final = ("target", "group", "topic", "partition")


def plan_head(spark: SparkSession, destination: str) -> PlanRow:
    """Any row of a plan: it has what is the same for all."""
    rows = collected(PlanRow, read_plan(spark, destination).limit(1))
    if not rows:
        raise Folder(spark, destination).without_rows()
    return rows[0]


def plan_rows(spark: SparkSession, destination: str) -> Iterator[PlanRow]:
    """All rows in the order of their targets; no more of them than one file has is in memory at a time."""
    rows = read_plan(spark, destination).sort(*_ORDER).select(*schema(PlanRow).names)
    with translated(f"the plan in {destination} cannot be read"):
        for row in rows.toLocalIterator():
            found = row.asDict()
            words = {"action": word(Action, found["action"]), "reason": word(Reason, found["reason"])}
            yield PlanRow(**found | words | {"obstacles": tuple(found["obstacles"])})


def report_rows(spark: SparkSession, destination: str, name: str | None = None) -> Iterator[ReportRow | MatchRow]:
    """The same for a report, the newest if none is named: what was done with each offset, or how both sides compare."""
    rows = read_report(spark, destination, name).sort(*_ORDER)
    with translated(f"the report in {destination} cannot be read"):
        for row in rows.toLocalIterator():
            found = row.asDict()
            if "match" in found:
                yield MatchRow(**found | {"match": word(Match, found["match"])})
            else:
                yield ReportRow(
                    **found | {"step": word(Step, found["step"]), "outcome": word(Outcome, found["outcome"])}
                )
