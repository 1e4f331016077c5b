"""Reports: the result of a step for each row of a plan. Also the checks of a plan before it is used."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from ..core.kafka_values import NativeOffset
from ..core.migration.plan_rows import MigrationStep, Outcome, PlanRow, ReportRow
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import GuardFailedError
from ..input_errors import ZkgroupsException
from ..kafka import Brokers

MADE_WITHOUT_BROKERS: Final = "was made without brokers, and can only be shown and exported: plan again with brokers"

Answers = Mapping[TopicPartition, ZkgroupsException | None]
"""The answers of the brokers for the partitions of one target; None for success."""


class Report:
    """The rows of one call."""

    def __init__(self) -> None:
        self.rows: list[ReportRow] = []
        self._now_ms = time.time_ns() // 1_000_000

    def add(
        self,
        step: MigrationStep,
        row: PlanRow,
        outcome: Outcome,
        *,
        found: int | None = None,
        written: int | None = None,
        detail: str = "",
    ) -> None:
        """Add the result for one row of the plan."""
        self.rows.append(
            ReportRow(
                plan=row.plan,
                step=step,
                reported_ms=self._now_ms,
                group=row.group,
                topic=row.topic,
                partition=row.partition,
                target=row.target,
                found=found,
                written=written,
                outcome=outcome,
                detail=detail,
            )
        )


def offset_or_none(found: NativeOffset | None) -> int | None:
    """Return the number of a committed offset."""
    return None if found is None else found.offset


def check_made_with_brokers(rows: Iterable[PlanRow]) -> None:
    """Raise an error for a plan that was made without brokers: the earlier offsets of its targets are unknown."""
    plan = next((row.plan for row in rows if row.brokers is None), None)
    if plan is not None:
        raise GuardFailedError(f"plan {plan} {MADE_WITHOUT_BROKERS}")


def check_cluster(planned: str | None, brokers: Brokers) -> None:
    """Raise an error if the plan was made for another Kafka cluster.

    Other checks may not detect this: a staging cluster may have the topics of production, and targets without offsets
    look alike.
    """
    found = brokers.cluster_id()
    if planned is not None and found != planned:
        raise GuardFailedError(
            f"the plan was made for Kafka cluster {planned}, but these brokers belong to {found}: "
            f"connect to {planned}, or plan again"
        )
