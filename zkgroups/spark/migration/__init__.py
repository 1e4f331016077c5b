"""Migrate thousands of groups to Kafka's own offsets: plan, apply, verify and roll back with Spark jobs.

    zookeeper, brokers = SourceOptions(zookeeper="zk1:2181/kafka"), BrokerOptions("kafka1:9092")
    plan(spark, "/data/move", zookeeper, brokers)
    read_plan(spark, "/data/move").where("size(obstacles) > 0").select("group", "obstacles").distinct().show()
    apply(spark, "/data/move", brokers, zookeeper, execute=True)
    verify(spark, "/data/move", brokers, zookeeper)
    rollback(spark, "/data/move", brokers, zookeeper, execute=True)

Needs the extras `zkgroups[spark,kafka]`.
"""

from __future__ import annotations

from .execution import ExecutionResult, apply, rollback, verify
from .planning import PlanSummary, groups, plan, read_plan, summary
from .reports import by_groups, differing, read_report
from .sources import SnapshotSource
from .status import status

__all__ = [
    "ExecutionResult",
    "PlanSummary",
    "SnapshotSource",
    "apply",
    "by_groups",
    "differing",
    "groups",
    "plan",
    "read_plan",
    "read_report",
    "rollback",
    "status",
    "summary",
    "verify",
]
