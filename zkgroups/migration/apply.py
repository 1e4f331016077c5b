"""Applying a plan to whole groups: mark, check, write in bulk, and check again.

A group with an obstacle is left unchanged, and each of its rows reports why. A run that was killed can be started
again: offsets that are as planned count as done.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from ..core.columns import Columns, column
from ..core.kafka_values import NativeOffset
from ..core.layouts.layout import Layout
from ..core.layouts.legacy import LEGACY
from ..core.layouts.template import parse_layout
from ..core.migration.changes_since_plan import (
    GroupStatus,
    PlanRows,
    SourceState,
    TargetState,
    by_group,
    by_target,
    group_status,
    is_begun,
    log_obstacles,
    needs_mark,
    offsets_to_write,
    overwritten,
    recreated_obstacles,
    recreated_partitions,
    source_obstacles,
    target_obstacles,
)
from ..core.migration.comparison import compare_rows
from ..core.migration.obstacles import Obstacle, ObstacleKind, texts
from ..core.migration.offset_decision import name_error
from ..core.migration.plan_rows import MatchRow, MigrationStep, Outcome, PlanRow, ReportRow, commit_rows, places
from ..core.znodes.own_nodes import Mark, MarkState
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import GuardFailedError, OutcomeUnknownError
from ..input_errors import ZkgroupsException
from ..kafka import Brokers
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.admin.migration_marks import MigrationTargetLocks
from ..zookeeper.registry import Registry
from ..zookeeper.session.session import context_of
from .current_state import LogRanges, mark_obstacles, read_sources, read_targets, read_topic_ids, topic_creation_zxids

# Reports: the result of a step for each row of a plan. Also the checks of a plan before it is used.


MADE_WITHOUT_BROKERS: Final = "was made without brokers, and can only be shown and exported: plan again with brokers"

Answers = Mapping[TopicPartition, ZkgroupsException | None]
"""The answers of the brokers for the partitions of one target; None for success."""


class Report:
    """The rows of one call."""

    def __init__(self) -> None:
        self._parts: list[Sequence[ReportRow]] = []
        self._now_ms = time.time_ns() // 1_000_000

    @property
    def rows(self) -> Sequence[ReportRow]:
        """All rows."""
        return Columns.joined(ReportRow, self._parts)

    def add(
        self,
        step: MigrationStep,
        row: PlanRow,
        outcome: Outcome,
        *,
        found: int | None = None,
        written: int | None = None,
        detail: str = "",
    ) -> None:
        """Add the result for one row of the plan."""
        self.add_all(step, [row], [outcome], found=[found], written=[written], details=[detail])

    def add_all(
        self,
        step: MigrationStep,
        rows: Sequence[PlanRow],
        outcomes: Sequence[Outcome],
        *,
        found: Sequence[int | None],
        written: Sequence[int | None],
        details: Sequence[str],
    ) -> None:
        """Add the results for some rows of the plan."""
        columns: dict[str, Sequence[Any]] = {name: column(rows, name) for name in _OF_THE_ROW}
        columns |= {"step": [step] * len(rows), "reported_ms": [self._now_ms] * len(rows)}
        columns |= {"outcome": outcomes, "found": found, "written": written, "detail": details}
        self._parts.append(Columns(ReportRow, len(rows), columns.__getitem__))


_OF_THE_ROW: Final = ("plan", "group", "topic", "partition", "target")
"""The fields of a report that are those of the plan."""


def offset_or_none(found: NativeOffset | None) -> int | None:
    """Return the number of a committed offset."""
    return None if found is None else found.offset


def check_made_with_brokers(rows: Sequence[PlanRow]) -> None:
    """Raise an error for a plan that was made without brokers: the earlier offsets of its targets are unknown."""
    if None in column(rows, "brokers"):
        raise GuardFailedError(f"plan {column(rows, 'plan')[0]} {MADE_WITHOUT_BROKERS}")


def check_cluster(planned: str | None, brokers: Brokers) -> None:
    """Raise an error if the plan was made for another Kafka cluster.

    Other checks may not detect this: a staging cluster may have the topics of production, and targets without offsets
    look alike.
    """
    found = brokers.cluster_id()
    if planned is not None and found != planned:
        raise GuardFailedError(
            f"the plan was made for Kafka cluster {planned}, but these brokers belong to {found}: "
            f"connect to {planned}, or plan again"
        )


# The base of `apply` and `rollback`: the groups of one call, the reasons to leave some unchanged, and their locks.


class RunContext:
    """One call for whole groups of one plan. `plans` maps each target to its rows."""

    def __init__(
        self,
        plans: Mapping[str, PlanRows],
        brokers: Brokers,
        registry: Registry | None,
        *,
        execute: bool,
        writers_stopped: bool,
    ) -> None:
        self._first = next(iter(plans.values()))[0]
        self._plan = self._first.plan
        self._layout = parse_layout(self._first.layout)
        self._plans = plans
        self._brokers = brokers
        self._registry = registry
        self._execute = execute
        self._writers_stopped = writers_stopped
        self._report = Report()
        self._left: dict[str, list[Obstacle]] = {}
        """Why targets are left unchanged."""
        self._locks: MigrationTargetLocks | None = None
        self._unlocked: set[str] = set()
        """Targets that are left because their locks were lost: another run may be working on them."""

    def leave(self, target: str, obstacles: Sequence[Obstacle]) -> None:
        """Leave this target unchanged if there are any obstacles."""
        if obstacles:
            self._left.setdefault(target, []).extend(obstacles)

    def writers_unknown(self) -> list[Obstacle]:
        """Return an obstacle if jobs may still write the offsets in ZooKeeper. For a dry run, it does not matter."""
        if not self._execute or self._writers_stopped or self._registry is None or self._layout.has_registrations:
            return []
        return [Obstacle(ObstacleKind.WRITERS_UNKNOWN, detail=self._layout.location)]

    def leave_invalid_names(self) -> None:
        """Leave groups with invalid names, as in a plan that was edited."""
        for target, rows in self._plans.items():
            for name in (column(rows, "group")[0], target):
                if (error := name_error(name)) is not None:
                    self.leave(target, [invalid_name(name, error)])

    @contextmanager
    def locked(self, targets: Iterable[str], *, rollback: bool = False) -> Iterator[None]:
        """Lock these targets. A target that another plan has locked is left unchanged.

        Pass `rollback` for a rollback: it and the other steps of a plan leave the targets of each other unchanged.
        """
        if self._registry is None or not self._execute:
            yield
            return
        self._locks = MigrationTargetLocks(
            context_of(self._registry), cluster=self._first.cluster, plan=self._plan, rollback=rollback
        )
        taken = self._locks.take(targets)
        for target, error in taken.items():
            self.leave(target, [] if error is None else [Obstacle(ObstacleKind.LOCKED, detail=str(error))])
        try:
            yield
        finally:
            with suppress(ZkgroupsException):  # they end with the session at the latest
                self._locks.release(target for target, error in taken.items() if error is None)

    def lost_locks(self, targets: Iterable[str]) -> list[str]:
        """Return the targets whose locks were lost, as after a pause that was longer than the session timeout."""
        return [] if self._locks is None else self._locks.lost(targets)

    def leave_unlocked(self, targets: Iterable[str]) -> None:
        """Leave targets whose locks were lost. Call this right before they are written."""
        for target in self.lost_locks(targets):
            self._unlocked.add(target)
            self.leave(target, [Obstacle(ObstacleKind.LOCK_LOST)])


def invalid_name(name: str, error: str) -> Obstacle:
    """Return the obstacle for a name that no group can have."""
    return Obstacle(ObstacleKind.INVALID_NAME, (name,), 1, detail=error)


Offsets = Mapping[TopicPartition, int]


def apply_groups(
    rows: Sequence[PlanRow],
    brokers: Brokers,
    registry: Registry | None,
    *,
    execute: bool,
    writers_stopped: bool = False,
) -> Sequence[ReportRow]:
    """Move these groups; without `execute`, only report what would be done. Pass all rows of each group.

    Groups are marked as moving while they are written, and as moved when they are done: zkgroups members then no longer
    join them. Without a registry, ZooKeeper is neither checked nor marked.

    Nothing in ZooKeeper shows whether the jobs of other systems still run. `writers_stopped` declares that they do not.
    Without it, such groups are left.
    """
    check_made_with_brokers(rows)
    if not rows:
        return []
    return _Apply(by_target(rows), brokers, registry, execute=execute, writers_stopped=writers_stopped).run()


class _Apply(RunContext):
    """One call of `apply_groups`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._marked: set[str] = set()
        """Targets whose groups this call has marked."""
        self._marked_before: set[str] = set()
        """Targets whose groups an earlier call of this plan has marked and not finished."""
        self._mark_errors: dict[str, str] = {}
        """Targets whose groups could not be marked as moved, or unmarked, after the write."""

    def run(self) -> Sequence[ReportRow]:
        """Apply the plan and report every row."""
        for target, rows in self._plans.items():
            self.leave(target, column(rows, "obstacles")[0])
            self.leave(target, self.writers_unknown())
        self.leave_invalid_names()
        with self.locked(target for target in self._remaining if needs_mark(self._plans[target])):
            return self._run()

    def _run(self) -> Sequence[ReportRow]:
        self._mark_as_moving()
        states = self._check_before()
        self.leave_unlocked(self._remaining)
        offsets = {
            target: offsets_to_write(self._plans[target], states[target].committed) for target in self._remaining
        }
        before = {target: states[target].committed for target in offsets}
        answers = self._brokers.commit(offsets, before=before) if self._execute else {}
        conflicts = self._check_after(offsets, answers)
        self._update_marks(states, conflicts, answers)
        for target, rows in self._plans.items():
            if target in self._left:
                self._report_left(target)
            else:
                self._report_written(
                    rows, states[target], offsets[target], answers.get(target, {}), conflicts.get(target, [])
                )
        return self._report.rows

    @property
    def _remaining(self) -> list[str]:
        """The targets without obstacles."""
        return [target for target in self._plans if target not in self._left]

    def _targets_by_group(self, targets: Iterable[str]) -> dict[str, str]:
        """Map groups to these targets. Each target has one group: several would be an obstacle."""
        return {column(self._plans[target], "group")[0]: target for target in targets}

    # Before writing

    def _mark_as_moving(self) -> None:
        """Mark the groups before they are read, so that no zkgroups member joins afterwards."""
        if self._registry is None:
            return
        targets = self._targets_by_group(target for target in self._remaining if needs_mark(self._plans[target]))
        found = marks.read(context_of(self._registry), targets, self._layout)
        for group, mark in found.items():
            if obstacles := mark_obstacles(mark, self._plan):
                self.leave(targets[group], obstacles)
            elif isinstance(mark, Mark) and mark.state is MarkState.MOVING:
                self._marked_before.add(targets[group])
        if self._execute:
            self._put_marks({group: target for group, target in targets.items() if group not in found})

    def _put_marks(self, targets: Mapping[str, str]) -> None:
        assert self._registry is not None
        context = context_of(self._registry)
        answers = marks.put(
            context, targets, plan=self._plan, state=MarkState.MOVING, unmarked=True, layout=self._layout
        )
        for group, error in answers.items():
            if error is None:
                self._marked.add(targets[group])
            else:
                self.leave(targets[group], [Obstacle(ObstacleKind.MARK_FAILED, detail=str(error))])

    def _check_before(self) -> dict[str, TargetState]:
        """Check both sides. Targets are read last: a later write to them is only detected after our own."""
        remaining = self._remaining
        sources = self._read_sources(remaining)
        for target in remaining:
            self.leave(target, self._source_obstacles(target, sources))
        self._check_logs()
        states = read_targets(self._brokers, remaining)
        for target in remaining:
            self.leave(target, target_obstacles(self._plans[target], states[target]))
        return states

    def _read_sources(self, targets: Iterable[str]) -> dict[str, SourceState]:
        by_group = self._targets_by_group(targets)
        if self._registry is None or not by_group:
            return {}
        found = read_sources(self._registry, by_group, self._layout)
        return {by_group[group]: state for group, state in found.items()}

    def _source_obstacles(self, target: str, sources: Mapping[str, SourceState]) -> list[Obstacle]:
        return source_obstacles(self._plans[target], sources[target]) if target in sources else []

    def _check_logs(self) -> None:
        """Check that the planned offsets are still in their logs, and that no topic was recreated."""
        commits = {target: commit_rows(self._plans[target]) for target in self._remaining}
        partitions = {at for ats in set(map(places, commits.values())) for at in ats if at is not None}
        topics = {at.topic for at in partitions}
        logs = LogRanges(self._brokers, {} if self._registry is None else topic_creation_zxids(self._registry, topics))
        logs.read(sorted(partitions))
        for target, rows in commits.items():
            self.leave(target, [] if logs.contain(rows) else log_obstacles(rows, logs.log))

    # After writing

    def _check_after(self, offsets: Mapping[str, Offsets], answers: Mapping[str, Answers]) -> dict[str, list[Obstacle]]:
        """Return conflicting changes by other clients, by target: those clients ignore marks and locks."""
        if not self._execute:
            return {}
        sources = self._read_sources(self._remaining)
        written = {target: of_target for target, of_target in offsets.items() if of_target}
        states = read_targets(self._brokers, written, members=False)
        ids = read_topic_ids(self._brokers, {target: self._plans[target] for target in written})
        lost = set(self.lost_locks(written))
        found = {}
        for target in self._remaining:
            rows = self._plans[target]
            conflicts = self._source_obstacles(target, sources)
            if target in lost:
                conflicts.append(Obstacle(ObstacleKind.LOCK_LOST_AFTER_WRITE))
            if target in written:
                conflicts += recreated_obstacles(rows, recreated_partitions(rows, ids))
                conflicts += self._overwritten(target, offsets[target], answers[target], states[target])
            if conflicts:
                found[target] = conflicts
        return found

    def _overwritten(self, target: str, offsets: Offsets, answers: Answers, state: TargetState) -> list[Obstacle]:
        if state.unreadable:
            return [Obstacle(ObstacleKind.UNREADABLE, detail=state.unreadable)]
        written = {at: offset for at, offset in offsets.items() if answers[at] is None}
        return overwritten(self._plans[target], written, state)

    def _update_marks(
        self,
        states: Mapping[str, TargetState],
        conflicts: Mapping[str, Sequence[Obstacle]],
        answers: Mapping[str, Answers],
    ) -> None:
        """Mark finished groups as moved, and unmark groups to which nothing was written.

        Partly written groups stay marked as moving.
        """
        if self._registry is None or not self._execute:
            return
        failed = {target for target, of_target in answers.items() if any(of_target.values())}
        done = (target for target in self._remaining if target not in failed and target not in conflicts)
        moved = self._targets_by_group(target for target in done if needs_mark(self._plans[target]))
        context, plan, layout = context_of(self._registry), self._plan, self._layout
        errors = marks.put(context, moved, plan=plan, state=MarkState.MOVED, replace=True, layout=layout)
        unmarked = self._targets_by_group(self._unwritten(states, failed, answers))
        errors |= marks.remove(context, unmarked, plan=plan, state=MarkState.MOVING, layout=layout)
        targets = moved | unmarked
        self._mark_errors = {
            targets[group]: str(Obstacle(ObstacleKind.MARK_FAILED, detail=str(error)))
            for group, error in errors.items()
            if error
        }

    def _unwritten(
        self, states: Mapping[str, TargetState], failed: set[str], answers: Mapping[str, Answers]
    ) -> list[str]:
        """Return the marked targets to which certainly no run of this plan has written anything."""
        nothing = {target for target in failed if all(map(_was_not_written, answers[target].values()))}
        left = self._left.keys() - self._unlocked
        doubtful = (self._marked & nothing) | (self._marked_before & left)
        return [target for target in self._marked if target in left] + [
            target
            for target in doubtful
            if not states[target].unreadable and not is_begun(self._plans[target], states[target].committed)
        ]

    def _report_left(self, target: str) -> None:
        detail = "; ".join(filter(None, [texts(self._left[target]), self._mark_errors.get(target)]))
        rows = self._plans[target]
        nothing = [None] * len(rows)
        left, details = [Outcome.LEFT] * len(rows), [detail] * len(rows)
        self._report.add_all(MigrationStep.APPLY, rows, left, found=nothing, written=nothing, details=details)

    def _report_written(
        self, rows: PlanRows, state: TargetState, offsets: Offsets, answers: Answers, conflicts: Sequence[Obstacle]
    ) -> None:
        mark_error = self._mark_errors.get(column(rows, "target")[0], "")
        overtaken = f"while offsets were written: {texts(conflicts)}" if conflicts else mark_error
        there = state.committed
        found: list[int | None] = [None] * len(rows)
        if there:
            found = [None if at is None else offset_or_none(there.get(at)) for at in places(rows)]
        outcomes: Sequence[Outcome]
        written, details = column(rows, "planned"), [""] * len(rows)
        if self._execute and not overtaken and len(offsets) == len(rows) and not any(answers.values()):
            outcomes = [Outcome.WRITTEN] * len(rows)  # the usual case, and faster
        else:
            results = (self._result(row, offsets, answers, overtaken) for row in rows)
            outcomes, written, details = map(list, zip(*results, strict=True))
        self._report.add_all(MigrationStep.APPLY, rows, outcomes, found=found, written=written, details=details)

    def _result(
        self, row: PlanRow, offsets: Offsets, answers: Answers, overtaken: str
    ) -> tuple[Outcome, int | None, str]:
        """Return the outcome of a row, the number that was written, and the detail."""
        if not row.is_commit:
            return Outcome.SKIPPED, None, row.reason
        if row.at is None or row.at not in offsets:
            return Outcome.OVERTAKEN if overtaken else Outcome.THERE, None, overtaken
        if not self._execute:
            return Outcome.WOULD_WRITE, None, ""
        if (error := answers[row.at]) is not None:
            return Outcome.FAILED, None, str(error)
        return Outcome.OVERTAKEN if overtaken else Outcome.WRITTEN, row.planned, overtaken


