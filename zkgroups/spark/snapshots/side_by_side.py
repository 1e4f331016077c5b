"""Read the offsets of two snapshots in aligned parts.

Each share of a snapshot is written to its own files. A topic's share depends on its name and the number of shares (see
`selection.py`). So if two snapshots have equally many shares, one task can join the files of one share without a
shuffle. Otherwise Spark shuffles all rows of both.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from ...core.tables import Table
from ...snapshots.clusters import ChosenSnapshot
from ...storage.snapshot_summary import Summary
from ..source.table_versions import strict_reader, to_current_columns
from .layout import Layout

_MOST: Final = 64
"""With more shares, planning a union of them takes longer than a shuffle."""

_SHARE: Final = re.compile("part-([0-9]+)-.*")


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One of the two snapshots, with its summary. All of its files are present."""

    layout: Layout
    name: str
    summary: Summary | None
    cluster: str | None

    @classmethod
    def of(cls, spark: SparkSession, choice: ChosenSnapshot) -> DiffSide:
        """Check that all files of the snapshot are present."""
        layout = Layout(spark, choice.destination)
        summary = layout.summary(choice.name)
        layout.check_intact(Table.OFFSETS, choice.name, summary)
        return cls(layout, choice.name, summary, choice.cluster)

    @property
    def origin(self) -> str:
        """The snapshot and its folder, for messages."""
        return f"snapshot {self.name} in {self.layout}"

    def rows(self) -> DataFrame:
        """Return the offsets of the chosen cluster, in the columns of this version."""
        everything = self.layout.read_as_written(Table.OFFSETS, self.name)
        return self.only_cluster(to_current_columns(everything, Table.OFFSETS, self.origin))

    @property
    def may_have_forbidden_nodes(self) -> bool:
        """Whether the snapshot may report forbidden nodes."""
        return self.summary is None or self.summary.tables[Table.OFFSETS].problems > 0

    def only_cluster(self, rows: DataFrame) -> DataFrame:
        """Filter by cluster, unless the summary shows that all rows belong to it."""
        if self.cluster is None or (self.summary is not None and self.summary.cluster == self.cluster):
            return rows
        return rows.where(f.col("cluster") == self.cluster)

    def shares(self) -> Mapping[int, Sequence[str]]:
        """Return the files of each share; empty if unknown."""
        if self.summary is None or not 0 < self.summary.shares <= _MOST:
            return {}
        folder = self.layout.table(Table.OFFSETS, self.name)
        found: defaultdict[int, list[str]] = defaultdict(list)
        for file in self.summary.tables[Table.OFFSETS].files:
            if (match := _SHARE.fullmatch(file)) is None:
                return {}
            found[int(match[1])].append(f"{folder}/{file}")
        return found if max(found, default=0) < self.summary.shares else {}

    def read_files(self, spark: SparkSession, files: Sequence[str]) -> DataFrame:
        """Read some of its files in one task."""
        assert self.summary is not None
        columns = StructType.fromJson(json.loads(self.summary.tables[Table.OFFSETS].columns))
        read = strict_reader(spark).schema(columns).parquet(*files)
        return self.only_cluster(to_current_columns(read, Table.OFFSETS, self.origin)).coalesce(1)


def aligned_parts(spark: SparkSession, before: DiffSide, after: DiffSide) -> list[tuple[DataFrame, DataFrame]]:
    """Split both into parts, so that each offset is in the same part of both."""
    before_files, after_files = before.shares(), after.shares()
    if not before_files or before_files.keys() != after_files.keys() or _count(before) != _count(after):
        return [(before.rows(), after.rows())]
    return [
        (before.read_files(spark, before_files[k]), after.read_files(spark, after_files[k]))
        for k in sorted(before_files)
    ]


def _count(side: DiffSide) -> int:
    return 0 if side.summary is None else side.summary.shares
