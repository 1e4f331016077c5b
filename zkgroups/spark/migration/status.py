"""The progress of each group of a plan, by its target, its mark, and the last step that wrote to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from ...core.migration.group_status import GroupStatus, MigrationStage
from ...core.migration.plan_rows import MigrationStep, PlanRow
from ...kafka import BrokerOptions, Brokers
from ...migration.verify import status_of_groups
from ...zookeeper.registry import Registry
from ..errors import translated
from ..pyspark_internals import active_session
from ..snapshots.snapshot import session_beside
from ..source.options import SourceOptions
from ..spark_thread import interruptible
from .arrow_rows import collect_rows
from .execution import ChunkTask, ExecutablePlan, MigrationConnections, OnProgress
from .jobs import map_batches
from .plan_folder import PlanFolder
from .reports import last_steps


@dataclass(frozen=True, slots=True)
class StatusOperation:
    """`status_of_groups` as a Spark task."""

    kind = GroupStatus

    def __call__(
        self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, /
    ) -> Sequence[GroupStatus]:
        return status_of_groups(rows, brokers, registry)


def status(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    on_progress: OnProgress | None = None,
) -> list[GroupStatus]:
    """Return the progress of each group of the plan in this folder, sorted by target. Nothing is written."""
    connections = MigrationConnections(brokers, zookeeper)

    def run(on_progress: OnProgress) -> list[GroupStatus]:
        own = session_beside(spark)
        folder = PlanFolder(own, destination)
        with active_session(own), translated(f"the status of the plan in {folder} could not be read"):
            plan = ExecutablePlan.of(own, folder)
            connections.check(plan.constants["cluster"])
            on_progress("reading both sides")
            task = ChunkTask(connections, StatusOperation(), plan.constants)
            found = collect_rows(GroupStatus, map_batches(plan.rows, task, GroupStatus, tally=True))
            on_progress("reading the reports")
            last = last_steps(folder)
        return [_with_last_step(each, last.get(each.target)) for each in sorted(found, key=lambda each: each.target)]

    return interruptible(spark, run, on_progress)


def _with_last_step(status: GroupStatus, last: str | None) -> GroupStatus:
    as_before = status.stage in (MigrationStage.NOT_BEGUN, MigrationStage.BLOCKED)
    rolled_back = as_before and last == MigrationStep.ROLLBACK
    return replace(status, stage=MigrationStage.ROLLED_BACK) if rolled_back else status
