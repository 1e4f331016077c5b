"""Choose a snapshot of one cluster, when a destination holds snapshots of several."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from pyspark.sql import DataFrame, SparkSession

from ...core.tables import Table
from ...exceptions import InvalidOptionError
from ...storage.choose_snapshot import LATEST, find_snapshot, is_name
from ..errors import translated
from .layout import Layout
from .snapshot import read_snapshot


@dataclass(frozen=True, slots=True)
class ChosenSnapshot:
    """One snapshot of one cluster. The cluster is None for an empty snapshot of an earlier version."""

    destination: str
    name: str
    cluster: str | None
    zxid: int | None = None
    """The zxid of the state, if it was read from files."""

    def __str__(self) -> str:
        return f"snapshot {self.name} in {self.destination}"

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return its offsets. Raise DamagedFileError if a file is missing or truncated."""
        rows = Layout(spark, self.destination).read_intact(Table.OFFSETS, self.name)
        return rows if self.cluster is None else rows.where(rows["cluster"] == self.cluster)


def choose_in_cluster(
    spark: SparkSession,
    destination: str,
    at: str | None = None,
    *,
    cluster: str | None = None,
    address: str | None = None,
) -> ChosenSnapshot:
    """Return the snapshot for `at` (see `choose_snapshot.py`), of the named cluster or else of the one at the address.

    If the destination holds no snapshot of the address, all snapshots must belong to one cluster.
    """
    layout, text = Layout(spark, destination), LATEST if at is None else at.strip()
    layout.check_exists()
    wanted = address if cluster is None else cluster
    clusters = cache(partial(_clusters, spark, layout))
    if name := find_snapshot(layout.latest_first(), text, lambda name: wanted in clusters(name)):
        return _choice(layout, name, wanted)
    name = find_snapshot(layout.latest_first(), text)
    # A name identifies one snapshot. A time selects within one cluster, whose snapshots may all be later.
    names = [name] if name is None or is_name(text) else layout.latest_first()
    there = {each for name in names if name is not None for each in clusters(name)}
    if name is None or cluster is not None or wanted in there:
        of = f" of {wanted}" if cluster is not None or wanted in there else ""
        raise layout.no_snapshot(f"{f' {at}' if at else ''}{of}")
    if len(there) > 1:
        raise InvalidOptionError("cluster", None, f"{layout} holds snapshots of {', '.join(sorted(there))}: choose one")
    return _choice(layout, name, next(iter(there), None))


def _choice(layout: Layout, name: str, cluster: str | None) -> ChosenSnapshot:
    summary = layout.summary(name)
    return ChosenSnapshot(str(layout), name, cluster, None if summary is None else summary.zxid)


def unfinished_after(spark: SparkSession, choice: ChosenSnapshot) -> list[str]:
    """Return the names of later snapshots that are incomplete, and so could not be chosen."""
    layout = Layout(spark, choice.destination)
    return [name for name in layout.started_names() if name > choice.name and not layout.has(name)]


def _clusters(spark: SparkSession, layout: Layout, name: str) -> set[str]:
    """Return the clusters in a snapshot: one, or none if it is empty and of an earlier version."""
    if (summary := layout.summary(name)) is not None:
        return {summary.cluster}
    with translated(f"snapshot {name} cannot be read"):
        found = read_snapshot(spark, str(layout), name).select("cluster").distinct().collect()
    return {row["cluster"] for row in found}
