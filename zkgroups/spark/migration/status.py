"""Report the stage of each group of a plan, from its target, its mark and the reports."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from ...core.migration.comparison import GroupStatus, Stage
from ...core.migration.lazy_rows import Rows
from ...core.migration.plan_rows import Step
from ...kafka import BrokerOptions, Brokers
from ...migration.verify import status_of_groups
from ...zookeeper.registry import Registry
from ..errors import translated
from ..snapshots.snapshot import session_beside
from ..source.data_source import active_session
from ..source.options import SourceOptions
from ..spark_thread import interruptible
from .arrow_rows import collect_rows
from .execution import ChunkTask, ExecutablePlan, MigrationConnections, OnProgress, PlannedGroups
from .jobs import map_batches
from .plan_folder import PlanFolder
from .reports import last_steps


@dataclass(frozen=True, slots=True)
class StatusOperation:
    """Calls `status_of_groups`."""

    kind = GroupStatus

    def __call__(self, groups: PlannedGroups, brokers: Brokers, registry: Registry | None, /) -> Rows[GroupStatus]:
        rows = [row for group in groups.values() for row in group]
        return Rows.of(GroupStatus, status_of_groups(rows, brokers, registry))


def status(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    on_progress: OnProgress = lambda _step: None,
) -> list[GroupStatus]:
    """Return the stage of each group of the plan in this folder, sorted by target. Writes nothing."""
    connections = MigrationConnections(brokers, zookeeper)

    def run(on_progress: OnProgress) -> list[GroupStatus]:
        own = session_beside(spark)
        folder = PlanFolder(own, destination)
        with active_session(own), translated(f"the plan in {folder} could not be processed"):
            planned = ExecutablePlan.of(own, folder)
            connections.check(planned.constants["cluster"])
            on_progress("looking")
            found = collect_rows(
                GroupStatus,
                map_batches(
                    planned.rows, ChunkTask(connections, StatusOperation(), planned.constants), GroupStatus, tally=True
                ),
            )
            on_progress("reading the reports")
            last = last_steps(folder)
        return [_with_reports(each, last.get(each.target)) for each in sorted(found, key=lambda each: each.target)]

    return interruptible(spark, run, on_progress)


def _with_reports(status: GroupStatus, last: str | None) -> GroupStatus:
    as_before = status.stage in (Stage.NOT_BEGUN, Stage.BLOCKED)
    return replace(status, stage=Stage.ROLLED_BACK) if as_before and last == Step.ROLLBACK else status
