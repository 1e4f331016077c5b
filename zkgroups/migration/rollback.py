"""Putting targets back as they were when the plan was made, with metadata and leader epochs, from the plan.

Brokers are not asked to take one offset away: a group that has one too many is deleted, and all that it had before is
committed again. It is committed once before that, too: what brokers refuse to take they refuse while it is still there.
Whoever is killed in between leaves a target that lacks offsets the plan knows, which the next call sees, and commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from ..core.migration.apply_rules import (
    NOTHING_LOST,
    Lost,
    Restoring,
    Rows,
    TargetSeen,
    anew_obstacles,
    back_obstacles,
    by_target,
    changed,
    changed_obstacles,
    living,
    lost_partitions,
    moved_obstacles,
    not_moved,
    restoring,
)
from ..core.migration.plan_rows import Outcome, PlanRow, ReportRow, Step
from ..core.migration.rules import bad_target
from ..core.znodes.migration_mark import Mark
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import UnreadableNode
from ..exceptions import GroupNotFoundError, GuardFailedError, InvalidOptionError, ZkgroupsException
from ..kafka import Brokers
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.admin.migration_locks import LOST
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .copy_back import Returning
from .current_state import look_at_targets, marked_by_another, topic_ids
from .report import Answers, check_asked, number
from .run_context import Carrier


def rollback_groups(
    rows: Sequence[PlanRow],
    brokers: Brokers,
    registry: Registry | None,
    *,
    execute: bool,
    force: bool = False,
    to_zookeeper: bool = False,
) -> list[ReportRow]:
    """Put the targets of these groups back, all rows of each, or only say what would be done.

    A target whose offsets somebody has moved is left, unless it is to be put back by `force`, or what was read there is
    carried `to_zookeeper` first. Only progress is carried: a target that was moved back is left without `force`, too.
    A target whose group has no mark of this plan is left: others may have come to the same offsets. That is forced,
    too, but nothing is carried to such a group. One that somebody takes part in is left in any case, for no broker
    would have it, and one that this plan could not move. Offsets of topics that the brokers no longer have are skipped.
    Marks are taken away when all is done.
    """
    check_asked(rows)
    if to_zookeeper and registry is None:
        raise InvalidOptionError("to_zookeeper", True, "there is no ZooKeeper to carry anything to")
    if not rows:
        return []
    rollback = _Rollback(by_target(rows), brokers, registry, execute=execute, force=force)
    return rollback.run(to_zookeeper=to_zookeeper)


class _Rollback(Carrier):
    """One call."""

    def __init__(
        self, plans: Mapping[str, Rows], brokers: Brokers, registry: Registry | None, *, execute: bool, force: bool
    ) -> None:
        super().__init__(plans, brokers, registry, execute=execute)
        self._force = force
        self._marks: dict[str, Mark | UnreadableNode] = {}
        """What is found, by target."""
        self._lost: dict[str, Lost] = {}
        """The offsets that cannot be put back, by target."""
        self._overtaken: Set[str] = frozenset()
        """Targets that were written without a lock."""

    def run(self, *, to_zookeeper: bool) -> list[ReportRow]:
        self.leave_bad_names()
        with self.locked(target for target in self._plans if target not in self._left):
            return self._run(to_zookeeper=to_zookeeper)

    def _run(self, *, to_zookeeper: bool) -> list[ReportRow]:
        seen = look_at_targets(self._brokers, self._plans)
        self._look_at_marks()
        self._lost = self._look_at_topics(seen)
        todo = {target: restoring(self._plans[target], it.committed, self._lost[target]) for target, it in seen.items()}
        for target, it in seen.items():
            self.leave(target, not_moved(self._plans[target]))
            if it.unreadable or todo[target].touched or self._may_be_ours(target):
                self.leave(target, living(it))
            if todo[target].touched and (to_zookeeper or not self._force):
                self.leave(target, self._not_marked(target))
        if to_zookeeper:
            self._leave_what_cannot_be_carried(todo)
            self._return(seen, [target for target, it in todo.items() if it.touched])
        elif not self._force:
            for target, its in todo.items():
                self.leave(target, moved_obstacles(its))
        self._leave_changed(seen)
        answers = self._write({target: it for target, it in todo.items() if target not in self._left}, seen)
        self._overtaken = set(self.lost(answers))
        for target, rows in self._plans.items():
            self._tell(rows, seen[target], todo[target], answers.get(target, {}))
        still = self._unmark(answers)
        return [_still_marked(row, still.get(row.target)) for row in self._report.rows]

    def _look_at_topics(self, seen: Mapping[str, TargetSeen]) -> dict[str, Lost]:
        """What of these targets cannot be put back as the brokers' topics are now."""
        ids = topic_ids(self._brokers, {target: self._plans[target] for target in seen})
        topics = {row.topic for target in seen for row in self._plans[target] if row.topic and row.prior is not None}
        there = self._brokers.partitions(topics) if topics else {}
        return {
            target: lost_partitions(self._plans[target], ids, there, () if self._force else it.committed)
            for target, it in seen.items()
        }

    def _leave_what_cannot_be_carried(self, todo: Mapping[str, Restoring]) -> None:
        for target, its in todo.items():
            self.leave(target, anew_obstacles(self._plans[target], self._lost[target].anew))
            if not self._force:
                self.leave(target, back_obstacles(its))

    def _leave_changed(self, seen: Mapping[str, TargetSeen]) -> None:
        """Look again before the first write: nobody knows of a commit that is overwritten now."""
        if not self._execute:
            return
        for target, now in look_at_targets(self._brokers, seen.keys() - self._left.keys()).items():
            if now != seen[target]:
                self.leave(target, changed_obstacles(seen[target], now))
        self.leave_unlocked(seen.keys() - self._left.keys())

    def _look_at_marks(self) -> None:
        if self._registry is None:
            return
        groups = {rows[0].group: target for target, rows in self._plans.items() if bad_target(rows[0].group) is None}
        self._registry.sync()  # a mark that is not seen yet would be one that is missing
        found = marks.read(context_of(self._registry), groups)
        self._marks = {groups[group]: it for group, it in found.items()}

    def _may_be_ours(self, target: str) -> bool:
        """Whether there is a mark to take away."""
        mark = self._marks.get(target)
        return isinstance(mark, UnreadableNode) or (mark is not None and mark.plan == self._plan)

    def _not_marked(self, target: str) -> list[str]:
        """Why it cannot be told that this plan has moved the group; without a ZooKeeper nobody can tell."""
        if self._registry is None:
            return []
        if target not in self._marks:
            return ["nothing in ZooKeeper says that this plan has moved it"]
        return marked_by_another(self._marks[target], self._plan)

    def _return(self, seen: Mapping[str, TargetSeen], targets: Sequence[str]) -> None:
        """Carry to ZooKeeper first what was read on the targets; what is there then may go from here."""
        assert self._registry is not None
        going = {target: self._plans[target] for target in targets if target not in self._left}
        returning = Returning(self._registry, self._report, execute=self._execute)
        for target, reasons in returning.carry(going, seen).items():
            self.leave(target, reasons)

    def _write(self, todo: Mapping[str, Restoring], seen: Mapping[str, TargetSeen]) -> dict[str, Answers]:
        """For each target the answers of all that is touched; what stays because its group does has the reason."""
        if not self._execute:
            return {}
        answers: dict[str, Answers] = {**self._brokers.commit({target: it.commits for target, it in todo.items()})}
        delete = [target for target, it in todo.items() if it.delete]
        refused = GuardFailedError("the group is not deleted, for not all that it had before can be put back")
        kept: dict[str, Answers] = {
            target: dict.fromkeys(todo[target].taken, refused) for target in delete if any(answers[target].values())
        }
        kept |= self._changed({target: todo[target] for target in delete if target not in kept}, seen)
        deleted = self._brokers.delete_groups(target for target in delete if target not in kept)
        kept |= {
            target: dict.fromkeys(todo[target].taken, error)
            for target, error in deleted.items()
            if error is not None and not _is_gone(error)
        }
        answers |= self._brokers.commit({target: todo[target].commits for target in deleted if target not in kept})
        return answers | {target: {**answers[target], **those} for target, those in kept.items()}

    def _changed(self, todo: Mapping[str, Restoring], seen: Mapping[str, TargetSeen]) -> dict[str, Answers]:
        """Look again before groups are deleted: why some must stay, for the partitions that are concerned."""
        if not todo:
            return {}
        found: dict[str, Answers] = {}
        targets = look_at_targets(self._brokers, todo, members=False)
        lost = self._look_at_topics({target: seen[target] for target in todo})
        unlocked = self.lost(todo)
        for target, it in todo.items():
            ours = TargetSeen(committed={**seen[target].committed, **it.commits})
            reasons = changed_obstacles(ours, targets[target])
            if lost[target] != self._lost[target]:
                reasons.append("topics were deleted or made anew meanwhile")
            if target in unlocked:
                reasons.append(LOST)
            if reasons:
                error = GuardFailedError(f"the group is not deleted: {'; '.join(reasons)}")
                found[target] = dict.fromkeys([*it.taken, *changed(ours, targets[target])], error)
        return found

    def _tell(self, rows: Rows, seen: TargetSeen, todo: Restoring, answers: Answers) -> None:
        reasons = self._left.get(rows[0].target)
        known = {row.at for row in rows}
        beside = [replace(rows[0], topic=at.topic, partition=at.partition) for at in todo.taken if at not in known]
        touched = todo.touched
        lost = self._lost.get(rows[0].target, NOTHING_LOST)
        for row in [*rows, *([] if reasons else beside)]:
            at = row.at
            found = None if at is None else number(seen.committed.get(at))
            if reasons:
                self._report.add(Step.ROLLBACK, row, Outcome.LEFT, found=found, detail="; ".join(reasons))
            elif at is None:
                self._report.add(Step.ROLLBACK, row, Outcome.SKIPPED, detail=row.reason)
            elif at in touched:
                self._tell_of(row, at, found, todo, answers)
            elif (why := lost.why(at)) and (row.prior is not None or at in seen.committed):
                self._report.add(Step.ROLLBACK, row, Outcome.SKIPPED, found=found, detail=why)
            else:
                self._report.add(Step.ROLLBACK, row, Outcome.THERE, found=found)

    def _tell_of(self, row: PlanRow, at: TopicPartition, found: int | None, todo: Restoring, answers: Answers) -> None:
        taken = "taken away" if at in todo.taken else self._lost[row.target].why(at)
        error = answers.get(at)
        if not self._execute:
            self._report.add(Step.ROLLBACK, row, Outcome.WOULD_WRITE, found=found, detail=taken)
        elif error is not None:
            self._report.add(Step.ROLLBACK, row, Outcome.FAILED, found=found, detail=str(error))
        else:
            written = number(todo.commits.get(at))
            outcome, detail = Outcome.WRITTEN, taken
            if row.target in self._overtaken:
                outcome, detail = Outcome.OVERTAKEN, LOST
            self._report.add(Step.ROLLBACK, row, outcome, found=found, written=written, detail=detail)

    def _unmark(self, answers: Mapping[str, Answers]) -> dict[str, ZkgroupsException]:
        """Legacy members may come again to groups that are put back as they were; why those cannot that cannot.

        What another plan has marked is to stay so.
        """
        if self._registry is None or not self._execute:
            return {}
        kept = {target for target, those in answers.items() if any(those.values())}
        kept |= self._left.keys() | self._overtaken
        groups = {
            self._plans[target][0].group: target
            for target in self._marks
            if target not in kept and self._may_be_ours(target)
        }
        answered = marks.remove(context_of(self._registry), groups, plan=self._plan)
        return {groups[group]: error for group, error in answered.items() if error is not None}


def _is_gone(error: ZkgroupsException) -> bool:
    return isinstance(error, GroupNotFoundError)


def _still_marked(row: ReportRow, error: ZkgroupsException | None) -> ReportRow:
    if error is None or row.step is not Step.ROLLBACK:
        return row
    return replace(row, outcome=Outcome.FAILED, detail=f"the group is still marked: {error}")
