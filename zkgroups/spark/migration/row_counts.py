"""Count rows and groups while the rows are written, so that they need not be read again.

The rows carry a tally column that is not written. The first row of each group holds flags for the group there, all
others hold 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StructField, StructType

from ...core.migration.plan_rows import Match, MatchRow, Outcome, PlanRow, ReportRow
from ...core.migration.rules import Action, Reason
from ..storage.destination import write_and_list
from .arrow_rows import schema

_NAME: Final = "tally"
_GROUP, _LEFT, _FAILED = 1, 2, 4

_WORDS: Final[dict[type[Any], dict[str, type[StrEnum]]]] = {
    PlanRow: {"action": Action, "reason": Reason},
    ReportRow: {"outcome": Outcome},
    MatchRow: {"match": Match},
}
"""The columns whose values are counted."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The numbers of groups and rows."""

    groups: int
    left: int
    """The number of groups with obstacles."""
    failed: int
    """The number of groups with failed or overtaken rows."""
    counts: Mapping[str, int]


def schema_with_tally(kind: type[Any]) -> StructType:
    """Return the Spark schema of a row class with the tally column."""
    return StructType([*schema(kind).fields, StructField(_NAME, IntegerType(), False)])


def with_tally_column(kind: type[Any], rows: Any) -> Any:
    """Add the tally column to an Arrow table of whole groups."""
    flags: dict[str, int] = {}
    first_rows: dict[str, int] = {}
    left, failed = _flags(kind, rows)
    names = rows.column("group" if kind is PlanRow else "target").combine_chunks()
    runs = pc.run_end_encode(names)
    start = 0
    for target, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        first_rows.setdefault(target, start)
        of_target = slice(start, end)
        flags[target] = flags.get(target, _GROUP) | _LEFT * any(left[of_target]) | _FAILED * any(failed[of_target])
        start = end
    column = [0] * len(rows)
    for target, first in first_rows.items():
        column[first] = flags[target]
    return rows.append_column(pa.field(_NAME, pa.int32(), nullable=False), pa.array(column, pa.int32()))


def _flags(kind: type[Any], rows: Any) -> tuple[Any, Any]:
    """Return for each row whether it makes its group count as left, or as failed."""
    nowhere: list[bool] = []
    if kind is PlanRow:
        return pc.greater(pc.list_value_length(rows.column("obstacles")), 0).to_pylist(), nowhere
    if kind is ReportRow:
        outcomes = rows.column("outcome")
        failed = pa.array([Outcome.FAILED.value, Outcome.OVERTAKEN.value])
        return pc.equal(outcomes, Outcome.LEFT.value).to_pylist(), pc.is_in(outcomes, failed).to_pylist()
    return nowhere, nowhere


def write_and_count(rows: DataFrame, kind: type[Any], path: str) -> Tally:
    """Write rows with a tally column, and return the counts."""
    found = {name: int(count or 0) for name, count in write_and_list(rows, path, *_sums(kind), without=_NAME).items()}
    words = [each.value for kind in _WORDS[kind].values() for each in kind]
    return Tally(
        groups=found["groups"],
        left=found["groups left"],
        failed=found["groups failed"],
        counts={word: found[word] for word in words if found[word]},
    )


def _sums(kind: type[Any]) -> list[Column]:
    column = f.col(_NAME)
    groups = {"groups": _GROUP, "groups left": _LEFT, "groups failed": _FAILED}
    sums = [f.count_if(column.bitwiseAND(bit) > 0).alias(name) for name, bit in groups.items()]
    words = ((name, word) for name, kind in _WORDS[kind].items() for word in kind)
    return sums + [f.count_if(f.col(name) == word.value).alias(word.value) for name, word in words]
