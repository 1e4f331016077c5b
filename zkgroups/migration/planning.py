"""Make a plan for the groups of a ZooKeeper or of a snapshot, and store it in a folder.

Each task plans whole groups, and all groups that share a target. It asks the brokers about a chunk of groups at a time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from ..core.migration.offset_decision import Renaming, Rule
from ..core.migration.plan_rows import OF_THE_PLAN, PlanRow, Tally
from ..exceptions import NotFoundError
from ..input_errors import InvalidOptionError
from ..kafka import BrokerOptions
from ..storage.files import timestamp_text
from ..tables.sums import TaskSum
from ..zookeeper.zookeeper_source import ZooKeeperSource
from .current_state import topic_creation_zxids
from .plan import PlanSettings
from .plan_folder import PlanFolder
from .snapshot_source import SnapshotSource
from .source_nodes import NamedGroup
from .summaries import first_row, groups, plan_totals
from .tasks import Engine, OnProgress, PlanGroups, PlanNodes, Rows

STEPS: Final = 2
"""The calls of `on_progress`: planning, and moving the plan into place."""


_OFFSETS_OF_A_GROUP: Final = 50
"""A guess, to choose the number of tasks before the offsets are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """The source of a plan, and its contents.

    - `plan`, `destination`: the id of the plan, and its folder.
    - `planned_ms`: when it was made, in milliseconds since 1970.
    - `source`, `brokers`: where the groups come from, and the brokers to move them to.
    - `cluster`: the id of the brokers' cluster.
    - `retention_seconds`: how long the brokers keep the offsets of an unused group.
    - `rule`: the `Rule` of the plan, as text.
    - `layout`: where the offsets are in ZooKeeper, as text.
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
    layout: str
    groups: int
    blocked: int
    counts: Mapping[str, int]

    @classmethod
    def of(
        cls, same: Mapping[str, Any], folder: PlanFolder, groups: int, blocked: int, counts: Mapping[str, int]
    ) -> PlanSummary:
        """Return the summary, given the values that are the same in all rows."""
        known = {name: same[name] for name in OF_THE_PLAN if name != "topics"}
        return cls(**known, destination=str(folder), groups=groups, blocked=blocked, counts=counts)


Source: TypeAlias = ZooKeeperSource | SnapshotSource


def plan(
    engine: Engine,
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

    - `engine`: where the work is done, in this process or by Spark.
    - `source`: the groups.
    - `brokers`: the target. Without brokers, logs and targets are unknown, and the plan can only be shown and exported.
    - `rule`: a `zkgroups.core.migration.offset_decision.Rule`, for offsets outside of the log and targets ahead.
    - `renaming`: a `zkgroups.core.migration.offset_decision.Renaming`, for other names on the brokers.
    - `stale_after`: an offset is stale if it was not committed for this many seconds.
    - `instead_of`: the id of an existing plan that may be replaced. It must not have written anything, because it can
      no longer be rolled back.
    - `on_progress`: called with the name of each step when it starts.
    """
    if stale_after is not None and not 0 <= stale_after < float("inf"):
        raise InvalidOptionError("stale_after", stale_after, "it must be a number of seconds")
    # Connect before a job starts, so that errors are reported at once.
    settings, names = _settings(source, brokers, rule or Rule(), stale_after)
    work = _PlanJob(engine, destination, source, brokers, settings, names, renaming or Renaming(), instead_of)
    return engine.run(work, on_progress)


def _settings(
    source: Source, brokers: BrokerOptions | None, rule: Rule, stale_after: float | None
) -> tuple[PlanSettings, list[str]]:
    """Return the values for all rows, and the names of the selected groups in ZooKeeper."""
    retention, cluster, topics, names = None, None, {}, []
    if brokers is not None:
        with brokers.connect() as connected:
            retention, cluster = connected.offsets_retention(), connected.cluster_id()
    if isinstance(source, ZooKeeperSource):
        with source.connect() as registry:
            topics, names = topic_creation_zxids(registry), source.selected_groups(registry)
    now = time.time_ns() // 1_000_000
    settings = PlanSettings(
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
    return settings, names


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class _PlanJob:
    """One call of `plan`."""

    engine: Engine
    destination: str
    source: Source
    brokers: BrokerOptions | None
    settings: PlanSettings
    names: list[str]
    renaming: Renaming
    instead_of: str | None

    def __call__(self, on_progress: OnProgress) -> PlanSummary:
        self.engine.check_writes_to(self.destination)
        folder = self.engine.folder(self.destination)
        with folder.new_plan(_utc(self.settings.planned_ms), self._may_replace(folder)) as path:
            on_progress("planning")
            counted = self.engine.tally_sum()
            settings, found = self._rows(counted)
            counts = found.write(path, "the groups could not be planned", counted)
            folder.write_constants(path, settings.row_fields())
            if not counts.groups:
                raise NotFoundError(
                    "none of the selected groups has an offset: check the expressions for groups and topics, and the "
                    "address"
                )
            on_progress("moving the plan into place")
        return PlanSummary.of(settings.row_fields(), folder, counts.groups, counts.left, counts.counts)

    def _may_replace(self, folder: PlanFolder) -> Callable[[], bool]:
        return lambda: self.instead_of is not None and first_row(folder).plan == self.instead_of

    def _rows(self, counted: TaskSum[Tally]) -> tuple[PlanSettings, Rows]:
        """Return the settings with a description of the source, and the rows of the plan."""
        if isinstance(self.source, ZooKeeperSource):
            settings = replace(self.settings, source=self.source.shown_cluster, layout=self.source.layout)
            groups = [NamedGroup(group=name, target=self.renaming.target(name)) for name in self.names]
            count = _OFFSETS_OF_A_GROUP * len(groups)
            found = self.engine.rows(NamedGroup, groups).by_target(count=count, tasks=self.source.parallelism)
            read = PlanGroups(self.source.connection, self.brokers, settings, counted)
            return settings, found.map(read, PlanRow)
        taken = self.source.nodes(self.engine, self.renaming)
        settings = replace(self.settings, source=taken.description, layout=taken.layout)
        task = PlanNodes(self.brokers, settings, counted)
        return settings, taken.rows.by_target().map(task, PlanRow)


def summary(engine: Engine, destination: str) -> PlanSummary:
    """Return the source of a plan, and its contents."""
    folder = engine.folder(destination)
    head, found = first_row(folder), groups(engine, destination)
    blocked = sum(bool(group.obstacles) for group in found)
    return PlanSummary.of(head._asdict(), folder, len(found), blocked, plan_totals(found))
