"""Columns as Spark's types. `core/` defines them: `table_columns.py`, `audit_columns.py`, `history_columns.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import StructType

from ...core.table_columns import COLUMNS, TableColumn, columns_json
from ...core.tables import Table


def spark_schema(columns: Sequence[TableColumn]) -> StructType:
    """Return the Spark schema of columns."""
    return StructType.fromJson(json.loads(columns_json(columns)))


SCHEMAS: Final = {table: spark_schema(COLUMNS[table]) for table in Table}
