"""Reports: the result of a step for each row of a plan. Also the checks of a plan before it is used."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..core.columns import Columns, column
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
        self._parts: list[Sequence[ReportRow]] = []
        self._now_ms = time.time_ns() // 1_000_000

    @property
    def rows(self) -> Sequence[ReportRow]:
        """All rows."""
        return Columns.joined(ReportRow, self._parts)

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
        columns = {name: getattr(row, name) for name in _OF_THE_ROW}
        result = ReportRow(
            **columns,
            step=step,
            reported_ms=self._now_ms,
            found=found,
            written=written,
            outcome=outcome,
            detail=detail,
        )
        self._parts.append([result])

    def add_all(
        self,
        step: MigrationStep,
        rows: Sequence[PlanRow],
        outcomes: Sequence[Outcome],
        *,
        found: Sequence[int | None],
        written: Sequence[int | None],
        details: Sequence[str],
    ) -> None:
        """Add the results for some rows of the plan."""
        columns: dict[str, Sequence[Any]] = {name: column(rows, name) for name in _OF_THE_ROW}
        columns |= {"step": [step] * len(rows), "reported_ms": [self._now_ms] * len(rows)}
        columns |= {"outcome": outcomes, "found": found, "written": written, "detail": details}
        self._parts.append(Columns(ReportRow, len(rows), columns.__getitem__))


_OF_THE_ROW: Final = ("plan", "group", "topic", "partition", "target")
"""The fields of a report that are those of the plan."""


def offset_or_none(found: NativeOffset | None) -> int | None:
    """Return the number of a committed offset."""
    return None if found is None else found.offset


def check_made_with_brokers(rows: Sequence[PlanRow]) -> None:
    """Raise an error for a plan that was made without brokers: the earlier offsets of its targets are unknown."""
    if None in column(rows, "brokers"):
        raise GuardFailedError(f"plan {column(rows, 'plan')[0]} {MADE_WITHOUT_BROKERS}")


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
