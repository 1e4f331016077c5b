"""The counts of a table, and the digest of its rows, added up batch by batch while it is written.

Spark adds up the counts of its tasks with an accumulator: see `CountAddition`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ..storage.snapshot_summary import LagSummary
from ..tables.log_ends import lags
from .digest import digest


@dataclass(frozen=True, slots=True)
class TableCounts:
    """The counts of some rows, and the xor of their hashes. Lags count only if the rows have log ends."""

    rows: int = 0
    problems: int = 0
    """The number of rows with a problem."""
    forbidden: int = 0
    """The number of rows of forbidden nodes."""
    hashes: int = 0
    known_lags: int = 0
    total_lag: int = 0
    unknown_lags: int = 0

    @classmethod
    def of(cls, rows: Any) -> TableCounts:
        """Count the rows of an Arrow table or batch."""
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        problem, raw = rows.column("problem"), rows.column("raw")
        problems = len(rows) - problem.null_count
        forbidden = pc.sum(pc.and_(pc.is_valid(problem), pc.is_null(raw))).as_py() if problems else 0
        counts = cls(len(rows), problems, forbidden, int(digest(batches), 16))
        return counts + _lag_counts(rows) if "log_end" in rows.schema.names else counts

    def __add__(self, other: TableCounts) -> TableCounts:
        return TableCounts(
            self.rows + other.rows,
            self.problems + other.problems,
            self.forbidden + other.forbidden,
            self.hashes ^ other.hashes,
            self.known_lags + other.known_lags,
            self.total_lag + other.total_lag,
            self.unknown_lags + other.unknown_lags,
        )

    @property
    def digest(self) -> str:
        """The digest of all rows."""
        return f"{self.hashes:X}"

    @property
    def lag(self) -> LagSummary:
        """The lag of all offsets."""
        fits = self.known_lags > 0 and self.total_lag < 2**63
        return LagSummary(self.total_lag if fits else None, self.unknown_lags)


def _lag_counts(rows: Any) -> TableCounts:
    offsets, ends = rows.column("offset"), rows.column("log_end")
    if ends.null_count == len(rows):
        return TableCounts(unknown_lags=len(rows) - offsets.null_count)
    found = lags(offsets, ends)
    known = len(found) - found.null_count
    total = pc.sum(found.cast(pa.decimal128(38))).as_py() or 0
    return TableCounts(known_lags=known, total_lag=int(total), unknown_lags=len(rows) - offsets.null_count - known)


class CountSum(Protocol):
    """A sum of counts, which can be sent to workers. The counts of a failed task do not count."""

    def add(self, counts: TableCounts, /) -> None:
        """Add the counts of some rows."""

    @property
    def value(self) -> TableCounts:
        """The sum."""


class CountAddition:
    """How Spark adds counts: its `AccumulatorParam`. It is here because workers do not import `zkgroups.spark`."""

    def zero(self, _value: TableCounts) -> TableCounts:
        """Return the neutral element."""
        return TableCounts()

    def addInPlace(self, one: TableCounts, other: TableCounts) -> TableCounts:
        """Return the sum."""
        return one + other
