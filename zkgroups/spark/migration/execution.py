"""Applying, verifying and rolling back a stored plan: each is one Spark job.

    apply(spark, "/data/move", BrokerOptions("kafka1:9092"), SourceOptions(zookeeper="zk1:2181/kafka"), execute=True)
    read_report(spark, "/data/move").where("outcome = 'left'").select("group", "detail").distinct().show()

Each task processes chunks of whole groups with the functions of `zkgroups.migration`. A task or a run that was killed
can be repeated, with the same result. Every run writes a report to the folder of the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ...core.migration.plan_rows import OF_THE_PLAN, MatchRow, MigrationStep, PlanRow, ReportRow
from ...exceptions import GuardFailedError, NotSharedError
from ...input_errors import InvalidOptionError
from ...kafka import BrokerOptions, Brokers
from ...migration.apply import apply_groups
from ...migration.report import MADE_WITHOUT_BROKERS, check_cluster
from ...migration.rollback import rollback_groups
from ...migration.verify import verify_groups
from ...zookeeper.registry import Registry
from ..errors import translated
from ..pyspark_internals import active_session
from ..snapshots.snapshot import session_beside
from ..source.options import SourceOptions
from ..spark_thread import interruptible
from ..storage.writing import check_shared
from .arrow_rows import split, table
from .chunks import group_chunks
from .jobs import by_target, map_batches, tasks
from .plan_folder import PlanFolder
from .row_counts import with_tally_column, write_and_count

STEPS: Final = 2
"""The calls of `on_progress`: the work itself, and moving the report into place."""

MIN_ROWS_PER_TASK: Final = 5_000
"""With fewer rows, a task takes longer to connect than to do its work."""

ROWS_PER_EXTRA_TASK: Final = 50_000
"""With this many rows per task, more tasks than cores are useful: they show the progress of the job."""

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """The result of a step for a whole plan.

    - `destination`: the folder of the plan.
    - `report`: the name of the report, for `read_report`. It has the result of each row.
    - `step`: apply, rollback or verify.
    - `executed`: False if nothing was written.
    - `groups`: the number of groups.
    - `left`: groups left unchanged, because of obstacles in the plan or found by this step.
    - `failed`: groups with failed or overtaken rows.
    - `counts`: the number of rows by outcome; of a comparison, by match.
    - `seconds`: how long it took.
    """

    destination: str
    report: str
    step: MigrationStep
    executed: bool
    groups: int
    left: int
    failed: int
    counts: Mapping[str, int]
    seconds: float


class ChunkOperation(Protocol):
    """The work on a chunk of whole groups."""

    kind: type[Any]
    """The dataclass of the results."""

    def __call__(self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, /) -> Sequence[Any]:
        """Process these groups and return the results."""


@dataclass(frozen=True, slots=True)
class ApplyOperation:
    """`apply_groups` with its options."""

    execute: bool

    kind = ReportRow

    def __call__(self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, /) -> Sequence[ReportRow]:
        return apply_groups(rows, brokers, registry, execute=self.execute)


@dataclass(frozen=True, slots=True)
class RollbackOperation:
    """`rollback_groups` with its options."""

    execute: bool
    force: bool
    to_zookeeper: bool

    kind = ReportRow

    def __call__(self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, /) -> Sequence[ReportRow]:
        options = {"execute": self.execute, "force": self.force, "to_zookeeper": self.to_zookeeper}
        return rollback_groups(rows, brokers, registry, **options)


@dataclass(frozen=True, slots=True)
class VerifyOperation:
    """Runs `verify_groups` on a worker."""

    kind = MatchRow

    def __call__(self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, /) -> Sequence[MatchRow]:
        return verify_groups(rows, brokers, registry)


# The steps


def apply(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    execute: bool,
    on_progress: OnProgress | None = None,
) -> ExecutionResult:
    """Write the offsets of the plan in this folder; without `execute`, only report what would be done.

    Groups with obstacles are left unchanged. Without a ZooKeeper, its guards are skipped. `on_progress` is called with
    the name of each step when it starts.
    """
    connections, task = MigrationConnections(brokers, zookeeper), ApplyOperation(execute)
    return _run(spark, destination, connections, MigrationStep.APPLY, task, on_progress, executed=execute)


def rollback(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    execute: bool,
    force: bool = False,
    to_zookeeper: bool = False,
    on_progress: OnProgress | None = None,
) -> ExecutionResult:
    """Restore the targets of the plan in this folder; without `execute`, only report what would be done.

    Groups with later commits are left unchanged, unless `force` is given, or `to_zookeeper` copies their progress to
    ZooKeeper first.
    """
    if to_zookeeper and zookeeper is None:
        raise InvalidOptionError("to_zookeeper", True, "it needs a ZooKeeper to copy offsets to")
    connections, task = MigrationConnections(brokers, zookeeper), RollbackOperation(execute, force, to_zookeeper)
    return _run(spark, destination, connections, MigrationStep.ROLLBACK, task, on_progress, executed=execute)


def verify(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    on_progress: OnProgress | None = None,
) -> ExecutionResult:
    """Compare both sides with the plan in this folder. The report has `MatchRow`s."""
    connections = MigrationConnections(brokers, zookeeper)
    return _run(spark, destination, connections, MigrationStep.VERIFY, VerifyOperation(), on_progress, executed=False)


# Tasks


@dataclass(frozen=True, slots=True)
class MigrationConnections:
    """The brokers and the ZooKeeper of a migration. Has no secrets, so it can be sent to workers."""

    brokers: BrokerOptions
    zookeeper: SourceOptions | None

    def check(self, cluster: str | None) -> None:
        """Connect to both from the driver, and compare the Kafka cluster with that of the plan."""
        with ExitStack() as stack:
            brokers, _registry = self.open(stack)
            check_cluster(cluster, brokers)

    def open(self, stack: ExitStack) -> tuple[Brokers, Registry | None]:
        """Connect to both until the stack is closed."""
        registry = None if self.zookeeper is None else stack.enter_context(self.zookeeper.connect())
        return stack.enter_context(self.brokers.connect()), registry


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """The function of a Spark task: process its rows chunk by chunk, with its own connections."""

    connections: MigrationConnections
    task: ChunkOperation
    constants: Mapping[str, Any]
    """The values that are the same in all rows of the plan."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        with ExitStack() as stack:
            opened: tuple[Brokers, Registry | None] | None = None
            for chunk in group_chunks(PlanRow, batches, self.constants):
                opened = opened or self.connections.open(stack)  # a task without rows does not connect
                results = table(self.task.kind, self.task(chunk, *opened))
                yield from split(with_tally_column(self.task.kind, results))


