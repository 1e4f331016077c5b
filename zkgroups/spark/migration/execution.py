"""Apply, verify or roll back a migration plan for thousands of groups, each as one Spark job.

    apply(spark, "/data/move", BrokerOptions("kafka1:9092"), SourceOptions(zookeeper="zk1:2181/kafka"), execute=True)
    read_report(spark, "/data/move").where("outcome = 'left'").select("group", "detail").distinct().show()

Each task processes chunks of whole groups with `zkgroups.migration`. Every operation is idempotent, so a killed task or
run can be repeated. Every run writes a report beside the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ...core.migration.lazy_rows import Rows
from ...core.migration.plain_groups import Group
from ...core.migration.plan_rows import OF_THE_PLAN, MatchRow, PlanRow, ReportRow, Step
from ...exceptions import GuardFailedError, InvalidOptionError, NotSharedError
from ...kafka import BrokerOptions, Brokers
from ...migration.apply import apply_plans
from ...migration.report import check_cluster
from ...migration.rollback import rollback_groups
from ...migration.verify import verify_plans
from ...zookeeper.registry import Registry
from ..errors import translated
from ..snapshots.snapshot import session_beside
from ..source.data_source import active_session
from ..source.options import SourceOptions
from ..spark_thread import interruptible
from ..storage.writing import check_shared
from .arrow_rows import split, table
from .chunks import group_chunks
from .jobs import by_target, map_batches, tasks
from .plan_folder import PlanFolder
from .row_counts import with_tally_column, write_and_count

STEPS: Final = 2
"""The number of calls of `on_progress`: the work, and moving the report into place."""

ROWS_OF_A_TASK: Final = 5_000
"""With fewer rows, a task takes longer to connect than to work."""

ROWS_WORTH_A_TASK: Final = 50_000
"""With this many rows per task, more tasks than cores are worthwhile, which makes progress visible."""

OnProgress = Callable[[str], None]
PlannedGroups = Mapping[str, Group]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """The result of a run: its totals, and the name of the report with the details of each row."""

    destination: str
    report: str
    step: Step
    executed: bool
    groups: int
    left: int
    """The number of groups skipped because of an obstacle."""
    failed: int
    """The number of groups with failed or overtaken rows."""
    counts: Mapping[str, int]
    """The number of rows by outcome; after `verify`, by match."""
    seconds: float


class ChunkOperation(Protocol):
    """An operation on a chunk of whole groups."""

    kind: type[Any]
    """The class of the resulting rows."""

    def __call__(self, groups: PlannedGroups, brokers: Brokers, registry: Registry | None, /) -> Rows[Any]:
        """Process the groups."""


@dataclass(frozen=True, slots=True)
class ApplyOperation:
    """Calls `apply_plans`."""

    execute: bool

    kind = ReportRow

    def __call__(self, groups: PlannedGroups, brokers: Brokers, registry: Registry | None, /) -> Rows[ReportRow]:
        return apply_plans(groups, brokers, registry, execute=self.execute)


@dataclass(frozen=True, slots=True)
class RollbackOperation:
    """Calls `rollback_groups`."""

    execute: bool
    force: bool
    to_zookeeper: bool

    kind = ReportRow

    def __call__(self, groups: PlannedGroups, brokers: Brokers, registry: Registry | None, /) -> Rows[ReportRow]:
        rows = [row for group in groups.values() for row in group]
        options = {"execute": self.execute, "force": self.force, "to_zookeeper": self.to_zookeeper}
        return Rows.of(ReportRow, rollback_groups(rows, brokers, registry, **options))


@dataclass(frozen=True, slots=True)
class VerifyOperation:
    """Calls `verify_plans`."""

    kind = MatchRow

    def __call__(self, groups: PlannedGroups, brokers: Brokers, registry: Registry | None, /) -> Rows[MatchRow]:
        return verify_plans(groups, brokers, registry)


def apply(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    execute: bool,
    on_progress: OnProgress = lambda _step: None,
) -> ExecutionResult:
    """Write the planned offsets of groups without obstacles; without `execute`, only report what would be written.

    Without `zookeeper`, all checks in ZooKeeper are skipped.
    """
    return _execute(
        spark,
        destination,
        MigrationConnections(brokers, zookeeper),
        Step.APPLY,
        ApplyOperation(execute),
        on_progress,
        executed=execute,
    )


def rollback(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    execute: bool,
    force: bool = False,
    to_zookeeper: bool = False,
    on_progress: OnProgress = lambda _step: None,
) -> ExecutionResult:
    """Restore the targets to their state before the plan; without `execute`, only report what would be restored.

    Groups whose offsets have moved since are skipped, unless `force` is set or their progress is copied back with
    `to_zookeeper`.
    """
    if to_zookeeper and zookeeper is None:
        raise InvalidOptionError("to_zookeeper", True, "zookeeper is required to copy offsets back")
    work = RollbackOperation(execute, force, to_zookeeper)
    return _execute(
        spark, destination, MigrationConnections(brokers, zookeeper), Step.ROLLBACK, work, on_progress, executed=execute
    )


def verify(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    on_progress: OnProgress = lambda _step: None,
) -> ExecutionResult:
    """Compare both sides with the plan; the report consists of `MatchRow`s."""
    return _execute(
        spark,
        destination,
        MigrationConnections(brokers, zookeeper),
        Step.VERIFY,
        VerifyOperation(),
        on_progress,
        executed=False,
    )


@dataclass(frozen=True, slots=True)
class MigrationConnections:
    """The options to connect to both sides. They contain no secrets, so they can be sent to workers."""

    brokers: BrokerOptions
    zookeeper: SourceOptions | None

    def check(self, cluster: str | None) -> None:
        """Fail fast on the driver if a side is unreachable or the cluster differs from the plan's."""
        with ExitStack() as stack:
            brokers, _registry = self.open(stack)
            check_cluster(cluster, brokers)

    def open(self, stack: ExitStack) -> tuple[Brokers, Registry | None]:
        """Connect to both sides until the stack is closed."""
        registry = None if self.zookeeper is None else stack.enter_context(self.zookeeper.connect())
        return stack.enter_context(self.brokers.connect()), registry


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """The function of a task: process chunk by chunk over its own connections."""

    connections: MigrationConnections
    operation: ChunkOperation
    constants: Mapping[str, Any]
    """The columns with one value for all rows of the plan."""

    def __call__(self, found: Iterator[Any]) -> Iterator[Any]:
        with ExitStack() as stack:
            opened: tuple[Brokers, Registry | None] | None = None
            for chunk in group_chunks(PlanRow, found, self.constants):
                opened = opened or self.connections.open(stack)  # a task may have no rows
                groups = {target: Group(PlanRow, *slots) for target, slots in chunk.slices()}
                made = table(self.operation.kind, self.operation(groups, *opened))
                yield from split(with_tally_column(self.operation.kind, made))


