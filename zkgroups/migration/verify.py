"""Verifying groups: read both sides again, and compare every row with the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..core.columns import Columns, column
from ..core.layouts.layout import Layout
from ..core.layouts.legacy import LEGACY
from ..core.layouts.parse_layout import parse_layout
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
    layout = parse_layout(rows[0].layout) if rows else LEGACY
    sources = {} if registry is None else read_sources(registry, column(rows, "group"), layout)
    targets = read_targets(brokers, plans, members=False)
    ids = read_topic_ids(brokers, plans)
    groups = zip(column(rows, "group"), column(rows, "obstacles"), strict=True)
    found = _read_marks((group for group, obstacles in groups if obstacles), registry, layout)
    # If several groups have the same target, each is compared by itself.
    parts = ((target, *each) for target, of_target in plans.items() for each in by_group(of_target).items())
    matches = [
        compare_rows(rows, sources.get(group), targets[target], ids, moved=_is_moved(rows[0], found))
        for target, group, rows in parts
    ]
    return Columns.joined(MatchRow, matches)


def status_of_groups(rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None) -> list[GroupStatus]:
    """Return the progress of each of these groups, by its target and its mark."""
    check_made_with_brokers(rows)
    plans = by_target(rows)
    targets = read_targets(brokers, plans, members=False)
    found = _read_marks(column(rows, "group"), registry, parse_layout(rows[0].layout) if rows else LEGACY)

    def shown(group: str) -> str:
        mark = found.get(group)
        if mark is None:
            return ""
        return mark.shown if isinstance(mark, Mark) else f"cannot be read: {mark.reason}"

    return [
        group_status(
            of_target,
            targets[target],
            shown(of_target[0].group),
            moved=None if registry is None else _is_moved(of_target[0], found),
        )
        for target, of_target in plans.items()
    ]


def _read_marks(groups: Iterable[str], registry: Registry | None, layout: Layout) -> dict[str, marks.ReadMark]:
    return {} if registry is None else marks.read(context_of(registry), groups, layout)


def _is_moved(row: PlanRow, found: Mapping[str, marks.ReadMark]) -> bool:
    """Return whether the mark of the group says that this plan has moved it."""
    mark = found.get(row.group)
    return isinstance(mark, Mark) and (mark.plan, mark.state) == (row.plan, MarkState.MOVED)
