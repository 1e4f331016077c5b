"""Rolling back: restoring the offsets, metadata and leader epochs that targets had when the plan was made.

Additional offsets are deleted after the earlier ones are restored. Brokers before 2.4 cannot delete single offsets, so
there the group is deleted, and its earlier offsets are committed again. They are also committed before the deletion, to
see that the brokers accept them. If a run is killed in between, the target lacks offsets that the plan knows, and the
next run restores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ..core.migration.apply_rules import is_begun
from ..core.migration.changes_since_plan import PlanRows, by_target, member_obstacles, recreated_obstacles
from ..core.migration.obstacles import Obstacle, ObstacleKind, texts
from ..core.migration.plan_rows import MigrationStep, Outcome, PlanRow, ReportRow
from ..core.migration.rollback_rules import (
    ALL_RESTORABLE,
    Restoration,
    UnrestorableOffsets,
    changed_obstacles,
    changed_partitions,
    committed_since_obstacles,
    moved_back_obstacles,
    not_moved,
    restoration,
    unrestorable_offsets,
)
from ..core.migration.source_and_target_state import TargetState
from ..core.migration.target_names import name_error
from ..core.znodes.migration_mark import Mark
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import UnreadableNode
from ..exceptions import GroupNotFoundError, GuardFailedError
from ..input_errors import InvalidOptionError, ZkgroupsException
from ..kafka import Brokers
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .copy_back import CopyBack
from .current_state import mark_obstacles, read_targets, read_topic_ids
from .log_ranges import topic_creation_zxids
from .report import Answers, check_made_with_brokers, offset_or_none
from .run_context import RunContext


def rollback_groups(
    rows: Sequence[PlanRow],
    brokers: Brokers,
    registry: Registry | None,
    *,
    execute: bool,
    force: bool = False,
    to_zookeeper: bool = False,
) -> list[ReportRow]:
    """Restore the targets of these groups; without `execute`, only report what would be done.

    Pass all rows of each group.

    A target with later commits is left unless `force` restores it anyway, or `to_zookeeper` copies its progress to
    ZooKeeper first. Only progress is copied: a target whose offsets were moved back is left without `force`.

    A target whose group has no mark of this plan is left, because other clients may have written the same offsets;
    `force` restores it, but copies nothing. A target with active members is always left, and so is a target that
    this plan cannot have moved. Offsets of missing topics are skipped. Marks are removed at the end.
    """
    check_made_with_brokers(rows)
    if to_zookeeper and registry is None:
        raise InvalidOptionError("to_zookeeper", True, "it needs a ZooKeeper to copy offsets to")
    if not rows:
        return []
    return _Rollback(by_target(rows), brokers, registry, execute=execute, force=force).run(to_zookeeper=to_zookeeper)


class _Rollback(RunContext):
    """One call of `rollback_groups`."""

    def __init__(
        self, plans: Mapping[str, PlanRows], brokers: Brokers, registry: Registry | None, *, execute: bool, force: bool
    ) -> None:
        super().__init__(plans, brokers, registry, execute=execute)
        self._force = force
        self._marks: dict[str, Mark | UnreadableNode] = {}
        """The marks of the groups, by target."""
        self._unrestorable: dict[str, UnrestorableOffsets] = {}
        """The offsets that cannot be restored, by target."""
        self._overtaken: Set[str] = frozenset()
        """Targets that were written without a lock."""

    def run(self, *, to_zookeeper: bool) -> list[ReportRow]:
        """Roll back and report every row."""
        self.leave_invalid_names()
        with self.locked(target for target in self._plans if target not in self._left):
            return self._run(to_zookeeper=to_zookeeper)

    def _run(self, *, to_zookeeper: bool) -> list[ReportRow]:
        states = read_targets(self._brokers, self._plans)
        single = self._brokers.can_delete_offsets()
        self._read_marks()
        self._unrestorable = self._find_unrestorable(states)
        todo = {
            target: restoration(self._plans[target], state.committed, self._unrestorable[target], single=single)
            for target, state in states.items()
        }
        self._check(states, todo, to_zookeeper=to_zookeeper)
        if to_zookeeper:
            self._leave_uncopyable(todo)
            self._copy_back(states, [target for target, found in todo.items() if found.touched])
        elif not self._force:
            for target, found in todo.items():
                self.leave(target, committed_since_obstacles(found))
        self._leave_changed(states)
        answers = self._write({target: found for target, found in todo.items() if target not in self._left}, states)
        self._overtaken = set(self.lost_locks(answers))
        for target, rows in self._plans.items():
            self._report_target(rows, states[target], todo[target], answers.get(target, {}))
        errors = self._remove_marks(answers)
        return [_with_mark_error(row, errors.get(row.target)) for row in self._report.rows]

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

    def _copy_back(self, states: Mapping[str, TargetState], targets: Sequence[str]) -> None:
        """Copy the progress of these targets to ZooKeeper before it is removed from the brokers."""
        assert self._registry is not None
        plans = {target: self._plans[target] for target in targets if target not in self._left}
        copy_back = CopyBack(self._registry, self._report, execute=self._execute)
        for target, obstacles in copy_back.copy(plans, states).items():
            self.leave(target, obstacles)

    def _leave_changed(self, states: Mapping[str, TargetState]) -> None:
        """Read the targets again before the first write, so that no recent commit is overwritten."""
        if not self._execute:
            return
        for target, now in read_targets(self._brokers, states.keys() - self._left.keys()).items():
            if now != states[target]:
                self.leave(target, changed_obstacles(states[target], now))
        self.leave_unlocked(states.keys() - self._left.keys())

    # Marks

    def _read_marks(self) -> None:
        if self._registry is None:
            return
        groups = {rows[0].group: target for target, rows in self._plans.items() if name_error(rows[0].group) is None}
        self._registry.sync()  # otherwise a recent mark might be missed
        found = marks.read(context_of(self._registry), groups)
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

    def _remove_marks(self, answers: Mapping[str, Answers]) -> dict[str, ZkgroupsException]:
        """Remove the marks of restored groups, so that legacy members may join again. Return the errors by target.

        Marks of other plans stay.
        """
        if self._registry is None or not self._execute:
            return {}
        unfinished = {target for target, of_target in answers.items() if any(of_target.values())}
        unfinished |= self._left.keys() | self._overtaken
        groups = {
            self._plans[target][0].group: target
            for target in self._marks
            if target not in unfinished and self._has_removable_mark(target)
        }
        answered = marks.remove(context_of(self._registry), groups, plan=self._plan)
        return {groups[group]: error for group, error in answered.items() if error is not None}

    # Writing

    def _write(self, todo: Mapping[str, Restoration], states: Mapping[str, TargetState]) -> dict[str, Answers]:
        """Restore these targets. Return the answers for all partitions that change, by target.

        If the additional offsets of a group must not be deleted, their answers are the reason.
        """
        if not self._execute:
            return {}
        answers: dict[str, Answers] = {
            **self._brokers.commit(
                {target: it.commits for target, it in todo.items()},
                before={target: states[target].committed for target in todo},
            )
        }
        delete = {target: it for target, it in todo.items() if it.removed}
        kept: dict[str, Answers] = {
            target: dict.fromkeys(it.removed, _not_deleted(it, "not all of its earlier offsets can be restored"))
            for target, it in delete.items()
            if any(answers[target].values())
        }
        kept |= self._check_before_delete({target: it for target, it in delete.items() if target not in kept}, states)
        left = {target: it for target, it in delete.items() if target not in kept}
        before = {target: {**states[target].committed, **it.commits} for target, it in left.items()}
        kept |= self._brokers.delete_offsets(
            {target: it.removed for target, it in left.items() if not it.deletes_group}, before=before
        )
        deleted = self._brokers.delete_groups(
            (target for target, it in left.items() if it.deletes_group), before=before
        )
        kept |= {
            target: dict.fromkeys(todo[target].removed, error)
            for target, error in deleted.items()
            if error is not None and not isinstance(error, GroupNotFoundError)
        }
        again = {target: todo[target].commits for target in deleted if target not in kept}
        answers |= self._brokers.commit(again, before={})
        return answers | {target: {**answers[target], **of_target} for target, of_target in kept.items()}

    def _check_before_delete(
        self, todo: Mapping[str, Restoration], states: Mapping[str, TargetState]
    ) -> dict[str, Answers]:
        """Read the targets again before anything is deleted. Return the errors of groups that must not be deleted."""
        if not todo:
            return {}
        found: dict[str, Answers] = {}
        now = read_targets(self._brokers, todo, members=False)
        unrestorable = self._find_unrestorable({target: states[target] for target in todo})
        unlocked = self.lost_locks(todo)
        for target, it in todo.items():
            expected = TargetState(committed={**states[target].committed, **it.commits})
            obstacles = changed_obstacles(expected, now[target])
            if unrestorable[target] != self._unrestorable[target]:
                obstacles.append(Obstacle(ObstacleKind.TOPICS_CHANGED_DURING_ROLLBACK))
            if target in unlocked:
                obstacles.append(Obstacle(ObstacleKind.LOCK_LOST_AFTER_WRITE))
            if obstacles:
                error = _not_deleted(it, texts(obstacles))
                found[target] = dict.fromkeys([*it.removed, *changed_partitions(expected, now[target])], error)
        return found

    # Report

    def _report_target(self, rows: PlanRows, state: TargetState, todo: Restoration, answers: Answers) -> None:
        left, left_as = self._left.get(rows[0].target), Outcome.LEFT
        if (never := not_moved(rows)) and not is_begun(rows, state.committed):
            left, left_as = never, Outcome.SKIPPED  # nothing of the plan is there to roll back
        known = {row.at for row in rows}
        added = [rows[0]._replace(topic=at.topic, partition=at.partition) for at in todo.removed if at not in known]
        unrestorable = self._unrestorable.get(rows[0].target, ALL_RESTORABLE)
        for row in [*rows, *([] if left else added)]:
            at = row.at
            found = None if at is None else offset_or_none(state.committed.get(at))
            if left:
                self._report.add(MigrationStep.ROLLBACK, row, left_as, found=found, detail=texts(left))
            elif at is None:
                self._report.add(MigrationStep.ROLLBACK, row, Outcome.SKIPPED, detail=row.reason)
            elif at in todo.touched:
                self._report_touched(row, at, found, todo, answers)
            elif (why := unrestorable.reason(at)) and (row.prior is not None or at in state.committed):
                self._report.add(MigrationStep.ROLLBACK, row, Outcome.SKIPPED, found=found, detail=why)
            else:
                self._report.add(MigrationStep.ROLLBACK, row, Outcome.THERE, found=found)

    def _report_touched(
        self, row: PlanRow, at: TopicPartition, found: int | None, todo: Restoration, answers: Answers
    ) -> None:
        change = "deleted" if at in todo.removed else self._unrestorable[row.target].reason(at) or ""
        error = answers.get(at)
        if not self._execute:
            self._report.add(MigrationStep.ROLLBACK, row, Outcome.WOULD_WRITE, found=found, detail=change)
        elif error is not None:
            self._report.add(MigrationStep.ROLLBACK, row, Outcome.FAILED, found=found, detail=str(error))
        else:
            written = offset_or_none(todo.commits.get(at))
            outcome, detail = Outcome.WRITTEN, change
            if row.target in self._overtaken:
                outcome, detail = Outcome.OVERTAKEN, str(Obstacle(ObstacleKind.LOCK_LOST_AFTER_WRITE))
            self._report.add(MigrationStep.ROLLBACK, row, outcome, found=found, written=written, detail=detail)


def _not_deleted(todo: Restoration, reason: str) -> GuardFailedError:
    what = "the group was" if todo.deletes_group else "offsets that it did not have before were"
    return GuardFailedError(f"{what} not deleted: {reason}")


def _with_mark_error(row: ReportRow, error: ZkgroupsException | None) -> ReportRow:
    if error is None or row.step is not MigrationStep.ROLLBACK:
        return row
    detail = str(Obstacle(ObstacleKind.MARK_FAILED, detail=str(error)))
    return row._replace(outcome=Outcome.FAILED, detail=detail)
