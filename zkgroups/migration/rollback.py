"""Rolling back: restoring the offsets, metadata and leader epochs that targets had when the plan was made.

`restore_targets.py` writes the offsets, `copy_back.py` first copies progress to ZooKeeper, and `rollback_report.py` has
the result of each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from ..core.layouts.layout import OneOffsetPerNode
from ..core.layouts.parse_layout import parse_layout
from ..core.migration.changes_since_plan import PlanRows, by_target, member_obstacles, recreated_obstacles
from ..core.migration.obstacles import Obstacle, ObstacleKind
from ..core.migration.plan_rows import PlanRow, ReportRow
from ..core.migration.rollback_rules import (
    Restoration,
    UnrestorableOffsets,
    changed_obstacles,
    committed_since_obstacles,
    moved_back_obstacles,
    not_moved,
    restoration,
    unrestorable_offsets,
)
from ..core.migration.source_and_target_state import SourceState, TargetState
from ..core.migration.target_names import name_error
from ..core.znodes.migration_mark import Mark
from ..core.znodes.values import UnreadableNode
from ..input_errors import InvalidOptionError, ZkgroupsException
from ..kafka import Brokers
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .copy_back import CopyBack
from .current_state import mark_obstacles, read_sources, read_targets, read_topic_ids
from .log_ranges import topic_creation_zxids
from .report import Answers, check_made_with_brokers
from .restore_targets import TargetRestorer
from .rollback_report import RollbackReport
from .run_context import RunContext


def rollback_groups(
    rows: Sequence[PlanRow],
    brokers: Brokers,
    registry: Registry | None,
    *,
    execute: bool,
    force: bool = False,
    to_zookeeper: bool = False,
    writers_stopped: bool = False,
) -> list[ReportRow]:
    """Restore the targets of these groups; without `execute`, only report what would be done.

    Pass all rows of each group.

    A target with later commits is left unless `force` restores it anyway, or `to_zookeeper` copies its progress to
    ZooKeeper first. Only progress is copied: a target whose offsets were moved back is left without `force`.

    A target whose group has no mark of this plan is left, because other clients may have written the same offsets;
    `force` restores it, but copies nothing. A target with active members is always left, and so is a target that
    this plan cannot have moved. Offsets of missing topics are skipped. Marks are removed at the end. Offsets in
    ZooKeeper that are newer than the plan are kept, and reported as `Outcome.NEWER`.

    Nothing in ZooKeeper shows whether the jobs of other systems run. Progress is copied to their offsets only if
    `writers_stopped` declares that they do not.
    """
    check_made_with_brokers(rows)
    if to_zookeeper and registry is None:
        raise InvalidOptionError("to_zookeeper", True, "it needs a ZooKeeper to copy offsets to")
    if not rows:
        return []
    if to_zookeeper and not isinstance(layout := parse_layout(rows[0].layout), OneOffsetPerNode):
        raise InvalidOptionError("to_zookeeper", True, f"offsets of layout {layout.location} cannot be written back")
    run = _Rollback(by_target(rows), brokers, registry, execute=execute, force=force, writers_stopped=writers_stopped)
    return run.run(to_zookeeper=to_zookeeper)


class _Rollback(RunContext):
    """One call of `rollback_groups`."""

    def __init__(
        self,
        plans: Mapping[str, PlanRows],
        brokers: Brokers,
        registry: Registry | None,
        *,
        execute: bool,
        force: bool,
        writers_stopped: bool,
    ) -> None:
        super().__init__(plans, brokers, registry, execute=execute, writers_stopped=writers_stopped)
        self._force = force
        self._states: Mapping[str, TargetState] = {}
        """The targets before the rollback."""
        self._marks: dict[str, Mark | UnreadableNode] = {}
        """The marks of the groups, by target."""
        self._unrestorable: dict[str, UnrestorableOffsets] = {}
        """The offsets that cannot be restored, by target."""

    def run(self, *, to_zookeeper: bool) -> list[ReportRow]:
        """Roll back and report every row."""
        self.leave_invalid_names()
        with self.locked((target for target in self._plans if target not in self._left), rollback=True):
            return self._run(to_zookeeper=to_zookeeper)

    def _run(self, *, to_zookeeper: bool) -> list[ReportRow]:
        states = self._states = read_targets(self._brokers, self._plans)
        single = self._brokers.can_delete_offsets()
        self._read_marks()
        self._unrestorable = self._find_unrestorable(states)
        todo = {
            target: restoration(self._plans[target], state.committed, self._unrestorable[target], single=single)
            for target, state in states.items()
        }
        sources = self._read_sources(todo)
        self._check(states, todo, to_zookeeper=to_zookeeper)
        if to_zookeeper:
            self._leave_uncopyable(todo)
            self._copy_back(states, sources, [target for target, found in todo.items() if found.touched])
        elif not self._force:
            for target, found in todo.items():
                self.leave(target, committed_since_obstacles(found))
        self._leave_changed(states)
        wanted = {target: found for target, found in todo.items() if target not in self._left}
        restorer = TargetRestorer(self._brokers, states, self._check_before_delete)
        answers = restorer.restore(wanted) if self._execute else {}
        overtaken = frozenset(self.lost_locks(answers))
        errors = self._remove_marks(answers, overtaken)
        report = RollbackReport(self._report, self._unrestorable, overtaken, errors, execute=self._execute)
        for target, rows in self._plans.items():
            report.add(rows, states[target], todo[target], answers.get(target, {}), self._left.get(target, []))
            if target in sources:
                report.add_newer(rows, sources[target], states[target])
        return [*self._report.rows]

    # Checks

    def _check(self, states: Mapping[str, TargetState], todo: Mapping[str, Restoration], *, to_zookeeper: bool) -> None:
        for target, state in states.items():
            self.leave(target, not_moved(self._plans[target]))
            if state.unreadable or todo[target].touched or self._has_removable_mark(target):
                self.leave(target, member_obstacles(state))
            if todo[target].touched and (to_zookeeper or not self._force):
                self.leave(target, self._check_mark(target))

    def _find_unrestorable(self, states: Mapping[str, TargetState]) -> dict[str, UnrestorableOffsets]:
        """Compare the plan with the topics that the brokers have now."""
        ids = read_topic_ids(self._brokers, {target: self._plans[target] for target in states})
        restored = [row for target in states for row in self._plans[target] if row.prior is not None]
        topics = {row.topic: row.topic_id for row in restored if row.topic}
        partitions = self._brokers.partitions(topics) if topics else {}
        created = self._creation_zxids([topic for topic, id in topics.items() if id is None])
        return {
            target: unrestorable_offsets(
                self._plans[target], ids, partitions, () if self._force else state.committed, created
            )
            for target, state in states.items()
        }

    def _creation_zxids(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the zxids that created these topics, if their brokers use the ZooKeeper of the source."""
        return {} if self._registry is None or not topics else topic_creation_zxids(self._registry, topics)

    def _leave_uncopyable(self, todo: Mapping[str, Restoration]) -> None:
        """Leave targets whose progress the offsets in ZooKeeper cannot express."""
        for target, found in todo.items():
            self.leave(target, recreated_obstacles(self._plans[target], self._unrestorable[target].recreated))
            if not self._force:
                self.leave(target, moved_back_obstacles(found))

    def _read_sources(self, todo: Mapping[str, Restoration]) -> dict[str, SourceState]:
        """Read the groups in ZooKeeper whose targets this plan may have moved."""
        if self._registry is None:
            return {}
        groups = {
            target: group
            for target, group in self._groups().items()
            if (todo[target].touched or self._has_removable_mark(target)) and not not_moved(self._plans[target])
        }
        found = read_sources(self._registry, groups.values(), self._layout) if groups else {}
        return {target: found[group] for target, group in groups.items()}

    def _copy_back(
        self, states: Mapping[str, TargetState], sources: Mapping[str, SourceState], targets: Sequence[str]
    ) -> None:
        """Copy the progress of these targets to ZooKeeper before it is removed from the brokers."""
        assert self._registry is not None
        assert isinstance(self._layout, OneOffsetPerNode)  # checked at the start
        for target in targets:
            self.leave(target, self.writers_unknown())
        plans = {target: self._plans[target] for target in targets if target not in self._left}
        copy_back = CopyBack(self._registry, self._layout, self._report, execute=self._execute)
        for target, obstacles in copy_back.copy(plans, sources, states).items():
            self.leave(target, obstacles)

    def _leave_changed(self, states: Mapping[str, TargetState]) -> None:
        """Read the targets again before the first write, so that no recent commit is overwritten."""
        if not self._execute:
            return
        for target, now in read_targets(self._brokers, states.keys() - self._left.keys()).items():
            if now != states[target]:
                self.leave(target, changed_obstacles(states[target], now))
        self.leave_unlocked(states.keys() - self._left.keys())

    def _check_before_delete(self, targets: Iterable[str]) -> dict[str, list[Obstacle]]:
        """Check the topics and locks of these targets again. Return the obstacles by target."""
        targets = list(targets)
        unlocked = self.lost_locks(targets)
        now = self._find_unrestorable({target: self._states[target] for target in targets})
        found: dict[str, list[Obstacle]] = {target: [] for target in targets}
        for target in targets:
            if now[target] != self._unrestorable[target]:
                found[target].append(Obstacle(ObstacleKind.TOPICS_CHANGED_DURING_ROLLBACK))
            if target in unlocked:
                found[target].append(Obstacle(ObstacleKind.LOCK_LOST_AFTER_WRITE))
        return found

    def _groups(self) -> dict[str, str]:
        """Return the group of each target. Groups with invalid names, as in a plan that was edited, are left out."""
        groups = {target: rows[0].group for target, rows in self._plans.items()}
        return {target: group for target, group in groups.items() if name_error(group) is None}

    # Marks

    def _read_marks(self) -> None:
        if self._registry is None:
            return
        groups = {group: target for target, group in self._groups().items()}
        self._registry.sync()  # otherwise a recent mark might be missed
        found = marks.read(context_of(self._registry), groups, self._layout)
        self._marks = {groups[group]: mark for group, mark in found.items()}

    def _has_removable_mark(self, target: str) -> bool:
        """Return whether the group has a mark of this plan, or an unreadable mark."""
        mark = self._marks.get(target)
        return isinstance(mark, UnreadableNode) or (mark is not None and mark.plan == self._plan)

    def _check_mark(self, target: str) -> list[Obstacle]:
        """Return an obstacle unless the group has the mark of this plan. Without a registry, marks are not checked."""
        if self._registry is None:
            return []
        if target not in self._marks:
            return [Obstacle(ObstacleKind.NOT_MARKED)]
        return mark_obstacles(self._marks[target], self._plan)

    def _remove_marks(self, answers: Mapping[str, Answers], overtaken: Set[str]) -> dict[str, ZkgroupsException]:
        """Remove the marks of restored groups, so that legacy members may join again. Return the errors by target.

        Marks of other plans stay.
        """
        if self._registry is None or not self._execute:
            return {}
        unfinished = {target for target, of_target in answers.items() if any(of_target.values())}
        unfinished |= self._left.keys() | overtaken
        groups = {
            self._plans[target][0].group: target
            for target in self._marks
            if target not in unfinished and self._has_removable_mark(target)
        }
        answered = marks.remove(context_of(self._registry), groups, plan=self._plan, layout=self._layout)
        return {groups[group]: error for group, error in answered.items() if error is not None}
