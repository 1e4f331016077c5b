"""Rolling back: restoring the offsets, metadata and leader epochs that targets had when the plan was made.

Additional offsets are deleted after the earlier ones are restored. Brokers before 2.4 cannot delete single offsets, so
there the group is deleted, and its earlier offsets are committed again. They are also committed before the deletion, to
see that the brokers accept them. If a run is killed in between, the target lacks offsets that the plan knows, and the
next run restores them.

Progress is copied back to ZooKeeper before, forward only, and only while no instance is registered there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from ..core.layouts.layout import OneOffsetPerNode
from ..core.layouts.legacy import LEGACY
from ..core.layouts.template import parse_layout
from ..core.migration.changes_since_plan import (
    OffsetKey,
    OffsetNode,
    PlanRows,
    SourceState,
    TargetState,
    by_target,
    instance_obstacles,
    is_begun,
    member_obstacles,
    recreated_obstacles,
)
from ..core.migration.comparison import (
    ALL_RESTORABLE,
    Restoration,
    UnrestorableOffsets,
    changed_obstacles,
    changed_partitions,
    committed_since_obstacles,
    forward_only,
    moved_back_obstacles,
    newer_obstacle,
    newer_offsets,
    not_moved,
    progress,
    restoration,
    unrestorable_offsets,
)
from ..core.migration.obstacles import Obstacle, ObstacleKind, texts
from ..core.migration.offset_decision import name_error
from ..core.migration.plan_rows import MigrationStep, Outcome, PlanRow, ReportRow
from ..core.znodes.own_nodes import Mark
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, UnreadableNode
from ..exceptions import GroupNotFoundError, GuardFailedError, UnavailableError
from ..input_errors import InvalidOptionError, ZkgroupsException
from ..kafka import Brokers
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.offsets import advance_offsets
from ..zookeeper.registry import Registry
from ..zookeeper.session.session import context_of
from .apply import Answers, RunContext, check_made_with_brokers, offset_or_none
from .current_state import mark_obstacles, read_sources, read_targets, read_topic_ids, topic_creation_zxids


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

    def __init__(self, *args: Any, force: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._force = force
        self._states: Mapping[str, TargetState] = {}
        """The targets before the rollback."""
        self._marks: dict[str, Mark | UnreadableNode] = {}
        """The marks of the groups, by target."""
        self._unrestorable: dict[str, UnrestorableOffsets] = {}
        """The offsets that cannot be restored, by target."""
        self._overtaken: Set[str] = frozenset()
        """The targets that were written without a lock."""
        self._mark_errors: Mapping[str, ZkgroupsException] = {}
        """Why marks could not be removed, by target."""

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
            for target, found in todo.items():
                if found.touched:
                    self.leave(target, self.writers_unknown())
                    if target not in self._left:
                        self.leave(target, self._copy_back(self._plans[target], sources[target], states[target]))
        elif not self._force:
            for target, found in todo.items():
                self.leave(target, committed_since_obstacles(found))
        self._leave_changed(states)
        wanted = {target: found for target, found in todo.items() if target not in self._left}
        answers = self._restore(wanted) if self._execute else {}
        self._overtaken = frozenset(self.lost_locks(answers))
        self._mark_errors = self._remove_marks(answers)
        for target, rows in self._plans.items():
            left = self._left.get(target, [])
            self._report_target(rows, states[target], todo[target], answers.get(target, {}), left)
            if target in sources:
                self._report_newer(rows, sources[target], states[target])
        return [*self._report.rows]

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
        partitions = self._brokers.partitions(topics)
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

    # Copying progress to ZooKeeper

    def _copy_back(self, rows: PlanRows, source: SourceState, state: TargetState) -> list[Obstacle]:
        """Copy the progress of a group. Return the obstacles if it could not be copied completely."""
        if obstacles := instance_obstacles(source):
            return obstacles
        wanted = forward_only(progress(rows, state.committed), source.offsets)
        if not wanted:
            return []
        answers = self._write_back(rows[0].group, wanted) if self._execute else dict.fromkeys(wanted)
        for at, error in answers.items():
            node = source.offsets.get((at.topic, at.partition))
            outcome, written, detail = Outcome.WRITTEN, None, ""
            if not self._execute:
                outcome, detail = Outcome.WOULD_WRITE, f"{wanted[at]} would be written"
            elif error is None:
                written = wanted[at]
            else:
                outcome, detail = Outcome.FAILED, str(error)
            row = rows[0]._replace(topic=at.topic, partition=at.partition)
            found = None if node is None else node.offset
            self._report.add(MigrationStep.TO_ZOOKEEPER, row, outcome, found=found, written=written, detail=detail)
        errors = [error for error in answers.values() if error is not None]
        return [Obstacle(ObstacleKind.COPY_BACK_FAILED, detail=str(error)) for error in errors[:1]]

    def _write_back(self, group: str, wanted: Mapping[TopicPartition, int]) -> Answers:
        """Write these offsets, unless ZooKeeper has higher ones by now."""
        assert self._registry is not None
        assert isinstance(self._layout, OneOffsetPerNode)  # checked at the start
        offsets = self._registry.group(group).offsets
        try:
            if self._layout != LEGACY:
                return advance_offsets(context_of(self._registry), self._layout, group, wanted)
            found = offsets.fetch_many(wanted)
            nodes: dict[OffsetKey, OffsetNode] = {
                (at.topic, at.partition): OffsetNode(None, it.offset if isinstance(it, CommittedOffset) else None)
                for at, it in found.items()
            }
            behind = forward_only(wanted, nodes)
            return dict.fromkeys(behind) | offsets.replace(behind, expected=found)
        except UnavailableError:
            raise
        except ZkgroupsException as error:
            return dict.fromkeys(wanted, error)

    def _restore(self, todo: Mapping[str, Restoration]) -> dict[str, Answers]:
        """Restore these targets. Return the answers for all partitions that change, by target.

        If the additional offsets of a group must not be deleted, their answers are errors with the reason.
        """
        answers: dict[str, Answers] = {
            **self._brokers.commit(
                {target: it.commits for target, it in todo.items()},
                before={target: self._states[target].committed for target in todo},
            )
        }
        delete = {target: it for target, it in todo.items() if it.removed}
        kept: dict[str, Answers] = {
            target: dict.fromkeys(it.removed, _not_deleted(it, "not all of its earlier offsets can be restored"))
            for target, it in delete.items()
            if any(answers[target].values())
        }
        kept |= self._check_again({target: it for target, it in delete.items() if target not in kept})
        left = {target: it for target, it in delete.items() if target not in kept}
        before = {target: {**self._states[target].committed, **it.commits} for target, it in left.items()}
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

    def _check_again(self, todo: Mapping[str, Restoration]) -> dict[str, Answers]:
        """Read the targets again before anything is deleted. Return the errors of groups that must not be deleted."""
        if not todo:
            return {}
        found: dict[str, Answers] = {}
        now = read_targets(self._brokers, todo, members=False)
        others = self._check_before_delete(todo)
        for target, it in todo.items():
            expected = TargetState(committed={**self._states[target].committed, **it.commits})
            if obstacles := [*changed_obstacles(expected, now[target]), *others[target]]:
                error = _not_deleted(it, texts(obstacles))
                found[target] = dict.fromkeys([*it.removed, *changed_partitions(expected, now[target])], error)
        return found

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
        answered = marks.remove(context_of(self._registry), groups, plan=self._plan, layout=self._layout)
        return {groups[group]: error for group, error in answered.items() if error is not None}

    # The report

    def _report_target(
        self, rows: PlanRows, state: TargetState, todo: Restoration, answers: Answers, left: Sequence[Obstacle]
    ) -> None:
        """Add all rows of a target. `left` has the reasons why it was left unchanged."""
        left_as = Outcome.LEFT
        if (never := not_moved(rows)) and not is_begun(rows, state.committed):
            left, left_as = never, Outcome.SKIPPED  # nothing of the plan is there to roll back
        known = {row.at for row in rows}
        added = [rows[0]._replace(topic=at.topic, partition=at.partition) for at in todo.removed if at not in known]
        unrestorable = self._unrestorable.get(rows[0].target, ALL_RESTORABLE)
        for row in [*rows, *([] if left else added)]:
            at = row.at
            found = None if at is None else offset_or_none(state.committed.get(at))
            written, detail = None, ""
            if left:
                outcome, detail = left_as, texts(left)
            elif at is None:
                outcome, detail = Outcome.SKIPPED, row.reason
            elif at in todo.touched:
                outcome, written, detail = self._touched(row, at, todo, answers)
            elif (why := unrestorable.reason(at)) and (row.prior is not None or at in state.committed):
                outcome, detail = Outcome.SKIPPED, why
            else:
                outcome = Outcome.THERE
            if (error := self._mark_errors.get(row.target)) is not None:
                outcome, detail = Outcome.FAILED, str(Obstacle(ObstacleKind.MARK_FAILED, detail=str(error)))
            self._report.add(MigrationStep.ROLLBACK, row, outcome, found=found, written=written, detail=detail)

    def _touched(
        self, row: PlanRow, at: TopicPartition, todo: Restoration, answers: Answers
    ) -> tuple[Outcome, int | None, str]:
        """Return the outcome of an offset to restore, the number that was written, and the detail."""
        change = "deleted" if at in todo.removed else self._unrestorable[row.target].reason(at) or ""
        if not self._execute:
            return Outcome.WOULD_WRITE, None, change
        if (error := answers.get(at)) is not None:
            return Outcome.FAILED, None, str(error)
        written = offset_or_none(todo.commits.get(at))
        if row.target in self._overtaken:
            return Outcome.OVERTAKEN, written, str(Obstacle(ObstacleKind.LOCK_LOST_AFTER_WRITE))
        return Outcome.WRITTEN, written, change

    def _report_newer(self, rows: PlanRows, source: SourceState, state: TargetState) -> None:
        """Add the offsets of a group in ZooKeeper that are newer than the plan. The rollback keeps them."""
        newer = newer_offsets(rows, source, state.committed)
        detail = str(newer_obstacle(newer)) if newer else ""
        for at, found in newer.items():
            row = rows[0]._replace(topic=at.topic, partition=at.partition)
            self._report.add(MigrationStep.ROLLBACK, row, Outcome.NEWER, found=found, detail=detail)


def _not_deleted(todo: Restoration, reason: str) -> GuardFailedError:
    what = "the group was" if todo.deletes_group else "offsets that are new since the plan were"
    return GuardFailedError(f"{what} not deleted: {reason}")
