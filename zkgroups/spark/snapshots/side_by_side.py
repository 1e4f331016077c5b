"""The offsets of two snapshots, side by side.

A snapshot is written in shares, each in a file of its own. Which share a topic is in follows from its name and from how
many there are: see `selection.py`. So where two snapshots say that they have as many, what is of one topic is in the
files of one number, and one task brings these together, without a shuffle. Else Spark shuffles all rows of both.
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

from ..source.table_versions import as_it_is, as_today, strict_reader
from ..source.tables import Table
from ..storage.completeness import check_whole
from .clusters import Choice
from .layout import Layout
from .summary import Summary

_MOST: Final = 64
"""So many shares: each is a part of the plan, and a plan of hundreds takes longer than a shuffle."""

_SHARE: Final = re.compile("part-([0-9]+)-.*")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: a snapshot whose files are all there, and what it says of itself."""

    layout: Layout
    name: str
    summary: Summary | None
    cluster: str | None

    @classmethod
    def of(cls, spark: SparkSession, choice: Choice) -> Side:
        """That of a snapshot, which must be whole."""
        layout = Layout(spark, choice.destination)
        summary = layout.summary(choice.name)
        check_whole(layout, Table.OFFSETS, choice.name, summary)
        return cls(layout, choice.name, summary, choice.cluster)

    def rows(self, spark: SparkSession) -> DataFrame:
        """The offsets of the cluster that is meant, in the columns of this version."""
        everything = as_it_is(spark, self.layout, Table.OFFSETS, self.name)
        return self.of_cluster(as_today(everything, Table.OFFSETS))

    @property
    def may_hide(self) -> bool:
        """Whether something in it may not be listed, as far as is known before it is read."""
        return self.summary is None or self.summary.tables[Table.OFFSETS].problems > 0

    def of_cluster(self, rows: DataFrame) -> DataFrame:
        """Those of the cluster that is meant; a summary says that there are no others."""
        if self.cluster is None or (self.summary is not None and self.summary.cluster == self.cluster):
            return rows
        return rows.where(f.col("cluster") == self.cluster)

    def shares(self) -> Mapping[int, Sequence[str]]:
        """The files of each share; none where it is not known."""
        if self.summary is None or not 0 < self.summary.shares <= _MOST:
            return {}
        folder = self.layout.table(Table.OFFSETS, self.name)
        found: defaultdict[int, list[str]] = defaultdict(list)
        for file in self.summary.tables[Table.OFFSETS].files:
            if (match := _SHARE.fullmatch(file)) is None:
                return {}
            found[int(match[1])].append(f"{folder}/{file}")
        return found if max(found, default=0) < self.summary.shares else {}

    def of_files(self, spark: SparkSession, files: Sequence[str]) -> DataFrame:
        """What is in some of its files, read by one task."""
        assert self.summary is not None
        columns = StructType.fromJson(json.loads(self.summary.tables[Table.OFFSETS].columns))
        read = strict_reader(spark).schema(columns).parquet(*files)
        return self.of_cluster(as_today(read, Table.OFFSETS)).coalesce(1)


def parts(spark: SparkSession, before: Side, after: Side) -> list[tuple[DataFrame, DataFrame]]:
    """The two in parts, none of which has an offset that is in another part of the other."""
    its, others = before.shares(), after.shares()
    if not its or its.keys() != others.keys() or _count(before) != _count(after):
        return [(before.rows(spark), after.rows(spark))]
    return [(before.of_files(spark, its[k]), after.of_files(spark, others[k])) for k in sorted(its)]


def _count(side: Side) -> int:
    return 0 if side.summary is None else side.summary.shares
