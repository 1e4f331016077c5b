"""Comparing whole groups with their plan: both sides are read anew, and every row is told of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from ..core.migration.apply_rules import by_target
from ..core.migration.comparison import GroupStatus, all_equal, matches, status
from ..core.migration.lazy_rows import Rows
from ..core.migration.plain_groups import Group, of_all
from ..core.migration.plan_rows import MatchRow, PlanRow
from ..core.znodes.migration_mark import Mark, MarkState
from ..kafka import Brokers
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .current_state import look_at_sources, look_at_targets, topic_ids
from .report import check_asked


def verify_groups(rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None) -> list[MatchRow]:
    """Every row of these groups against what both sides have now; without a registry only the target is compared."""
    check_asked(rows)
    return list(verify_plans(by_target(rows), brokers, registry))


def verify_plans(plans: Mapping[str, Sequence[PlanRow]], brokers: Brokers, registry: Registry | None) -> Rows[MatchRow]:
    """The same for rows that are together by their targets."""
    groups = {target: _groups(rows) for target, rows in plans.items()}
    sources = {} if registry is None else look_at_sources(registry, chain.from_iterable(groups.values()))
    seen = look_at_targets(brokers, plans, members=False)
    ids = topic_ids(brokers, plans)
    found = Rows(MatchRow)
    for target, its in plans.items():
        if isinstance(its, Group) and (equal := all_equal(its, sources.get(of_all(its, "group")), seen[target], ids)):
            found.extend(len(its), equal)
            continue
        for group in groups[target]:
            for row in matches([row for row in its if row.group == group], sources.get(group), seen[target], ids):
                found.add(row)
    return found


def _groups(rows: Sequence[PlanRow]) -> dict[str, None]:
    names = rows.column("group") if isinstance(rows, Group) else (row.group for row in rows)
    return dict.fromkeys(names)


def status_of_groups(rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None) -> list[GroupStatus]:
    """How far each of these groups is, as its target and its mark tell."""
    check_asked(rows)
    seen = look_at_targets(brokers, (row.target for row in rows), members=False)
    found = {} if registry is None else marks.read(context_of(registry), (row.group for row in rows))
    shown = {group: it.shown if isinstance(it, Mark) else f"cannot be read: {it.reason}" for group, it in found.items()}

    def has_moved(row: PlanRow) -> bool:
        mark = found.get(row.group)
        return registry is None or (isinstance(mark, Mark) and (mark.plan, mark.state) == (row.plan, MarkState.MOVED))

    return [
        status(its, seen[target], shown.get(its[0].group, ""), moved=has_moved(its[0]))
        for target, its in by_target(rows).items()
    ]
