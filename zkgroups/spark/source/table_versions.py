"""Tables as other versions wrote them: what an older one lacks is null, what a later one adds is left out."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, IntegerType, LongType

from ...exceptions import SparkJobError
from ..errors import translated
from ..snapshots.layout import Layout
from .tables import SCHEMAS, Table

_WIDER: Final = {(IntegerType(), LongType())}
"""A type of ours, and what a later version may have made of it: such a column is left as it was found."""


def as_it_is(spark: SparkSession, layout: Layout, table: Table, name: str) -> DataFrame:
    """As it was written, with its own columns."""
    with translated(f"snapshot {name} cannot be read"):
        return strict_reader(spark).parquet(layout.table(table, name))


def strict_reader(spark: SparkSession) -> DataFrameReader:
    """Takes paths as they are, for a folder may be called [1]; what was damaged is an error where Parquet can tell."""
    reader = spark.read.option("__globPaths__", "false")
    return reader.option("parquet.page.verify-checksum.enabled", "true")


def as_today(frame: DataFrame, table: Table) -> DataFrame:
    """In the columns of this version; what has them already is left as it is, for Spark takes long to name them all."""
    there = {field.name: field.dataType for field in frame.schema}
    if list(there.items()) == [(each.name, each.dataType) for each in SCHEMAS[table]]:
        return frame
    return frame.select(*(_column(each.name, each.dataType, there.get(each.name)) for each in SCHEMAS[table]))


def _column(name: str, wanted: DataType, found: DataType | None) -> Column:
    if found is None:
        return f.lit(None).cast(wanted).alias(name)
    if found == wanted or (wanted, found) in _WIDER:
        return f.col(name)
    if (found, wanted) in _WIDER:
        return f.col(name).cast(wanted).alias(name)
    if found.typeName() == wanted.typeName():  # of a map only what it says of nulls may differ
        return f.col(name)
    raise SparkJobError(f"the column {name} is {found.simpleString()}: that cannot be read as {wanted.simpleString()}")
