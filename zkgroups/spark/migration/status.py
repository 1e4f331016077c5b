"""How far each group of a plan is: what its target and its mark tell, and who has written last, from the reports."""

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
from ..source.data_source import active
from ..source.options import SourceOptions
from ..spark_thread import interruptible
from .arrow_rows import collected
from .execution import Groups, Planned, Sides, Told, Work
from .jobs import mapped
from .plan_folder import Folder
from .reports import last_steps


@dataclass(frozen=True, slots=True)
class Looking:
    """`status_of_groups`."""

    kind = GroupStatus

    def __call__(self, groups: Groups, brokers: Brokers, registry: Registry | None, /) -> Rows[GroupStatus]:
        rows = [row for group in groups.values() for row in group]
        return Rows.of(GroupStatus, status_of_groups(rows, brokers, registry))


def status(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    told: Told = lambda _step: None,
) -> list[GroupStatus]:
    """How far each group of the plan in this folder is, sorted by target; nothing is written."""
    sides = Sides(brokers, zookeeper)

    def run(told: Told) -> list[GroupStatus]:
        own = session_beside(spark)
        folder = Folder(own, destination)
        with active(own), translated(f"the plan in {folder} could not be gone through"):
            planned = Planned.of(own, folder)
            sides.check(planned.same["cluster"])
            told("looking")
            found = collected(
                GroupStatus, mapped(planned.rows, Work(sides, Looking(), planned.same), GroupStatus, tally=True)
            )
            told("reading the reports")
            last = last_steps(folder)
        return [_with_reports(each, last.get(each.target)) for each in sorted(found, key=lambda each: each.target)]

    return interruptible(spark, run, told)


def _with_reports(status: GroupStatus, last: str | None) -> GroupStatus:
    as_before = status.stage in (Stage.NOT_BEGUN, Stage.BLOCKED)
    return replace(status, stage=Stage.ROLLED_BACK) if as_before and last == Step.ROLLBACK else status
