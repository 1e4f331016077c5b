"""The last part of the demo: move the group to Kafka's committed offsets, like `zkgroups migrate`, without Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from zkgroups import Registry
from zkgroups.exceptions import GroupMigratedError

from ..migrate.tables import OFFSETS, plain
from ..shared.output import Output

if TYPE_CHECKING:
    from zkgroups.core.migration.plan_rows import PlanRow
    from zkgroups.kafka import Brokers

_PLAN: Final = "demo"


def move(output: Output, registry: Registry, address: str, group: str) -> None:
    """Plan, apply and verify the move. Then show that the mark keeps an instance from registering."""
    from zkgroups.core.migration.plan_rows import Match, Outcome
    from zkgroups.kafka import Brokers
    from zkgroups.migration.apply import apply_groups
    from zkgroups.migration.verify import verify_groups

    with Brokers.connect(address) as brokers:
        rows = _planned(registry, brokers, address, group)
        output.line(f"The plan for each offset of group {group!r} on its brokers:")
        output.line()
        output.write(OFFSETS, map(plain, rows))
        output.line()
        report = apply_groups(rows, brokers, registry, execute=True)
        written = sum(row.outcome is Outcome.WRITTEN for row in report)
        found = verify_groups(rows, brokers, registry)
        equal = sum(row.match is Match.EQUAL for row in found)
        output.line(f"The plan is applied: {written} offsets are written. Verified: {equal} of {len(found)} are equal.")
    try:
        registry.group(group).instance("anna").register([row.topic for row in rows if row.topic][:1])
    except GroupMigratedError as error:
        output.line(f"anna tries to register again, and is refused: {error}.")


def _planned(registry: Registry, brokers: Brokers, address: str, group: str) -> Sequence[PlanRow]:
    from zkgroups.migration.current_state import read_sources
    from zkgroups.migration.plan import Planner, PlanSettings, SourceNode

    state = read_sources(registry, [group])[group]
    offsets = [
        SourceNode(group=group, target=group, member=False, topic=topic, partition=at, offset=it.offset, zxid=it.zxid)
        for (topic, at), it in sorted(state.offsets.items(), key=str)
    ]
    settings = PlanSettings(
        plan=_PLAN,
        planned_ms=time.time_ns() // 1_000_000,
        source=_PLAN,
        brokers=address,
        cluster=brokers.cluster_id(),
        retention_seconds=brokers.offsets_retention(),
    )
    return Planner(settings, brokers).plan(offsets)
