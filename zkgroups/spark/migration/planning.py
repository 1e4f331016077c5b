"""Planning thousands of groups by one Spark job: compare ZooKeeper, or a snapshot, with the brokers.

    plan(spark, "/data/move", SourceOptions(zookeeper="zk1:2181/kafka"), BrokerOptions("kafka1:9092"))
    read_plan(spark, "/data/move").where("action = 'refuse'").show()

Offsets and registrations are read together and distributed by target, so each task has whole groups, and all groups
that share a target. It asks the brokers for a chunk of groups at a time.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...core.migration.obstacles import Obstacle
from ...core.migration.offset_decision import Action, Reason, Rule
from ...core.migration.plan_rows import GroupPlan, PlanRow
from ...core.migration.target_names import Renaming
from ...exceptions import NotFoundError
from ...input_errors import InvalidOptionError
from ...kafka import BrokerOptions
from ...migration.log_ranges import topic_creation_zxids
from ...migration.plan import Planner, PlanSettings, SourceNode
from ..errors import translated
from ..pyspark_internals import active_session
from ..snapshots.snapshot import session_beside
from ..source.options import SourceOptions
from ..spark_thread import interruptible
from ..storage.timestamps import timestamp_text
from ..storage.writing import check_shared
from .arrow_rows import parse_value, split, table
from .chunks import group_chunks
from .jobs import by_target, map_batches, tasks
from .plan_folder import PlanFolder
from .row_counts import Tally, with_tally_column, write_and_count
from .sources import Source, TargetNaming, read

STEPS: Final = 2
"""The calls of `on_progress`: planning, and moving the plan into place."""


OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """The source of a plan, and its contents.

    - `plan`, `destination`: the id of the plan, and its folder.
    - `planned_ms`: when it was made, in milliseconds since 1970.
    - `source`, `brokers`: where the groups come from, and the brokers to move them to.
    - `cluster`: the id of the brokers' cluster.
    - `retention_seconds`: how long the brokers keep the offsets of an unused group.
    - `rule`: the `Rule` of the plan, as text.
    - `groups`, `blocked`: the number of groups, and of groups with obstacles.
    - `counts`: the number of rows by action and by reason.
    """

    plan: str
    destination: str
    planned_ms: int
    source: str
    brokers: str | None
    cluster: str | None
    retention_seconds: float | None
    rule: str | None
    groups: int
    blocked: int
    counts: Mapping[str, int]


def plan(
    spark: SparkSession,
    destination: str,
    source: Source,
    brokers: BrokerOptions | None,
    *,
    rule: Rule | None = None,
    renaming: Renaming | None = None,
    stale_after: float | None = None,
    instead_of: str | None = None,
    on_progress: OnProgress | None = None,
) -> PlanSummary:
    """Plan the migration of the groups of a source, and store the plan in a folder without a plan.

    - `source`: the groups: `SourceOptions` or a `SnapshotSource`.
    - `brokers`: the target. Without, logs and targets are unknown: such a plan can only be shown and exported.
    - `rule`: a `zkgroups.core.migration.offset_decision.Rule`, for offsets outside of the log and targets ahead.
    - `renaming`: a `zkgroups.core.migration.target_names.Renaming`, for other names on the brokers.
    - `stale_after`: offsets are stale without a commit for so many seconds.
    - `instead_of`: the id of an existing plan that may be replaced. Nothing must have been written by it, because it
      could not be rolled back any more.
    - `on_progress`: called with the name of each step when it starts.
    """
    if stale_after is not None and not 0 <= stale_after < float("inf"):
        raise InvalidOptionError("stale_after", stale_after, "it must be a number of seconds")
    job = _PlanJob(source, brokers, _settings(source, brokers, rule or Rule(), stale_after), renaming or Renaming())
    return interruptible(spark, lambda progress: job.run(spark, destination, instead_of, progress), on_progress)


def _settings(source: Source, brokers: BrokerOptions | None, rule: Rule, stale_after: float | None) -> PlanSettings:
    """Connect to both sides from the driver, so that errors are reported before a job starts."""
    retention, cluster, topics = None, None, {}
    if brokers is not None:
        with brokers.connect() as connected:
            retention, cluster = connected.offsets_retention(), connected.cluster_id()
    if isinstance(source, SourceOptions):
        with source.connect() as registry:
            topics = topic_creation_zxids(registry)
    now = time.time_ns() // 1_000_000
    return PlanSettings(
        plan=f"{timestamp_text(_utc(now))}-{uuid.uuid4().hex[:8]}",
        planned_ms=now,
        brokers=None if brokers is None else brokers.bootstrap,
        cluster=cluster,
        retention_seconds=retention,
        rule=rule,
        stale_after=stale_after,
        topics=source.topics,
        topics_created=topics,
    )


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class _PlanJob:
    """One call of `plan`."""

    source: Source
    brokers: BrokerOptions | None
    settings: PlanSettings
    renaming: Renaming

    def run(
        self, spark: SparkSession, destination: str, instead_of: str | None, on_progress: OnProgress
    ) -> PlanSummary:
        check_shared(spark, destination)
        own = session_beside(spark)
        folder = PlanFolder(own, destination)
        with folder.new_plan(_utc(self.settings.planned_ms), instead_of) as path:
            on_progress("planning")
            with active_session(own), translated("the groups could not be planned"):
                shown, counts = self._write(own, path)
            if not counts.groups:
                raise NotFoundError("none of the selected groups has an offset")
            on_progress("moving the plan into place")
        return PlanSummary(
            plan=self.settings.plan,
            destination=str(folder),
            planned_ms=self.settings.planned_ms,
            source=shown,
            brokers=self.settings.brokers,
            cluster=self.settings.cluster,
            retention_seconds=self.settings.retention_seconds,
            rule=str(self.settings.rule),
            groups=counts.groups,
            blocked=counts.left,
            counts=counts.counts,
        )

    def _write(self, spark: SparkSession, path: str) -> tuple[str, Tally]:
        """Write the rows of the plan. Return a description of the source, and the counts."""
        shown, found = read(spark, self.source)
        naming = TargetNaming(self.renaming, self.source.groups, self.source.topics)
        named = map_batches(found, naming, SourceNode)
        task = PlanningTask(self.brokers, replace(self.settings, source=shown))
        rows = map_batches(by_target(named, tasks(spark)), task, PlanRow, tally=True)
        return shown, write_and_count(rows, PlanRow, path)


@dataclass(frozen=True, slots=True)
class PlanningTask:
    """The function of a Spark task: plan its groups chunk by chunk."""

    brokers: BrokerOptions | None
    settings: PlanSettings

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        planner = None
        with ExitStack() as stack:
            for chunk in group_chunks(SourceNode, batches):
                if planner is None:  # a task without rows does not connect
                    brokers = None if self.brokers is None else stack.enter_context(self.brokers.connect())
                    planner = Planner(self.settings, brokers)
                yield from split(with_tally_column(PlanRow, table(PlanRow, planner.plan(chunk))))


# Reading


def read_plan(spark: SparkSession, destination: str) -> DataFrame:
    """Return the rows of a plan, with the columns of `PlanRow`."""
    return PlanFolder(spark, destination).plan()


def summary(spark: SparkSession, destination: str) -> PlanSummary:
    """Return the source of a plan, and its contents."""
    found = groups(spark, destination)
    folder = PlanFolder(spark, destination)
    return PlanSummary(
        **folder.head(*_HEAD).asDict(),
        destination=str(folder),
        groups=len(found),
        blocked=sum(bool(group.obstacles) for group in found),
        counts=dict(sum((Counter(group.counts) for group in found), Counter())),
    )


_HEAD: Final = ("plan", "planned_ms", "source", "brokers", "cluster", "retention_seconds", "rule")


def groups(spark: SparkSession, destination: str) -> list[GroupPlan]:
    """Return a summary of each group of a plan, sorted by name."""
    rows = read_plan(spark, destination)
    counts = [f.count_if(f.col("action") == action.value).alias(action.value) for action in Action]
    counts += [f.count_if(f.col("reason") == reason.value).alias(reason.value) for reason in Reason]
    after = f.when(f.col("action") == Action.COMMIT.value, f.col("planned")).otherwise(f.col("before"))
    lags = [_lag(f.col("offset")).alias("lag_before"), _lag(after).alias("lag_after")]
    found = rows.groupBy("group", "target").agg(f.first("obstacles").alias("obstacles"), *counts, *lags)
    with translated(f"the plan in {destination} cannot be read"):
        return [
            GroupPlan(
                group=row["group"],
                target=row["target"],
                obstacles=parse_value(tuple[Obstacle, ...], row["obstacles"]),
                counts={each.value: row[each.value] for each in (*Action, *Reason) if row[each.value]},
                lag_before=row["lag_before"],
                lag_after=row["lag_after"],
            )
            for row in found.orderBy("group").collect()
        ]


def _lag(offset: Column) -> Column:
    """Return the sum of the lag over all partitions with a known log, like `core.offsets.lag`."""
    end = f.col("log_end")
    return f.sum(f.when(offset <= end, end - offset))
