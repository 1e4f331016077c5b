"""Choose a snapshot of one cluster with Spark, and read its offsets. `zkgroups/snapshots/clusters.py` has the rules."""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame, SparkSession

from ...core.tables import Table
from ...snapshots import clusters
from ...snapshots.clusters import ChosenSnapshot
from ..errors import translated
from .layout import Layout
from .snapshot import read_snapshot


def choose_in_cluster(
    spark: SparkSession,
    destination: str,
    at: str | None = None,
    *,
    cluster: str | None = None,
    address: str | None = None,
) -> ChosenSnapshot:
    """Return the snapshot for `at`, of the named cluster or else of the one at the address, or of the only one."""
    layout = Layout(spark, destination)
    clusters_of = partial(_clusters, spark, layout)
    return clusters.choose_in_cluster(layout, clusters_of, at, cluster=cluster, address=address)


def offsets_of(spark: SparkSession, choice: ChosenSnapshot) -> DataFrame:
    """Return the offsets of a chosen snapshot. Raise DamagedFileError if a file is missing or truncated."""
    rows = Layout(spark, choice.destination).read_intact(Table.OFFSETS, choice.name)
    return rows if choice.cluster is None else rows.where(rows["cluster"] == choice.cluster)


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