def _was_not_written(error: ZkgroupsException | None) -> bool:
    """Return whether the offset was certainly not written."""
    return error is not None and not isinstance(error, OutcomeUnknownError)


# Verifying groups: read both sides again, and compare every row with the plan.


def verify_groups(rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None) -> Sequence[MatchRow]:
    """Compare all rows of these groups with both sides. Without a registry, compare only the target."""
    check_made_with_brokers(rows)
    plans = by_target(rows)
    layout = parse_layout(rows[0].layout) if rows else LEGACY
    sources = {} if registry is None else read_sources(registry, column(rows, "group"), layout)
    targets = read_targets(brokers, plans, members=False)
    ids = read_topic_ids(brokers, plans)
    groups = zip(column(rows, "group"), column(rows, "obstacles"), strict=True)
    found = _read_marks((group for group, obstacles in groups if obstacles), registry, layout)
    # If several groups have the same target, each is compared by itself.
    parts = ((target, *each) for target, of_target in plans.items() for each in by_group(of_target).items())
    matches = [
        compare_rows(rows, sources.get(group), targets[target], ids, moved=_is_moved(rows[0], found))
        for target, group, rows in parts
    ]
    return Columns.joined(MatchRow, matches)


def status_of_groups(rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None) -> list[GroupStatus]:
    """Return the progress of each of these groups, by its target and its mark."""
    check_made_with_brokers(rows)
    plans = by_target(rows)
    targets = read_targets(brokers, plans, members=False)
    found = _read_marks(column(rows, "group"), registry, parse_layout(rows[0].layout) if rows else LEGACY)

    def shown(group: str) -> str:
        mark = found.get(group)
        if mark is None:
            return ""
        return mark.shown if isinstance(mark, Mark) else f"cannot be read: {mark.reason}"

    return [
        group_status(
            of_target,
            targets[target],
            shown(of_target[0].group),
            moved=None if registry is None else _is_moved(of_target[0], found),
        )
        for target, of_target in plans.items()
    ]


def _read_marks(groups: Iterable[str], registry: Registry | None, layout: Layout) -> dict[str, marks.ReadMark]:
    return {} if registry is None else marks.read(context_of(registry), groups, layout)


def _is_moved(row: PlanRow, found: Mapping[str, marks.ReadMark]) -> bool:
    """Return whether the mark of the group says that this plan has moved it."""
    mark = found.get(row.group)
    return isinstance(mark, Mark) and (mark.plan, mark.state) == (row.plan, MarkState.MOVED)
