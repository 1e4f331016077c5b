"""The digest that Arrow computes is the one that Spark computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from zkgroups.core.table_columns import COLUMNS
from zkgroups.core.tables import Table
from zkgroups.snapshots.digest import digest
from zkgroups.spark.snapshots.digest import digest as digest_of
from zkgroups.spark.source.tables import SCHEMAS
from zkgroups.tables.arrow_schema import arrow_schema

ROWS = 150
LENGTHS = [*range(18), 31, 32, 33, 36, 39, 40, 63, 64, 65, 71, 100]


def values(field: pa.Field) -> Sequence[Any]:
    """Texts of every length that XXH64 treats in a different way, the limits of numbers, and null."""
    match str(field.type):
        case "int32":
            found: list[Any] = [0, -1, 1, 2**31 - 1, -(2**31)]
        case "int64":
            found = [0, -1, 1, 2**63 - 1, -(2**63)]
        case "string":
            found = ["é" * (length // 2) + "x" * (length % 2) for length in LENGTHS]
        case "binary":
            found = [bytes(range(200, 200 - length, -1)) for length in LENGTHS]
        case "timestamp[us, tz=UTC]":
            found = [0, 1, 1_700_000_000_000_000]
        case _:
            found = [[(f"topic-{number}", number) for number in range(count)] for count in range(4)]
    return [*found, None] if field.nullable else found


def rows(table: Table) -> pa.Table:
    columns = {}
    for place, field in enumerate(arrow_schema(COLUMNS[table])):
        each = values(field)
        columns[field.name] = pa.array([each[(place + row) % len(each)] for row in range(ROWS)], field.type)
    return pa.table(columns, arrow_schema(COLUMNS[table]))


def test_the_digest_of_arrow_equals_that_of_spark(spark: SparkSession) -> None:
    for table in Table:
        found = rows(table)
        in_spark = spark.createDataFrame(found, SCHEMAS[table])
        [expected, one] = [
            frame.agg(digest_of(SCHEMAS[table])).collect()[0][0]
            for frame in (in_spark, in_spark.where(f.col("cluster") == found["cluster"][3].as_py()).limit(1))
        ]
        assert digest(found.to_batches()) == expected
        assert digest(found.to_batches(max_chunksize=7)) == expected
        assert digest(found.slice(3, 1).to_batches()) == one
        assert digest(found.slice(0, 0).to_batches()) == "0"
