"""Read tables written by other versions: missing columns become null, unknown columns are dropped."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, IntegerType, LongType

from ...core.tables import Table
from ...exceptions import SparkJobError
from ..pyspark_internals import literal_paths
from .tables import SCHEMAS

_WIDER: Final = {(IntegerType(), LongType())}
"""Types of this version, with the wider types that a later version may use instead. Wider columns are kept."""


def strict_reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader that takes paths literally, because a folder may be named [1], and verifies checksums."""
    reader = literal_paths(spark.read)
    return reader.option("parquet.page.verify-checksum.enabled", "true")


def to_current_columns(frame: DataFrame, table: Table, origin: str) -> DataFrame:
    """Convert a table to the columns of this version. Errors name its origin, such as a snapshot.

    A frame that has these columns is returned unchanged, because a select is slow.
    """
    there = {field.name: field.dataType for field in frame.schema}
    if list(there.items()) == [(each.name, each.dataType) for each in SCHEMAS[table]]:
        return frame
    return frame.select(*(_column(each.name, each.dataType, there.get(each.name), origin) for each in SCHEMAS[table]))


def _column(name: str, wanted: DataType, found: DataType | None, origin: str) -> Column:
    if found is None:
        return f.lit(None).cast(wanted).alias(name)
    if found == wanted or (wanted, found) in _WIDER:
        return f.col(name)
    if (found, wanted) in _WIDER:
        return f.col(name).cast(wanted).alias(name)
    if found.typeName() == wanted.typeName():  # maps that differ only in nullability
        return f.col(name)
    raise SparkJobError(
        f"{origin} has a column {name} of type {found.simpleString()}, not {wanted.simpleString()}: the files were "
        "changed, or written by a later version of zkgroups"
    )
