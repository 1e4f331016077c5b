"""Counting rows while they are written, so that they need not be read again.

Rows carry an additional column with flags, which is not written. The first row of each group has the flags of the
group, and all other rows have 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..core.migration.offset_decision import Action, Reason
from ..core.migration.plan_rows import Match, MatchRow, Outcome, PlanRow, ReportRow

FLAGS: Final = "group_flags"
GROUP, LEFT, FAILED = 1, 2, 4
FLAG_FIELD: Final = pa.field(FLAGS, pa.int32(), nullable=False)

COUNTED: Final[dict[type[Any], dict[str, type[StrEnum]]]] = {
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
        flags[target] = flags.get(target, GROUP) | LEFT * any(left[run]) | FAILED * any(failed[run])
        start = end
    column = [0] * len(rows)
    for target, first in first_rows.items():
        column[first] = flags[target]
    return rows.append_column(FLAG_FIELD, pa.array(column, pa.int32()))


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


class TallyCounter:
    """Counts rows with flags, batch by batch."""

    def __init__(self, kind: type[Any]) -> None:
        self.rows = 0
        self._kind = kind
        self._flags: Counter[int] = Counter()
        self._words: Counter[str] = Counter()

    def add(self, batch: Any) -> None:
        """Count the rows of one Arrow batch."""
        self.rows += len(batch)
        self._flags.update(batch.column(FLAGS).to_pylist())
        for name in COUNTED[self._kind]:
            found = pc.value_counts(batch.column(name))
            self._words.update(
                dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True))
            )

    @property
    def tally(self) -> Tally:
        """The numbers so far."""
        words = [each.value for kind in COUNTED[self._kind].values() for each in kind]
        return Tally(
            groups=self._with(GROUP),
            left=self._with(LEFT),
            failed=self._with(FAILED),
            counts={word: self._words[word] for word in words if self._words[word]},
        )

    def _with(self, flag: int) -> int:
        return sum(count for flags, count in self._flags.items() if flags & flag)
