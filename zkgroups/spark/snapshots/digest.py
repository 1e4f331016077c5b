"""The digest of a table in the summary of a snapshot, computed by Spark."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import MapType, StructType


def digest(columns: StructType) -> Column:
    """Return an order-independent digest of all rows."""
    return f.hex(f.coalesce(f.bit_xor(row_hash(columns)), f.lit(0)))


def row_hash(columns: StructType) -> Column:
    """Return a hash of one row. Maps become lists, because Spark cannot hash maps."""
    return f.xxhash64(
        *(f.map_entries(f.col(c.name)) if isinstance(c.dataType, MapType) else f.col(c.name) for c in columns)
    )
