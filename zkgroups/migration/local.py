"""Plans in a folder on this machine, without Spark, for as many groups as one process can move.

    zookeeper, brokers = ZooKeeperSource(zookeeper="zk1:2181/kafka", groups="bill.*"), BrokerOptions("kafka1:9092")
    plan("/data/move", zookeeper, brokers)
    apply("/data/move", brokers, zookeeper, execute=True)
    verify("/data/move", brokers, zookeeper)
    rollback("/data/move", brokers, zookeeper, execute=True)

`zkgroups.spark.migration` has the same functions for Spark, and reads the same folders. Needs the extra
`zkgroups[migrate]`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from ..zookeeper.zookeeper_source import ZooKeeperSource
from . import planning, steps, summaries
from .local_engine import LocalEngine
from .planning import PlanSummary
from .snapshot_source import SnapshotSource
from .steps import ExecutionResult
from .tasks import Engine, signature_of

__all__ = [
    "ExecutionResult",
    "PlanSummary",
    "SnapshotSource",
    "ZooKeeperSource",
    "apply",
    "differing",
    "group_results",
    "groups",
    "plan",
    "plan_rows",
    "report_rows",
    "rollback",
    "status",
    "summary",
    "verify",
]

P = ParamSpec("P")
T = TypeVar("T")


def _in_process(step: Callable[Concatenate[Engine, P], T]) -> Callable[P, T]:
    """Call a step with a `LocalEngine`."""

    @wraps(step)
    def call(*args: P.args, **options: P.kwargs) -> T:
        return step(LocalEngine(), *args, **options)

    call.__dict__["__signature__"] = signature_of(step)
    return call


plan = _in_process(planning.plan)
summary = _in_process(planning.summary)
apply = _in_process(steps.apply)
rollback = _in_process(steps.rollback)
verify = _in_process(steps.verify)
status = _in_process(steps.status)
groups = _in_process(summaries.groups)
group_results = _in_process(summaries.group_results)
plan_rows = _in_process(summaries.plan_rows)
report_rows = _in_process(summaries.report_rows)
differing = _in_process(summaries.differing)
