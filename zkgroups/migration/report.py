"""Reports: what became of each row of a plan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from ..core.kafka_values import NativeOffset
from ..core.migration.lazy_rows import Rows
from ..core.migration.plain_groups import Group
from ..core.migration.plan_rows import Outcome, PlanRow, ReportRow, Step
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import GuardFailedError, ZkgroupsException
from ..kafka import Brokers

Answers = Mapping[TopicPartition, ZkgroupsException | None]
"""What the brokers said of each partition of a target."""


class Report:
    """The rows of one call."""

    def __init__(self) -> None:
        self.columns = Rows(ReportRow)
        self._now_ms = time.time_ns() // 1_000_000

    @property
    def rows(self) -> list[ReportRow]:
        """Each by itself."""
        return list(self.columns)

    def add(
        self,
        step: Step,
        row: PlanRow,
        outcome: Outcome,
        *,
        found: int | None = None,
        written: int | None = None,
        detail: str = "",
    ) -> None:
        """What became of one row."""
        like = {name: getattr(row, name) for name in _LIKE_THE_PLAN}
        what = {"step": step, "outcome": outcome, "found": found, "written": written, "detail": detail}
        self.columns.extend(1, {**like, **what, "reported_ms": self._now_ms})

    def add_group(
        self, step: Step, group: Group, outcome: Outcome, *, written: list[int] | None = None, detail: str = ""
    ) -> None:
        """The same has become of all rows of a group, of which nothing was found."""
        like = {name: group.column(name) for name in _LIKE_THE_PLAN}
        what = {"step": step, "outcome": outcome, "found": None, "written": written, "detail": detail}
        self.columns.extend(len(group), {**like, **what, "reported_ms": self._now_ms})


_LIKE_THE_PLAN: Final = ("plan", "group", "topic", "partition", "target")


def number(found: NativeOffset | None) -> int | None:
    """The offset, None where nothing is committed."""
    return None if found is None else found.offset


def check_asked(rows: Iterable[PlanRow]) -> None:
    """Refuse a plan for which no broker was asked: nobody knows what the targets had."""
    plan = next((row.plan for row in rows if row.brokers is None), None)
    if plan is not None:
        raise GuardFailedError(f"plan {plan} was made without brokers: it can be shown and exported, and nothing else")


def check_cluster(planned: str | None, brokers: Brokers) -> None:
    """Refuse to carry a plan out on other brokers than those it was made with.

    Nothing else would notice: staging has the topics of production, and targets without offsets look alike.
    """
    found = brokers.cluster_id()
    if planned is not None and found != planned:
        raise GuardFailedError(f"the plan was made with another cluster, {planned}, and these brokers are of {found}")
