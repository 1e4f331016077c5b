"""Build Arrow batches row by row, from the known values of each row."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import pyarrow as pa

from ..core.table_columns import COLUMNS
from ..core.tables import Table
from ..core.times import LATEST_MS
from ..core.znodes.values import ForbiddenNode, UnreadableNode
from .arrow_schema import arrow_schema

RowValues: TypeAlias = dict[str, Any]
"""The known values of a row, by column name."""

ROWS: Final = 10_000
"""The approximate number of rows per batch. More rows are not faster."""


def batch_of(table: Table, rows: Iterable[RowValues], cluster: str) -> Any:
    """Return a batch of these rows, which were read now."""
    at = now()
    return pa.RecordBatch.from_pylist(
        [row | {"cluster": cluster, "read_at": at} for row in rows], schema=arrow_schema(COLUMNS[table])
    )


def malformed_columns(node: UnreadableNode) -> RowValues:
    """Return the columns `raw` and `problem` of an unreadable node."""
    raw = None if isinstance(node, ForbiddenNode) else node.data
    return {"raw": raw, "problem": f"{node.path}: {node.reason}"}


def stat_columns(version: int, zxid: int, modified_ms: int, created_ms: int) -> RowValues:
    """Return the columns of an offset that come from the stat of its node."""
    times = {"committed_at": time_column(modified_ms), "created_at": time_column(created_ms)}
    return {"commit_count": version, "zxid": zxid, **times}


def time_column(ms: int) -> int | None:
    """Convert to microseconds; return None if out of range."""
    return ms * 1000 if 0 <= ms <= LATEST_MS else None


def now() -> int:
    """Return the current time in microseconds."""
    return time.time_ns() // 1000
