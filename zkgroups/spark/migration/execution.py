"""A plan carried out over thousands of groups, compared with what is there, and taken back: each is one Spark job.

    apply(spark, "/data/move", BrokerOptions("kafka1:9092"), SourceOptions(zookeeper="zk1:2181/kafka"), execute=True)
    read_report(spark, "/data/move").where("outcome = 'left'").select("group", "detail").distinct().show()

Each task has whole groups, and does with a chunk of them at a time what `zkgroups.migration` does. A task that is
killed begins again, and so does whoever calls again: it ends the same. Every run leaves a report beside the plan.
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
from ..source.data_source import active
from ..source.options import SourceOptions
from ..spark_thread import interruptible
from ..storage.writing import check_shared
from .arrow_rows import split, table
from .chunks import in_chunks
from .jobs import by_target, mapped, tasks
from .plan_folder import Folder
from .row_counts import tallied, write_and_count

STEPS: Final = 2
"""The work, and the report's being moved into place."""

ROWS_OF_A_TASK: Final = 5_000
"""A task of fewer takes longer to connect than to do its work."""

ROWS_WORTH_A_TASK: Final = 50_000
"""With so many for each there may be more tasks than cores, by which it is seen how far a job is."""

Told = Callable[[str], None]
Groups = Mapping[str, Group]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What became of a plan: the name of the report that tells it of each row, and how much there is of what."""

    destination: str
    report: str
    step: Step
    executed: bool
    groups: int
    left: int
    """Groups that were refused: the plan, or what was found, has something against them."""
    failed: int
    """Groups of which rows failed, or were overtaken."""
    counts: Mapping[str, int]
    """How many rows there are of each outcome; of a comparison, of each match."""
    seconds: float


class Chunk(Protocol):
    """What is done with some whole groups."""

    kind: type[Any]
    """What rows come of it."""

    def __call__(self, groups: Groups, brokers: Brokers, registry: Registry | None, /) -> Rows[Any]:
        """Do it."""


@dataclass(frozen=True, slots=True)
class Applying:
    """`apply_groups`, with its options."""

    execute: bool

    kind = ReportRow

    def __call__(self, groups: Groups, brokers: Brokers, registry: Registry | None, /) -> Rows[ReportRow]:
        return apply_plans(groups, brokers, registry, execute=self.execute)


@dataclass(frozen=True, slots=True)
class RollingBack:
    """`rollback_groups`, with its options."""

    execute: bool
    force: bool
    to_zookeeper: bool

    kind = ReportRow

    def __call__(self, groups: Groups, brokers: Brokers, registry: Registry | None, /) -> Rows[ReportRow]:
        rows = [row for group in groups.values() for row in group]
        options = {"execute": self.execute, "force": self.force, "to_zookeeper": self.to_zookeeper}
        return Rows.of(ReportRow, rollback_groups(rows, brokers, registry, **options))


@dataclass(frozen=True, slots=True)
class Verifying:
    """`verify_groups`."""

    kind = MatchRow

    def __call__(self, groups: Groups, brokers: Brokers, registry: Registry | None, /) -> Rows[MatchRow]:
        return verify_plans(groups, brokers, registry)


def apply(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    execute: bool,
    told: Told = lambda _step: None,
) -> Carried:
    """Write what the plan in this folder says, where nothing has come in the way; a dry run, but with `execute`.

    Without a ZooKeeper its guards are left out. `told` hears of each of the `STEPS` as it begins.
    """
    return _carry(spark, destination, Sides(brokers, zookeeper), Step.APPLY, Applying(execute), told, executed=execute)


def rollback(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    execute: bool,
    force: bool = False,
    to_zookeeper: bool = False,
    told: Told = lambda _step: None,
) -> Carried:
    """Put the targets of the plan in this folder back as they were; a dry run, but with `execute`.

    Groups whose offsets somebody has moved are left, but with `force`, or where their progress is carried
    `to_zookeeper` first.
    """
    if to_zookeeper and zookeeper is None:
        raise InvalidOptionError("to_zookeeper", True, "there is no ZooKeeper to carry anything to")
    work = RollingBack(execute, force, to_zookeeper)
    return _carry(spark, destination, Sides(brokers, zookeeper), Step.ROLLBACK, work, told, executed=execute)


def verify(
    spark: SparkSession,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: SourceOptions | None,
    *,
    told: Told = lambda _step: None,
) -> Carried:
    """Compare both sides with the plan in this folder, row by row; the report has `MatchRow`s."""
    return _carry(spark, destination, Sides(brokers, zookeeper), Step.VERIFY, Verifying(), told, executed=False)


@dataclass(frozen=True, slots=True)
class Sides:
    """How to reach both; without secrets, so that it may travel."""

    brokers: BrokerOptions
    zookeeper: SourceOptions | None

    def check(self, cluster: str | None) -> None:
        """Reach both here first, and the cluster of the plan: what is wrong is told at once, and not out of a job."""
        with ExitStack() as stack:
            brokers, _registry = self.open(stack)
            check_cluster(cluster, brokers)

    def open(self, stack: ExitStack) -> tuple[Brokers, Registry | None]:
        """Both, until the stack is closed."""
        registry = None if self.zookeeper is None else stack.enter_context(self.zookeeper.connect())
        return stack.enter_context(self.brokers.connect()), registry


@dataclass(frozen=True, slots=True)
class Work:
    """What a task does: chunk by chunk, with connections of its own."""

    sides: Sides
    chunk: Chunk
    same: Mapping[str, Any]
    """What all rows of the plan have."""

    def __call__(self, found: Iterator[Any]) -> Iterator[Any]:
        with ExitStack() as stack:
            opened: tuple[Brokers, Registry | None] | None = None
            for chunk in in_chunks(PlanRow, found, self.same):
                opened = opened or self.sides.open(stack)  # a task may have nothing to do
                groups = {target: Group(PlanRow, *slots) for target, slots in chunk.slices()}
                made = table(self.chunk.kind, self.chunk(groups, *opened))
                yield from split(tallied(self.chunk.kind, made))


@dataclass(frozen=True, slots=True)
class Planned:
    """The rows of a plan that can be carried out, for as many tasks as they are worth."""

    rows: DataFrame
    same: Mapping[str, Any]
    """What all of them have: it need not travel with each."""

    @classmethod
    def of(cls, spark: SparkSession, folder: Folder) -> Planned:
        """Those of the plan in this folder."""
        rows = folder.plan()
        counts = [f.count(f.lit(1)).alias("total"), f.count("brokers").alias("asked")]
        # By one task, for there is less to read than to bring together.
        found = rows.coalesce(1).agg(*counts, *(f.first(name).alias(name) for name in OF_THE_PLAN)).first()
        assert found is not None
        total, asked, *same = found
        folder.check_rows(total)
        if asked < total:
            raise GuardFailedError(
                f"the plan in {folder} was made without brokers: it can be shown and exported, and nothing else"
            )
        some = by_target(rows.drop(*OF_THE_PLAN), _tasks(spark, total))
        return cls(some, dict(zip(OF_THE_PLAN, same, strict=True)))


def _tasks(spark: SparkSession, rows: int) -> int:
    cores = spark.sparkContext.defaultParallelism
    return min(tasks(spark), 1 + rows // ROWS_OF_A_TASK, max(cores, rows // ROWS_WORTH_A_TASK))


def _carry(
    spark: SparkSession, destination: str, sides: Sides, step: Step, chunk: Chunk, told: Told, *, executed: bool
) -> Carried:
    began = time.monotonic()
    if executed:
        _refuse_speculation(spark)

    def run(told: Told) -> Carried:
        check_shared(spark, destination)
        own = session_beside(spark)
        folder, at = Folder(own, destination), datetime.now(UTC)
        with active(own), translated(f"the plan in {folder} cannot be read"):
            planned = Planned.of(own, folder)
        sides.check(planned.same["cluster"])
        with _noted(executed=executed) as work, folder.new_report(step, at) as report:
            told(_DOING[step])
            with active(own), translated(f"the plan in {folder} could not be gone through"):
                made = mapped(planned.rows, Work(sides, chunk, planned.same), chunk.kind, tally=True)
                work.began = True
                found = write_and_count(made, chunk.kind, report.path)
            told("moving the report into place")
        return Carried(
            destination=str(folder),
            report=report.name,
            step=step,
            executed=executed,
            groups=found.groups,
            left=found.left,
            failed=found.failed,
            counts=found.counts,
            seconds=time.monotonic() - began,
        )

    return interruptible(spark, run, told)


@dataclass(slots=True)
class _Progress:
    """Whether tasks may have written something."""

    began: bool = False


@contextmanager
def _noted(*, executed: bool) -> Iterator[_Progress]:
    """Add a note to every error after which some of the offsets, or all of them, may be written."""
    work = _Progress()
    try:
        yield work
    except Exception as error:
        if executed and work.began:
            error.add_note(_ONLY_THE_REPORT if isinstance(error, NotSharedError) else _PARTLY_DONE)
        raise


_ONLY_THE_REPORT: Final = "only the report failed; the plan itself was carried out: see `migrate status`"
_PARTLY_DONE: Final = (
    "offsets may have been written, of some groups or of all, although there is no report: see `migrate status`, and "
    "run the same command again to finish"
)


def _refuse_speculation(spark: SparkSession) -> None:
    """It lets a second task do what the first one still does: one would delete what the other has put back."""
    if (spark.conf.get("spark.speculation", "false") or "").lower() == "true":
        raise InvalidOptionError("spark.speculation", True, "two tasks must not write for one group at a time")


_DOING: Final = {Step.APPLY: "applying", Step.ROLLBACK: "rolling back", Step.VERIFY: "verifying"}
