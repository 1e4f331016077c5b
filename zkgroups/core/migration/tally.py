"""Counting the rows of plans, reports and comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from .offset_decision import Action, Reason
from .plan_rows import Match, MatchRow, Outcome, PlanRow, ReportRow

_COUNTED: Final[dict[type[Any], dict[str, type[StrEnum]]]] = {
    PlanRow: {"action": Action, "reason": Reason},
    ReportRow: {"outcome": Outcome},
    MatchRow: {"match": Match},
}
"""The fields whose values are counted."""

_WORDS: Final = [[word.value for words in fields.values() for word in words] for fields in _COUNTED.values()]
"""The counted values of each kind of row, in order."""

_FAILURES: Final = (Outcome.FAILED, Outcome.OVERTAKEN)


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of groups and rows."""

    rows: int = 0
    groups: int = 0
    left: int = 0
    """Groups with obstacles."""
    failed: int = 0
    """Groups with failed or overtaken rows."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Rows by action and reason, by outcome, or by match."""

    @classmethod
    def of(cls, kind: type[Any], rows: Sequence[Any]) -> Tally:
        """Count all rows of some groups."""
        found: dict[str, int] = {}
        for name, words in _COUNTED.get(kind, {}).items():
            by_word = Counter(map(attrgetter(name), rows))
            found |= {word.value: by_word[word] for word in words if by_word[word]}
        groups = set(map(attrgetter("group" if kind is PlanRow else "target"), rows))
        left, failed = _left_and_failed(kind, rows)
        return cls(len(rows), len(groups), len(left), len(failed), found)

    def __add__(self, other: Tally) -> Tally:
        counts = Counter(self.counts) + Counter(other.counts)
        words = next(words for words in _WORDS if counts.keys() <= set(words))
        return Tally(
            self.rows + other.rows,
            self.groups + other.groups,
            self.left + other.left,
            self.failed + other.failed,
            {word: counts[word] for word in words if counts[word]},
        )


def _left_and_failed(kind: type[Any], rows: Sequence[Any]) -> tuple[set[str], set[str]]:
    """Return the groups that count as left, and as failed."""
    if kind is PlanRow:
        return {row.group for row in rows if row.obstacles}, set()
    if kind is ReportRow:
        left = {row.target for row in rows if row.outcome is Outcome.LEFT}
        return left, {row.target for row in rows if row.outcome in _FAILURES}
    return set(), set()
