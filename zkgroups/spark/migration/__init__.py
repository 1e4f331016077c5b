"""Move thousands of groups to Kafka's committed offsets, with a plan stored in a folder.

    zookeeper, brokers = SourceOptions(zookeeper="zk1:2181/kafka"), BrokerOptions("kafka1:9092")
    plan(spark, "/data/move", zookeeper, brokers)
    read_plan(spark, "/data/move").where("size(obstacles) > 0").select("group", "obstacles.kind").distinct().show()
    apply(spark, "/data/move", brokers, zookeeper, execute=True)
    verify(spark, "/data/move", brokers, zookeeper)
    rollback(spark, "/data/move", brokers, zookeeper, execute=True)

Needs the extras `zkgroups[spark,kafka]`.
"""

from __future__ import annotations

from .execution import ExecutionResult, apply, rollback, verify
from .planning import PlanSummary, groups, plan, read_plan, summary
from .reports import differing, group_results, read_report
from .sources import SnapshotSource
from .status import status

__all__ = [
    "ExecutionResult",
    "PlanSummary",
    "SnapshotSource",
    "apply",
    "differing",
    "group_results",
    "groups",
    "plan",
    "read_plan",
    "read_report",
    "rollback",
    "status",
    "summary",
    "verify",
]
