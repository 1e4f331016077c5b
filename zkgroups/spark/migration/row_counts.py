"""Counting rows while they are written, so that they need not be read again.

Rows carry an additional column with flags, which is not written. The first row of each group has the flags of the
group, and all other rows have 0.
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

from ...core.migration.offset_decision import Action, Reason
from ...core.migration.plan_rows import Match, MatchRow, Outcome, PlanRow, ReportRow
from ..storage.atomic_folder import write_and_list
from .arrow_rows import schema

_FLAGS: Final = "group_flags"
_GROUP, _LEFT, _FAILED = 1, 2, 4

_COUNTED: Final[dict[type[Any], dict[str, type[StrEnum]]]] = {
    PlanRow: {"action": Action, "reason": Reason},
    ReportRow: {"outcome": Outcome},
    MatchRow: {"match": Match},
}
"""The columns whose values are counted."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of groups and rows that were written."""

    groups: int
    left: int
    """Groups with obstacles."""
    failed: int
    """Groups with failed or overtaken rows."""
    counts: Mapping[str, int]
    """Rows by action and reason, by outcome, or by match."""


def schema_with_tally(kind: type[Any]) -> StructType:
    """Return the columns of these rows and of the flags."""
    return StructType([*schema(kind).fields, StructField(_FLAGS, IntegerType(), False)])


def with_tally_column(kind: type[Any], rows: Any) -> Any:
    """Add the flags to an Arrow table of whole groups."""
    flags: dict[str, int] = {}
    first_rows: dict[str, int] = {}
    left, failed = _row_flags(kind, rows)
    names = rows.column("group" if kind is PlanRow else "target").combine_chunks()
    runs = pc.run_end_encode(names)
    start = 0
    for target, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        first_rows.setdefault(target, start)
        run = slice(start, end)
        flags[target] = flags.get(target, _GROUP) | _LEFT * any(left[run]) | _FAILED * any(failed[run])
        start = end
    column = [0] * len(rows)
    for target, first in first_rows.items():
        column[first] = flags[target]
    return rows.append_column(pa.field(_FLAGS, pa.int32(), nullable=False), pa.array(column, pa.int32()))


def _row_flags(kind: type[Any], rows: Any) -> tuple[Any, Any]:
    """Return for each row whether its group counts as left, or as failed, because of it."""
    never: list[bool] = []
    if kind is PlanRow:
        return pc.greater(pc.list_value_length(rows.column("obstacles")), 0).to_pylist(), never
    if kind is ReportRow:
        outcomes = rows.column("outcome")
        failed = pa.array([Outcome.FAILED.value, Outcome.OVERTAKEN.value])
        return pc.equal(outcomes, Outcome.LEFT.value).to_pylist(), pc.is_in(outcomes, failed).to_pylist()
    return never, never


def write_and_count(rows: DataFrame, kind: type[Any], path: str) -> Tally:
    """Write rows with flags to a folder, and return the counts."""
    found = {name: int(count or 0) for name, count in write_and_list(rows, path, *_sums(kind), without=_FLAGS).items()}
    words = [each.value for kind in _COUNTED[kind].values() for each in kind]
    return Tally(
        groups=found["groups"],
        left=found["groups left"],
        failed=found["groups failed"],
        counts={word: found[word] for word in words if found[word]},
    )


def _sums(kind: type[Any]) -> list[Column]:
    flags = f.col(_FLAGS)
    groups = {"groups": _GROUP, "groups left": _LEFT, "groups failed": _FAILED}
    sums = [f.count_if(flags.bitwiseAND(bit) > 0).alias(name) for name, bit in groups.items()]
    words = ((name, word) for name, kind in _COUNTED[kind].items() for word in kind)
    return sums + [f.count_if(f.col(name) == word.value).alias(word.value) for name, word in words]
