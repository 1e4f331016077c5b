"""Rows of the table of offsets, for layouts other than the legacy one. They have no owners.

An offset may need several nodes, and a node may hold several offsets. So they are converted row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..core.layouts.layout import Layout, LayoutOffset
from ..core.tables import Table
from ..core.znodes.values import CommittedOffset
from .rows import ROWS, RowValues, batch_of, malformed_columns, stat_columns


def layout_batches(layout: Layout, groups: Iterable[tuple[str, list[LayoutOffset]]], cluster: str) -> Iterator[Any]:
    """Convert the offsets of groups to Arrow batches."""
    rows: list[RowValues] = []
    for _group, offsets in groups:
        for each in offsets:
            rows.append(_row(layout, each))
            if len(rows) >= ROWS:
                yield batch_of(Table.OFFSETS, rows, cluster)
                rows = []
    if rows:
        yield batch_of(Table.OFFSETS, rows, cluster)


def _row(layout: Layout, offset: LayoutOffset) -> RowValues:
    found, node = offset.found, offset.node
    row: RowValues = {
        "group": offset.group,
        "topic": offset.topic,
        "partition": offset.partition,
        "layout": layout.text,
    }
    if node is not None:
        row |= stat_columns(node.version, node.zxid, node.modified_ms, node.created_ms)
    return row | ({"offset": found.offset} if isinstance(found, CommittedOffset) else malformed_columns(found))
