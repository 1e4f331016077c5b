"""Verify snapshots on any file system of Spark. `zkgroups/snapshots/verify.py` has the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from ...core.table_columns import column_types
from ...core.tables import Table
from ...snapshots.verify import KEY, VerifiedSnapshot
from ...snapshots.verify import verify as verify_with
from ..errors import translated
from ..source.table_versions import to_current_columns
from .digest import digest
from .layout import Layout

SCHEMA: Final = StructType(
    [
        StructField("severity", StringType(), False),
        StructField("snapshot", StringType(), False),
        StructField("table", StringType()),
        StructField("finding", StringType(), False),
        StructField("detail", StringType(), False),
    ]
)


def verify_snapshots(spark: SparkSession, destination: str, at: str | None = None) -> DataFrame:
    """Verify all snapshots, or the one chosen by `at`, and return the findings: no rows if all is well.

    `at` is "latest", "previous", a name, or a time. The columns are severity, snapshot, table, finding and detail. A
    snapshot without findings of the severity `error` is intact.
    """
    findings = [finding for each in verify(spark, destination, at) for finding in each.findings]
    columns = {name: [getattr(each, name) for each in findings] for name in SCHEMA.names}
    return spark.createDataFrame(pa.table(columns, pa.schema([(name, pa.string()) for name in columns])), SCHEMA)


def verify(spark: SparkSession, destination: str, at: str | None = None) -> Iterator[VerifiedSnapshot]:
    """Verify snapshots one after the other, and yield each result; incomplete snapshots come last."""
    layout = Layout(spark, destination)
    return verify_with(layout, lambda table, name: _SparkTable(table, layout.read_as_written(table, name)), at)


class _SparkTable:
    """A table of a snapshot, which Spark reads. `StoredTable` describes the methods."""

    def __init__(self, table: Table, rows: DataFrame) -> None:
        self._table = table
        self._rows = rows

    @property
    def columns(self) -> Mapping[str, str]:
        return column_types(self._rows.schema.json())

    def check_types(self) -> None:
        self._current()

    def _current(self) -> DataFrame:
        return to_current_columns(self._rows, self._table, "the table")

    def counts(self, columns: Sequence[str], cluster: str | None) -> Mapping[str, Any]:
        problem = f.col("problem") if "problem" in self._rows.columns else f.lit(None)
        counts = self._rows.agg(
            f.count(f.lit(1)).alias("rows"),
            f.count(problem).alias("problems"),
            f.count_if(f.col("cluster") != f.lit(cluster)).alias("others"),
            digest(StructType([self._rows.schema[name] for name in columns])).alias("digest"),
        )
        with translated("its rows cannot be read"):
            return counts.collect()[0].asDict()

    def duplicates(self) -> tuple[int, Mapping[str, Any]]:
        found = self._current().where("partition is not null").groupBy(*KEY).count().where("count > 1")
        with translated("its rows cannot be read"):
            [row] = found.agg(f.count(f.lit(1)).alias("partitions"), f.min(f.struct(*KEY)).alias("first")).collect()
        return row["partitions"], row["first"]
