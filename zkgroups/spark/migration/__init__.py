"""Move thousands of groups to Kafka's committed offsets, with a plan stored in a folder, by Spark.

    zookeeper, brokers = SourceOptions(zookeeper="zk1:2181/kafka"), BrokerOptions("kafka1:9092")
    plan(spark, "/data/move", zookeeper, brokers)
    read_plan(spark, "/data/move").where("size(obstacles) > 0").select("group", "obstacles.kind").distinct().show()
    apply(spark, "/data/move", brokers, zookeeper, execute=True)
    verify(spark, "/data/move", brokers, zookeeper)
    rollback(spark, "/data/move", brokers, zookeeper, execute=True)

`zkgroups.migration.local` has the same functions without Spark, and reads the same folders. Needs the extras
`zkgroups[spark,kafka]`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from pyspark.sql import DataFrame, SparkSession

from ...core.migration.plan_rows import PlanRow
from ...migration import planning, steps, summaries
from ...migration.planning import PlanSummary
from ...migration.snapshot_source import SnapshotSource
from ...migration.steps import ExecutionResult
from ...migration.tasks import Engine, signature_of
from .engine import SparkEngine

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

P = ParamSpec("P")
T = TypeVar("T")


def _by_spark(step: Callable[Concatenate[Engine, P], T]) -> Callable[Concatenate[SparkSession, P], T]:
    """Let a step take a Spark session instead of an engine."""

    @wraps(step)
    def call(spark: SparkSession, /, *args: P.args, **options: P.kwargs) -> T:
        return step(SparkEngine(spark), *args, **options)

    call.__dict__["__signature__"] = signature_of(step, "spark")
    return call


plan = _by_spark(planning.plan)
summary = _by_spark(planning.summary)
apply = _by_spark(steps.apply)
rollback = _by_spark(steps.rollback)
verify = _by_spark(steps.verify)
status = _by_spark(steps.status)
groups = _by_spark(summaries.groups)
group_results = _by_spark(summaries.group_results)
differing = _by_spark(summaries.differing)


def read_plan(spark: SparkSession, destination: str) -> DataFrame:
    """Return the rows of a plan, with the columns of `PlanRow`."""
    engine = SparkEngine(spark)
    return engine.read(PlanRow, engine.folder(destination).plan()).frame


def read_report(spark: SparkSession, destination: str, name: str | None = None) -> DataFrame:
    """Return the rows of a report in the folder of a plan, the latest if none is named."""
    engine = SparkEngine(spark)
    path, kind = engine.folder(destination).report(name)
    return engine.read(kind, path).frame