@dataclass(frozen=True, slots=True)
class ExecutablePlan:
    """The rows of a plan, distributed over tasks."""

    rows: DataFrame
    constants: Mapping[str, Any]
    """The values that are the same in all rows. They are not sent with each row."""

    @classmethod
    def of(cls, spark: SparkSession, folder: PlanFolder) -> ExecutablePlan:
        """Read the plan in this folder, and check that it is complete and was made with brokers."""
        rows = folder.plan()
        counts = [f.count(f.lit(1)).alias("total"), f.count("brokers").alias("with_brokers")]
        # One task is enough: only two columns are read, and merging results of many tasks takes longer.
        found = rows.coalesce(1).agg(*counts, *(f.first(name).alias(name) for name in OF_THE_PLAN)).first()
        assert found is not None
        total, with_brokers, *same = found
        folder.check_rows(total)
        if with_brokers < total:
            raise GuardFailedError(f"the plan in {folder} {MADE_WITHOUT_BROKERS}")
        distributed = by_target(rows.drop(*OF_THE_PLAN), _task_count(spark, total))
        return cls(distributed, dict(zip(OF_THE_PLAN, same, strict=True)))


def _task_count(spark: SparkSession, rows: int) -> int:
    cores = spark.sparkContext.defaultParallelism
    return min(tasks(spark), 1 + rows // MIN_ROWS_PER_TASK, max(cores, rows // ROWS_PER_EXTRA_TASK))


def _run(
    spark: SparkSession,
    destination: str,
    connections: MigrationConnections,
    step: MigrationStep,
    task: ChunkOperation,
    on_progress: OnProgress | None,
    *,
    executed: bool,
) -> ExecutionResult:
    began = time.monotonic()
    if executed:
        _refuse_speculation(spark)

    def run(on_progress: OnProgress) -> ExecutionResult:
        check_shared(spark, destination)
        own = session_beside(spark)
        folder, at = PlanFolder(own, destination), datetime.now(UTC)
        with active_session(own), translated(f"the plan in {folder} cannot be read"):
            plan = ExecutablePlan.of(own, folder)
        connections.check(plan.constants["cluster"])
        with _explained_errors(executed=executed) as job, folder.new_report(step, at) as report:
            on_progress(_STEP_TEXTS[step])
            with active_session(own), translated(f"the plan in {folder} could not be processed"):
                results = map_batches(plan.rows, ChunkTask(connections, task, plan.constants), task.kind, tally=True)
                job.began = True
                counts = write_and_count(results, task.kind, report.path)
            on_progress("moving the report into place")
        return ExecutionResult(
            destination=str(folder),
            report=report.name,
            step=step,
            executed=executed,
            groups=counts.groups,
            left=counts.left,
            failed=counts.failed,
            counts=counts.counts,
            seconds=time.monotonic() - began,
        )

    return interruptible(spark, run, on_progress)


_STEP_TEXTS: Final = {
    MigrationStep.APPLY: "applying",
    MigrationStep.ROLLBACK: "rolling back",
    MigrationStep.VERIFY: "verifying",
}


# Errors


@dataclass(slots=True)
class _Job:
    """Whether tasks may have written offsets."""

    began: bool = False


@contextmanager
def _explained_errors(*, executed: bool) -> Iterator[_Job]:
    """Add a note to errors after which some or all offsets may have been written."""
    job = _Job()
    try:
        yield job
    except Exception as error:
        if executed and job.began:
            error.add_note(_ONLY_THE_REPORT if isinstance(error, NotSharedError) else _PARTLY_DONE)
        raise


_ONLY_THE_REPORT: Final = "only the report failed; the plan itself was carried out: see `migrate status`"
_PARTLY_DONE: Final = (
    "some or all offsets may have been written, although the report is missing: see `migrate status`, and run the same "
    "command again to finish"
)


def _refuse_speculation(spark: SparkSession) -> None:
    """Raise an error if Spark may run a task twice at a time: one copy could delete what the other has restored."""
    if (spark.conf.get("spark.speculation", "false") or "").lower() == "true":
        raise InvalidOptionError("spark.speculation", True, "two tasks must not write to one group at a time")
