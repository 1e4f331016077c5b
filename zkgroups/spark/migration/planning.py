"""Plan the migration of thousands of groups in one Spark job, from ZooKeeper or a snapshot.

    plan(spark, "/data/move", SourceOptions(zookeeper="zk1:2181/kafka"), BrokerOptions("kafka1:9092"))
    read_plan(spark, "/data/move").where("action = 'refuse'").show()

Offsets and members are partitioned by target group. So each task has whole groups, including all groups with the same
target. It queries the brokers for one chunk of groups at a time.
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

from ...core.migration.lazy_rows import Slice
from ...core.migration.plan_rows import GroupPlan, PlanRow
from ...core.migration.rules import Action, Reason, Renaming, Rule
from ...exceptions import InvalidOptionError, NotFoundError
from ...kafka import BrokerOptions
from ...migration.log_ranges import topics_made
from ...migration.plan import Found, Planner, Planning
from ..errors import translated
from ..snapshots.snapshot import session_beside
from ..source.data_source import active_session
from ..source.options import SourceOptions
from ..spark_thread import interruptible
from ..storage.timestamps import timestamp_text
from ..storage.writing import check_shared
from .arrow_rows import split, table
from .chunks import group_chunks
from .jobs import by_target, map_batches, tasks
from .plan_folder import PlanFolder
from .row_counts import Tally, with_tally_column, write_and_count
from .sources import Source, TargetNaming, read

STEPS: Final = 2
"""The number of calls of `on_progress`: planning, and moving the plan into place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """The origin and the totals of a plan."""

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
    """The number of groups with obstacles."""
    counts: Mapping[str, int]
    """The number of rows by action and by reason."""


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
    on_progress: Callable[[str], None] = lambda _step: None,
) -> PlanSummary:
    """Plan the migration of the groups that the source selects, and write the plan to a folder without a plan.

    A plan made without brokers knows no log ranges and targets; it can only be shown and exported. `stale_after` is in
    seconds. `instead_of` is the name of an existing plan to replace. Replace only a plan that was never applied, or it
    cannot be rolled back any more. `on_progress` is called with the name of each of the `STEPS` when it starts.
    """
    if stale_after is not None and not 0 <= stale_after < float("inf"):
        raise InvalidOptionError("stale_after", stale_after, "it must be a number of seconds")
    job = _Job(source, brokers, _planning(source, brokers, rule or Rule(), stale_after), renaming or Renaming())
    return interruptible(spark, lambda step: job.run(spark, destination, instead_of, step), on_progress)


def _planning(source: Source, brokers: BrokerOptions | None, rule: Rule, stale_after: float | None) -> Planning:
    """Connect to both sides on the driver, to fail fast, and collect the constants of the plan."""
    retention, cluster, topics = None, None, {}
    if brokers is not None:
        with brokers.connect() as connected:
            retention, cluster = connected.offsets_retention(), connected.cluster_id()
    if isinstance(source, SourceOptions):
        with source.connect() as registry:
            topics = topics_made(registry)
    now = time.time_ns() // 1_000_000
    return Planning(
        plan=f"{timestamp_text(_utc(now))}-{uuid.uuid4().hex[:8]}",
        planned_ms=now,
        brokers=None if brokers is None else brokers.bootstrap,
        cluster=cluster,
        retention_seconds=retention,
        rule=rule,
        stale_after=stale_after,
        topics=source.topics,
        topics_made=topics,
    )


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of `plan`."""

    source: Source
    brokers: BrokerOptions | None
    planning: Planning
    renaming: Renaming

    def run(
        self, spark: SparkSession, destination: str, instead_of: str | None, on_progress: Callable[[str], None]
    ) -> PlanSummary:
        check_shared(spark, destination)
        own = session_beside(spark)
        folder = PlanFolder(own, destination)
        with folder.new_plan(_utc(self.planning.planned_ms), instead_of) as path:
            on_progress("planning")
            with active_session(own), translated("the plan could not be made"):
                shown, tally = self._write(own, path)
            if not tally.groups:
                raise NotFoundError("none of the selected groups has an offset")
            on_progress("moving into place")
        return PlanSummary(
            plan=self.planning.plan,
            destination=str(folder),
            planned_ms=self.planning.planned_ms,
            source=shown,
            brokers=self.planning.brokers,
            cluster=self.planning.cluster,
            retention_seconds=self.planning.retention_seconds,
            rule=str(self.planning.rule),
            groups=tally.groups,
            blocked=tally.left,
            counts=tally.counts,
        )

    def _write(self, spark: SparkSession, path: str) -> tuple[str, Tally]:
        """Write the plan's rows; return a description of the source, and the tally."""
        shown, found = read(spark, self.source)
        naming = TargetNaming(self.renaming, self.source.groups, self.source.topics)
        named = map_batches(found, naming, Found)
        work = PlanningWork(self.brokers, replace(self.planning, source=shown))
        rows = map_batches(by_target(named, tasks(spark)), work, PlanRow, tally=True)
        return shown, write_and_count(rows, PlanRow, path)


@dataclass(frozen=True, slots=True)
class PlanningWork:
    """The function of a task: create the plan's rows from the rows of the source."""

    brokers: BrokerOptions | None
    planning: Planning

    def __call__(self, found: Iterator[Any]) -> Iterator[Any]:
        planner = None
        with ExitStack() as stack:
            for chunk in group_chunks(Found, found):
                if planner is None:  # a task may have no rows
                    brokers = None if self.brokers is None else stack.enter_context(self.brokers.connect())
                    planner = Planner(self.planning, brokers)
                targets = {target: Slice(Found, *slots) for target, slots in chunk.slices()}
                made = table(PlanRow, planner.plan_targets(targets))
                yield from split(with_tally_column(PlanRow, made))


# Reading


def read_plan(spark: SparkSession, destination: str) -> DataFrame:
    """Return the rows of a plan; the columns are the fields of `PlanRow`."""
    return PlanFolder(spark, destination).plan()


def summary(spark: SparkSession, destination: str) -> PlanSummary:
    """Return the origin and the totals of a plan."""
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
    """Summarize a plan by group, sorted by name."""
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
                obstacles=tuple(row["obstacles"]),
                counts={each.value: row[each.value] for each in (*Action, *Reason) if row[each.value]},
                lag_before=row["lag_before"],
                lag_after=row["lag_after"],
            )
            for row in found.orderBy("group").collect()
        ]


def _lag(offset: Column) -> Column:
    """Sum the lag over all partitions for which it is known; see `core.offsets.lag`."""
    end = f.col("log_end")
    return f.sum(f.when(offset <= end, end - offset))
