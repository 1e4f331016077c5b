"""Verify snapshots in a folder of this machine without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..core.table_columns import COLUMNS, Table
from ..tables.parquet_files import to_columns
from .digest import digest
from .local_snapshot import ArrowLayout
from .verify import KEY, VerifiedSnapshot
from .verify import verify as verify_with


def verify(destination: str, at: str | None = None) -> Iterator[VerifiedSnapshot]:
    """Verify snapshots one after the other, and yield each result; incomplete snapshots come last."""
    layout = ArrowLayout.at(destination)
    return verify_with(layout, lambda table, name: _ArrowTable(table, layout.read_as_written(table, name)), at)


class _ArrowTable:
    """A table of a snapshot, in memory. `StoredTable` describes the methods."""

    def __init__(self, table: Table, rows: Any) -> None:
        self._table = table
        self._rows = rows

    @property
    def columns(self) -> Mapping[str, str]:
        return {field.name: _in_spark(field.type) for field in self._rows.schema}

    def check_types(self) -> None:
        to_columns(self._rows, COLUMNS[self._table], "the table")

    def counts(self, columns: Sequence[str], cluster: str | None) -> Mapping[str, Any]:
        problems = len(self._rows) - self._rows.column("problem").null_count if "problem" in self.columns else 0
        others = 0
        if cluster is not None:
            others = pc.sum(pc.not_equal(self._rows.column("cluster"), cluster)).as_py() or 0
        found = digest(self._rows.select(columns).combine_chunks().to_batches())
        return {"rows": len(self._rows), "problems": problems, "others": others, "digest": found}

    def duplicates(self) -> tuple[int, Mapping[str, Any]]:
        rows = to_columns(self._rows, COLUMNS[self._table], "the table")
        rows = rows.filter(pc.is_valid(rows.column("partition")))
        counted = rows.select(KEY).group_by(KEY).aggregate([([], "count_all")])
        found = counted.filter(pc.greater(counted.column("count_all"), 1)).sort_by(
            [(each, "ascending") for each in KEY]
        )
        return len(found), found.slice(0, 1).to_pylist()[0] if len(found) else {}


def _in_spark(kind: Any) -> str:
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_map(kind):
        return f"map<{_in_spark(kind.key_type)},{_in_spark(kind.item_type)}>"
    return {pa.int32(): "int", pa.int64(): "bigint"}.get(kind, str(kind))
