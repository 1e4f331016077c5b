"""Verifying groups: read both sides again, and compare every row with the plan."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.columns import Columns, column
from ..core.migration.changes_since_plan import by_group, by_target
from ..core.migration.comparison import compare_rows
from ..core.migration.group_status import GroupStatus, group_status
from ..core.migration.plan_rows import MatchRow, PlanRow
from ..core.znodes.migration_mark import Mark, MarkState
from ..kafka import Brokers
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .current_state import read_sources, read_targets, read_topic_ids
from .report import check_made_with_brokers


def verify_groups(rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None) -> Sequence[MatchRow]:
    """Compare all rows of these groups with both sides. Without a registry, compare only the target."""
    check_made_with_brokers(rows)
    plans = by_target(rows)
    sources = {} if registry is None else read_sources(registry, column(rows, "group"))
    targets = read_targets(brokers, plans, members=False)
    ids = read_topic_ids(brokers, plans)
    # If several groups have the same target, each is compared by itself.
    groups = ((target, *each) for target, of_target in plans.items() for each in by_group(of_target).items())
    matches = [compare_rows(rows, sources.get(group), targets[target], ids) for target, group, rows in groups]
    return Columns.joined(MatchRow, matches)


def status_of_groups(rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None) -> list[GroupStatus]:
    """Return the progress of each of these groups, by its target and its mark."""
    check_made_with_brokers(rows)
    plans = by_target(rows)
    targets = read_targets(brokers, plans, members=False)
    found = {} if registry is None else marks.read(context_of(registry), (row.group for row in rows))

    def has_moved(row: PlanRow) -> bool:
        mark = found.get(row.group)
        return registry is None or (isinstance(mark, Mark) and (mark.plan, mark.state) == (row.plan, MarkState.MOVED))

    def shown(group: str) -> str:
        mark = found.get(group)
        if mark is None:
            return ""
        return mark.shown if isinstance(mark, Mark) else f"cannot be read: {mark.reason}"

    return [
        group_status(of_target, targets[target], shown(of_target[0].group), moved=has_moved(of_target[0]))
        for target, of_target in plans.items()
    ]
