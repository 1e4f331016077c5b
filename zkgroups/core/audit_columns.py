"""The columns of an audit: its commits, and the last commit of each partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .table_columns import LAYOUT_COLUMN, LOG_COLUMNS, ColumnType, TableColumn

KEY: Final = ("group", "topic", "partition")
"""The columns that identify a partition of a group."""

_OFFSET: Final = TableColumn("offset", ColumnType.LONG, "the next message to read; null if malformed, see `problem`")
_COMMITTED_AT: Final = TableColumn("committed_at", ColumnType.TIMESTAMP, "when it was written, by the server's clock")
_ZXID: Final = TableColumn("zxid", ColumnType.LONG, "the transaction that wrote it")
_BATCH: Final = TableColumn("batch", ColumnType.LONG, "the batch in which it was read")
_KEY: Final = (
    TableColumn("group", ColumnType.STRING, "the group"),
    TableColumn("topic", ColumnType.STRING, "the topic"),
    TableColumn("partition", ColumnType.INTEGER, "the partition"),
)

COMMITS: Final[Sequence[TableColumn]] = (
    *_KEY,
    TableColumn("before", ColumnType.LONG, "the previous offset in the audit; null if this is the first"),
    _OFFSET,
    TableColumn("commit_count", ColumnType.INTEGER, "how often the node was written since its creation"),
    _COMMITTED_AT,
    _ZXID,
    LAYOUT_COLUMN,
    *LOG_COLUMNS,
    TableColumn("problem", ColumnType.STRING, "the reason why the offset is malformed; null if it is not"),
    TableColumn("read_at", ColumnType.TIMESTAMP, "when it was read, by the clock of the reader"),
    _BATCH,
)
"""The columns of a recorded commit."""

STANDING: Final[Sequence[TableColumn]] = (*_KEY, _OFFSET, _COMMITTED_AT, _ZXID, _BATCH)
"""The columns of the last recorded commit of a partition."""

READ: Final[Sequence[str]] = tuple(each.name for each in COMMITS if each.name not in {"before", "batch"})
"""The columns of a commit that the table of offsets has, too."""