@dataclass(frozen=True, slots=True)
class ExecutablePlan:
    """The rows of a plan made with brokers, partitioned for the tasks."""

    rows: DataFrame
    constants: Mapping[str, Any]
    """The columns with one value for all rows, which are not sent with each row."""

    @classmethod
    def of(cls, spark: SparkSession, folder: PlanFolder) -> ExecutablePlan:
        """Read the plan in a folder."""
        rows = folder.plan()
        counts = [f.count(f.lit(1)).alias("total"), f.count("brokers").alias("with_brokers")]
        # In one task, because a shuffle would take longer than the read.
        found = rows.coalesce(1).agg(*counts, *(f.first(name).alias(name) for name in OF_THE_PLAN)).first()
        assert found is not None
        total, with_brokers, *constants = found
        folder.check_rows(total)
        if with_brokers < total:
            raise GuardFailedError(f"the plan in {folder} was made without brokers: it can only be shown and exported")
        partitioned = by_target(rows.drop(*OF_THE_PLAN), _tasks(spark, total))
        return cls(partitioned, dict(zip(OF_THE_PLAN, constants, strict=True)))


def _tasks(spark: SparkSession, rows: int) -> int:
    cores = spark.sparkContext.defaultParallelism
    return min(tasks(spark), 1 + rows // ROWS_OF_A_TASK, max(cores, rows // ROWS_WORTH_A_TASK))


def _execute(
    spark: SparkSession,
    destination: str,
    connections: MigrationConnections,
    step: Step,
    operation: ChunkOperation,
    on_progress: OnProgress,
    *,
    executed: bool,
) -> ExecutionResult:
    started = time.monotonic()
    if executed:
        _refuse_speculation(spark)

    def run(on_progress: OnProgress) -> ExecutionResult:
        check_shared(spark, destination)
        own = session_beside(spark)
        folder, at = PlanFolder(own, destination), datetime.now(UTC)
        with active_session(own), translated(f"the plan in {folder} cannot be read"):
            planned = ExecutablePlan.of(own, folder)
        connections.check(planned.constants["cluster"])
        with _with_notes(executed=executed) as work, folder.new_report(step, at) as report:
            on_progress(_DOING[step])
            with active_session(own), translated(f"the plan in {folder} could not be processed"):
                made = map_batches(
                    planned.rows, ChunkTask(connections, operation, planned.constants), operation.kind, tally=True
                )
                work.started = True
                found = write_and_count(made, operation.kind, report.path)
            on_progress("moving the report into place")
        return ExecutionResult(
            destination=str(folder),
            report=report.name,
            step=step,
            executed=executed,
            groups=found.groups,
            left=found.left,
            failed=found.failed,
            counts=found.counts,
            seconds=time.monotonic() - started,
        )

    return interruptible(spark, run, on_progress)


@dataclass(slots=True)
class _Progress:
    """Whether tasks have started, and so may have written offsets."""

    started: bool = False


@contextmanager
def _with_notes(*, executed: bool) -> Iterator[_Progress]:
    """Add a note to errors after which some or all offsets may be written."""
    work = _Progress()
    try:
        yield work
    except Exception as error:
        if executed and work.started:
            error.add_note(_ONLY_THE_REPORT if isinstance(error, NotSharedError) else _PARTLY_DONE)
        raise


_ONLY_THE_REPORT: Final = "only the report failed; the plan itself was processed: see `migrate status`"
_PARTLY_DONE: Final = (
    "offsets of some or all groups may have been written, although the report is missing: see `migrate status`, and "
    "run the same command again to finish"
)


def _refuse_speculation(spark: SparkSession) -> None:
    """Raise InvalidOptionError if speculation is enabled: two tasks for one group would undo each other's work."""
    if (spark.conf.get("spark.speculation", "false") or "").lower() == "true":
        raise InvalidOptionError(
            "spark.speculation", True, "disable it: two tasks must not write the offsets of one group at the same time"
        )


_DOING: Final = {Step.APPLY: "applying", Step.ROLLBACK: "rolling back", Step.VERIFY: "verifying"}
