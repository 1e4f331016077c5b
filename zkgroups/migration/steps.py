"""Applying, verifying and rolling back a stored plan, and the progress of its groups.

The work is in `tasks.py`. A run that was killed can be repeated, with the same result. Every run but `status` writes a
report to the folder of the plan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ..core.migration.changes_since_plan import GroupStatus, MigrationStage
from ..core.migration.plan_rows import OF_THE_PLAN, MatchRow, MigrationStep, PlanRow, ReportRow
from ..exceptions import GuardFailedError, NotSharedError
from ..input_errors import InvalidOptionError
from ..kafka import BrokerOptions
from ..zookeeper.zookeeper_source import ConnectionOptions
from .apply import MADE_WITHOUT_BROKERS, apply_groups, status_of_groups, verify_groups
from .arrow_rows import rows
from .plan_folder import PlanFolder
from .rollback import rollback_groups
from .summaries import first_row, last_steps
from .tasks import (
    ChunkOperation,
    ChunkTask,
    Engine,
    MigrationConnections,
    OnProgress,
    Rows,
)

STEPS: Final = 2
"""The calls of `on_progress`: the work itself, and moving the report into place."""


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


# The steps


def apply(
    engine: Engine,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: ConnectionOptions | None,
    *,
    execute: bool,
    writers_stopped: bool = False,
    on_progress: OnProgress | None = None,
) -> ExecutionResult:
    """Write the offsets of the plan in this folder; without `execute`, only report what would be done.

    Groups with obstacles are left unchanged. Without a ZooKeeper, its guards are skipped. `writers_stopped` declares
    that nothing writes the offsets in ZooKeeper any more, for layouts where zkgroups cannot see it. `on_progress` is
    called with the name of each step when it starts.
    """
    connections = MigrationConnections.of(brokers, zookeeper)
    options = {"execute": execute, "writers_stopped": writers_stopped}
    operation = ChunkOperation(ReportRow, apply_groups, options)
    run = _Run(engine, destination, connections, MigrationStep.APPLY, operation, execute)
    return engine.run(run, on_progress)


def rollback(
    engine: Engine,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: ConnectionOptions | None,
    *,
    execute: bool,
    force: bool = False,
    to_zookeeper: bool = False,
    writers_stopped: bool = False,
    on_progress: OnProgress | None = None,
) -> ExecutionResult:
    """Restore the targets of the plan in this folder; without `execute`, only report what would be done.

    Groups with later commits are left unchanged, unless `force` is given, or `to_zookeeper` copies their progress to
    ZooKeeper first. `writers_stopped` is needed to copy it to offsets of another system: see `apply`.
    """
    if to_zookeeper and zookeeper is None:
        raise InvalidOptionError("to_zookeeper", True, "it needs a ZooKeeper to copy offsets to")
    connections = MigrationConnections.of(brokers, zookeeper)
    options = {"execute": execute, "force": force, "to_zookeeper": to_zookeeper, "writers_stopped": writers_stopped}
    operation = ChunkOperation(ReportRow, rollback_groups, options)
    run = _Run(engine, destination, connections, MigrationStep.ROLLBACK, operation, execute)
    return engine.run(run, on_progress)


def verify(
    engine: Engine,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: ConnectionOptions | None,
    *,
    on_progress: OnProgress | None = None,
) -> ExecutionResult:
    """Compare both sides with the plan in this folder. The report has `MatchRow`s."""
    connections, operation = MigrationConnections.of(brokers, zookeeper), ChunkOperation(MatchRow, verify_groups)
    run = _Run(engine, destination, connections, MigrationStep.VERIFY, operation, executed=False)
    return engine.run(run, on_progress)


def status(
    engine: Engine,
    destination: str,
    brokers: BrokerOptions,
    zookeeper: ConnectionOptions | None,
    *,
    on_progress: OnProgress | None = None,
) -> list[GroupStatus]:
    """Return the progress of each group of the plan in this folder, sorted by target. Nothing is written."""
    connections, operation = MigrationConnections.of(brokers, zookeeper), ChunkOperation(GroupStatus, status_of_groups)

    def run(on_progress: OnProgress) -> list[GroupStatus]:
        folder = engine.folder(destination)
        plan = _StoredPlan.of(engine, folder)
        connections.check(plan.constants["cluster"])
        on_progress("reading both sides")
        task = ChunkTask(connections, operation, plan.constants, engine.tally_sum())
        failure = f"the status of the plan in {folder} could not be read"
        found = rows(GroupStatus, plan.rows.map(task, GroupStatus).collect(failure))
        on_progress("reading the reports")
        last = last_steps(folder)
        return [_with_last_step(each, last.get(each.target)) for each in sorted(found, key=lambda each: each.target)]

    return engine.run(run, on_progress)


def _with_last_step(status: GroupStatus, last: str | None) -> GroupStatus:
    as_before = status.stage in (MigrationStage.NOT_BEGUN, MigrationStage.BLOCKED)
    rolled_back = as_before and last == MigrationStep.ROLLBACK
    return status._replace(stage=MigrationStage.ROLLED_BACK) if rolled_back else status


# One run


@dataclass(frozen=True, slots=True)
class _StoredPlan:
    """The rows of a plan, distributed over tasks."""

    rows: Rows
    constants: Mapping[str, Any]
    """The values that are the same in all rows. They are not sent with each row."""

    @classmethod
    def of(cls, engine: Engine, folder: PlanFolder) -> _StoredPlan:
        """Read the plan in this folder, and check that it is complete and was made with brokers."""
        path, failure = folder.plan(), f"the plan in {folder} cannot be read"
        with folder.translated(failure):
            count = engine.count(path)
        folder.check_rows(count)
        constants = folder.constants()
        if constants is None:
            first = first_row(folder)
            constants = {name: getattr(first, name) for name in OF_THE_PLAN}
        if constants["brokers"] is None:
            raise GuardFailedError(f"the plan in {folder} {MADE_WITHOUT_BROKERS}")
        columns = [name for name in PlanRow._fields if name not in OF_THE_PLAN]
        found = engine.read(PlanRow, path, *columns)
        return cls(found.stored_by_target(count=count, files=folder.plan_files()), constants)


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of a step that writes a report."""

    engine: Engine
    destination: str
    connections: MigrationConnections
    step: MigrationStep
    operation: ChunkOperation
    executed: bool

    def __call__(self, on_progress: OnProgress) -> ExecutionResult:
        began = time.monotonic()
        if self.executed:
            self.engine.check_writes_once()
        self.engine.check_writes_to(self.destination)
        folder, at = self.engine.folder(self.destination), datetime.now(UTC)
        plan = _StoredPlan.of(self.engine, folder)
        self.connections.check(plan.constants["cluster"])
        with _explained_errors(executed=self.executed) as job, folder.new_report(self.step, at) as report:
            on_progress(_STEP_TEXTS[self.step])
            counted = self.engine.tally_sum()
            task = ChunkTask(self.connections, self.operation, plan.constants, counted)
            results = plan.rows.map(task, self.operation.kind)
            job.began = True
            counts = results.write(report.path, f"the plan in {folder} could not be processed", counted)
            on_progress("moving the report into place")
        return ExecutionResult(
            destination=str(folder),
            report=report.name,
            step=self.step,
            executed=self.executed,
            groups=counts.groups,
            left=counts.left,
            failed=counts.failed,
            counts=counts.counts,
            seconds=time.monotonic() - began,
        )


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


_ONLY_THE_REPORT: Final = (
    "the plan was carried out, and only its report could not be written: check with `migrate status`"
)
_PARTLY_DONE: Final = (
    "some or all offsets may have been written, although the report is missing: see `migrate status`, and run the same "
    "command again to finish"
)
