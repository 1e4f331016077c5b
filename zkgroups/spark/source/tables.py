"""The columns of the tables as Spark's types. `core/table_columns.py` defines them."""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql.types import StructType

from ...core.table_columns import columns_json
from ...core.tables import Table

SCHEMAS: Final = {table: StructType.fromJson(json.loads(columns_json(table))) for table in Table}
