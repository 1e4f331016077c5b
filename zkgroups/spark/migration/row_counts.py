"""What is in rows, counted while they are written: nobody reads them again for that.

With the rows goes a column that is not written. Of each group the first row has in it what is to be known of it, and
all others have nothing there.
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
from ..storage.completeness import write_and_list
from .arrow_rows import schema

_NAME: Final = "tally"
_GROUP, _LEFT, _FAILED = 1, 2, 4

_WORDS: Final[dict[type[Any], dict[str, type[StrEnum]]]] = {
    PlanRow: {"action": Action, "reason": Reason},
    ReportRow: {"outcome": Outcome},
    MatchRow: {"match": Match},
}
"""The columns by whose words rows are counted."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How much there is of what."""

    groups: int
    left: int
    """Groups that something is in the way of."""
    failed: int
    """Groups of which not all is done as it was to be."""
    counts: Mapping[str, int]


def with_tally(kind: type[Any]) -> StructType:
    """The columns of such rows, and of what is counted."""
    return StructType([*schema(kind).fields, StructField(_NAME, IntegerType(), False)])


def tallied(kind: type[Any], rows: Any) -> Any:
    """An Arrow table of whole groups, with what is to be counted."""
    noted: dict[str, int] = {}
    firsts: dict[str, int] = {}
    left, failed = _flags(kind, rows)
    names = rows.column("group" if kind is PlanRow else "target").combine_chunks()
    runs = pc.run_end_encode(names)
    start = 0
    for target, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        firsts.setdefault(target, start)
        its = slice(start, end)
        noted[target] = noted.get(target, _GROUP) | _LEFT * any(left[its]) | _FAILED * any(failed[its])
        start = end
    column = [0] * len(rows)
    for target, first in firsts.items():
        column[first] = noted[target]
    return rows.append_column(pa.field(_NAME, pa.int32(), nullable=False), pa.array(column, pa.int32()))


def _flags(kind: type[Any], rows: Any) -> tuple[Any, Any]:
    """Of each row whether its group is left, or failed, because of it."""
    nowhere: list[bool] = []
    if kind is PlanRow:
        return pc.greater(pc.list_value_length(rows.column("obstacles")), 0).to_pylist(), nowhere
    if kind is ReportRow:
        outcomes = rows.column("outcome")
        failed = pa.array([Outcome.FAILED.value, Outcome.OVERTAKEN.value])
        return pc.equal(outcomes, Outcome.LEFT.value).to_pylist(), pc.is_in(outcomes, failed).to_pylist()
    return nowhere, nowhere


def write_and_count(rows: DataFrame, kind: type[Any], path: str) -> Tally:
    """Write tallied rows where a folder says, and tell what was written."""
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
