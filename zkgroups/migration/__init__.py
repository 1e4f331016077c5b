"""Whole groups moved to Kafka's own offsets, and back: in bulk, and without Spark. Needs the extra `zkgroups[kafka]`.

What is done is done with the rows of a plan (`core/plan.py`), all rows of each group:

    rows = Planner(planning, brokers).plan(found)
    for done in apply_groups(rows, brokers, registry, execute=True): print(done.group, done.outcome, done.detail)
    assert all(row.match is Match.EQUAL for row in verify_groups(rows, brokers, registry))
    rollback_groups(rows, brokers, registry, execute=True)

`zkgroups.spark.migration` does it with the groups of a plan that is a folder.
"""

from __future__ import annotations

from .apply import apply_groups
from .follow import follow
from .plan import Found, Planner, Planning
from .rollback import rollback_groups
from .verify import status_of_groups, verify_groups

__all__ = [
    "Found",
    "Planner",
    "Planning",
    "apply_groups",
    "follow",
    "rollback_groups",
    "status_of_groups",
    "verify_groups",
]
