"""The columns of the tables as Arrow types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from ..core.table_columns import ColumnType, TableColumn

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
"""Arrow's type for Spark's TIMESTAMP."""

_IN_ARROW: Final[Mapping[ColumnType, Any]] = {
    ColumnType.STRING: pa.string(),
    ColumnType.BINARY: pa.binary(),
    ColumnType.INTEGER: pa.int32(),
    ColumnType.LONG: pa.int64(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.TIMESTAMP: TIMESTAMP,
    ColumnType.COUNTS: pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)),
}


def arrow_schema(columns: Sequence[TableColumn]) -> Any:
    """Return the Arrow schema of columns."""
    return pa.schema([pa.field(each.name, _IN_ARROW[each.type], each.nullable) for each in columns])
