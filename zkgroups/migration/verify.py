"""Comparing whole groups with their plan: both sides are read anew, and every row is told of."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.carrying import by_target
from ..core.mark import Mark
from ..core.matching import GroupStatus, matches, status
from ..core.plan import MatchRow, PlanRow
from ..kafka import Brokers
from ..zookeeper import mark as marks
from ..zookeeper.registry import Registry
from .guards import look_at_sources, look_at_targets
from .report import check_asked


def verify_groups(rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None) -> list[MatchRow]:
    """Every row of these groups against what both sides have now; without a registry only the target is compared."""
    check_asked(rows)
    sources = {} if registry is None else look_at_sources(registry, (row.group for row in rows))
    seen = look_at_targets(brokers, (row.target for row in rows))
    found: list[MatchRow] = []
    for target, its in by_target(rows).items():
        for group in dict.fromkeys(row.group for row in its):
            of_group = [row for row in its if row.group == group]
            found += matches(of_group, sources.get(group), seen[target])
    return found


def status_of_groups(rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None) -> list[GroupStatus]:
    """How far each of these groups is, as its target and its mark tell."""
    check_asked(rows)
    seen = look_at_targets(brokers, (row.target for row in rows))
    found = {} if registry is None else marks.read(registry.handle, (row.group for row in rows))
    shown = {group: it.shown if isinstance(it, Mark) else f"cannot be read: {it.reason}" for group, it in found.items()}
    return [status(its, seen[target], shown.get(its[0].group, "")) for target, its in by_target(rows).items()]
