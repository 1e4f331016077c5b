"""Move whole groups to Kafka's committed offsets, and back, without Spark. Needs the extra `zkgroups[kafka]`.

All functions take the rows of a plan, `zkgroups.core.migration.plan_rows.PlanRow`, all rows of each group:

    rows = Planner(settings, brokers).plan(nodes)
    for row in apply_groups(rows, brokers, registry, execute=True): print(row.group, row.outcome, row.detail)
    assert all(row.match is Match.EQUAL for row in verify_groups(rows, brokers, registry))
    rollback_groups(rows, brokers, registry, execute=True)

`zkgroups.migration.local` and `zkgroups.spark.migration` do this for plans stored in a folder.
"""

from __future__ import annotations

from .apply import apply_groups, status_of_groups, verify_groups
from .follow import follow
from .plan import Planner, PlanSettings, SourceNode
from .rollback import rollback_groups

__all__ = [
    "PlanSettings",
    "Planner",
    "SourceNode",
    "apply_groups",
    "follow",
    "rollback_groups",
    "status_of_groups",
    "verify_groups",
]
