"""Reads the shares of a table in the tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..core.selection import Selection
from ..datadir.data_dir import DataDirState
from ..tables.share_reader import read_share
from ..tables.source_options import SourceOptions
from .table_counts import CountSum, TableCounts


@dataclass(frozen=True, slots=True)
class TableShares:
    """A function from batches with the numbers of shares to the rows of these shares.

    - `options`, `shares`: what to read, and in how many shares.
    - `state`: the state of a data directory, which the driver has found.
    - `counted`: adds up the rows.
    """

    options: SourceOptions
    shares: int
    state: DataDirState | None = None
    counted: CountSum | None = None

    def __call__(self, numbers: Iterator[Any]) -> Iterator[Any]:
        for some in numbers:
            for number in some.column(0).to_pylist():
                yield from self._share(number)

    def _share(self, number: int) -> Iterator[Any]:
        selection = Selection(self.options.groups, self.options.topics, number, self.shares)
        for batch in read_share(self.options, selection, self.state):
            if self.counted is not None:
                self.counted.add(TableCounts.of(batch))
            yield batch
