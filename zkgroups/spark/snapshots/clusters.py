"""Whose snapshot is meant, where those of several clusters lie in one destination."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from pyspark.sql import DataFrame, SparkSession

from ...exceptions import InvalidOptionError, NotFoundError
from ..errors import translated
from ..source.tables import Table
from ..storage.completeness import whole
from .layout import Layout
from .moments import LATEST, chosen, is_name
from .snapshot import read_snapshot


@dataclass(frozen=True, slots=True)
class Choice:
    """One snapshot of one cluster; of none, if there is nothing in it."""

    destination: str
    name: str
    cluster: str | None
    zxid: int | None = None
    """Of files, after which transaction."""

    def __str__(self) -> str:
        return f"snapshot {self.name} in {self.destination}"

    def rows(self, spark: SparkSession) -> DataFrame:
        """Its offsets; an error if a file of them was lost."""
        rows = whole(spark, Layout(spark, self.destination), Table.OFFSETS, self.name)
        return rows if self.cluster is None else rows.where(rows["cluster"] == self.cluster)


def choose(
    spark: SparkSession,
    destination: str,
    at: str | None = None,
    *,
    cluster: str | None = None,
    address: str | None = None,
) -> Choice:
    """The snapshot that is meant by `at` (see `moments.py`), of the cluster named, or else of that at the address.

    Where there is none of the address, at any time, all must be of one cluster.
    """
    layout, text = Layout(spark, destination), LATEST if at is None else at.strip()
    layout.check_there()
    wanted = address if cluster is None else cluster
    clusters = cache(partial(_clusters, spark, layout))
    if name := chosen(layout.newest_first(), text, lambda name: wanted in clusters(name)):
        return _choice(layout, name, wanted)
    name = chosen(layout.newest_first(), text)
    # Whoever names a snapshot means it. A time is meant of one cluster, whose snapshots may all be later.
    names = [name] if name is None or is_name(text) else layout.newest_first()
    there = {each for name in names if name is not None for each in clusters(name)}
    if name is None or cluster is not None or wanted in there:
        of = f" of {wanted}" if cluster is not None or wanted in there else ""
        oldest = "".join(f": the oldest is {name}" for name in layout.snapshots()[:1])
        raise NotFoundError(f"there is no snapshot{f' {at}' if at else ''}{of} in {layout}{oldest}")
    if len(there) > 1:
        raise InvalidOptionError("cluster", None, f"in {layout} there are {', '.join(sorted(there))}: say which")
    return _choice(layout, name, next(iter(there), None))


def _choice(layout: Layout, name: str, cluster: str | None) -> Choice:
    summary = layout.summary(name)
    return Choice(str(layout), name, cluster, None if summary is None else summary.zxid)


def unfinished_after(spark: SparkSession, choice: Choice) -> list[str]:
    """The names of later snapshots that are not there as a whole, so that they could not be chosen."""
    layout = Layout(spark, choice.destination)
    return [name for name in layout.begun() if name > choice.name and not layout.has(name)]


def _clusters(spark: SparkSession, layout: Layout, name: str) -> set[str]:
    """Those in one snapshot, which is one, or none where it is empty and of an earlier version."""
    if (summary := layout.summary(name)) is not None:
        return {summary.cluster}
    with translated(f"snapshot {name} cannot be read"):
        found = read_snapshot(spark, str(layout), name).select("cluster").distinct().collect()
    return {row["cluster"] for row in found}
