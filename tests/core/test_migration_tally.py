"""Counts of the rows of plans and reports, and values that are created from columns."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.columns import from_columns
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Reason
from zkgroups.core.migration.plan_rows import MigrationStep, Outcome, PlanRow, ReportRow
from zkgroups.core.migration.tally import Tally
from zkgroups.core.znodes.topic_partition import TopicPartition


def plan_row(group: str, action: Action, reason: Reason, **fields: Any) -> PlanRow:
    given: dict[str, Any] = dict.fromkeys(PlanRow.__dataclass_fields__)
    given |= {"group": group, "target": group, "action": action, "reason": reason, "obstacles": ()}
    return PlanRow(**given | fields)


def report_row(target: str, outcome: Outcome) -> ReportRow:
    return ReportRow(
        plan="p",
        step=MigrationStep.APPLY,
        reported_ms=1,
        group=target,
        topic="orders",
        partition=0,
        target=target,
        found=None,
        written=None,
        outcome=outcome,
        detail="",
    )


def test_a_plan_is_counted_by_group_action_and_reason() -> None:
    blocked = (Obstacle(ObstacleKind.TARGET_CONFLICT),)
    rows = [
        plan_row("a", Action.COMMIT, Reason.UNCHANGED, target="t"),
        plan_row("a", Action.SKIP, Reason.STALE, target="t"),
        plan_row("b", Action.COMMIT, Reason.UNCHANGED, target="t", obstacles=blocked),
    ]
    counts = {"commit": 2, "skip": 1, "unchanged": 2, "stale": 1}
    assert Tally.of(PlanRow, rows) == Tally(rows=3, groups=2, left=1, failed=0, counts=counts)


def test_a_group_counts_once_however_many_rows_were_left_or_failed() -> None:
    rows = [
        *(report_row("a", outcome) for outcome in (Outcome.WRITTEN, Outcome.FAILED, Outcome.OVERTAKEN)),
        *(report_row("b", outcome) for outcome in (Outcome.LEFT, Outcome.LEFT)),
        report_row("c", Outcome.THERE),
    ]
    counts = {"written": 1, "already there": 1, "left": 2, "overtaken": 1, "failed": 1}
    assert Tally.of(ReportRow, rows) == Tally(rows=6, groups=3, left=1, failed=1, counts=counts)


@given(st.lists(st.sampled_from(Outcome)), st.lists(st.sampled_from(Outcome)))
def test_the_tallies_of_tasks_add_up(first: list[Outcome], second: list[Outcome]) -> None:
    parts = [
        [report_row(f"{part} {n}", each) for n, each in enumerate(found)] for part, found in enumerate((first, second))
    ]
    one, other = (Tally.of(ReportRow, part) for part in parts)
    assert one + other == other + one == Tally.of(ReportRow, [*parts[0], *parts[1]])
    assert list((one + other).counts) == [word for word in Outcome if word in {*first, *second}]
    assert one + Tally() == one


def test_values_from_columns_are_equal_to_others_and_know_their_partition() -> None:
    rows = [plan_row("g", Action.SKIP, Reason.STALE, topic="orders", partition=number) for number in (0, None)]
    names = list(PlanRow.__dataclass_fields__)
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in names} | {"group": repeat("g")}
    made = from_columns(PlanRow, len(rows), columns)
    assert made == rows
    assert [row.at for row in made] == [TopicPartition("orders", 0), None]
    assert made[0].at is made[0].at
    assert made == rows  # also now
    assert hash(made[0]) == hash(rows[0])
