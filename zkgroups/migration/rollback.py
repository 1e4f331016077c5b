"""Putting targets back as they were when the plan was made, with metadata and leader epochs, from the plan.

Brokers are not asked to take one offset away: a group that has one too many is deleted, and all that it had before is
committed again. Whoever is killed in between leaves a target that lacks offsets the plan knows, which the next call
sees, and commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..core.carrying import Restoring, Rows, TargetSeen, by_target, living, moved_obstacles, restoring
from ..core.model import TopicPartition
from ..core.plan import Outcome, PlanRow, ReportRow, Step
from ..exceptions import GroupNotFoundError, InvalidOptionError, ZkgroupsException
from ..kafka import Brokers
from ..zookeeper import mark as marks
from ..zookeeper.registry import Registry
from .guards import look_at_targets, marked_by_another
from .report import Answers, Report, check_asked, number
from .returning import Returning


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
    carried `to_zookeeper` first. One that somebody takes part in is left in any case: no broker would have it. The
    groups' marks are taken away when all is done.
    """
    check_asked(rows)
    if to_zookeeper and registry is None:
        raise InvalidOptionError("to_zookeeper", True, "there is no ZooKeeper to carry anything to")
    if not rows:
        return []
    return _Rollback(by_target(rows), brokers, registry, execute=execute, force=force).run(to_zookeeper=to_zookeeper)


class _Rollback:
    """One call."""

    def __init__(
        self,
        plans: Mapping[str, Rows],
        brokers: Brokers,
        registry: Registry | None,
        *,
        execute: bool,
        force: bool,
    ) -> None:
        self._plans = plans
        self._brokers = brokers
        self._registry = registry
        self._execute = execute
        self._force = force
        self._report = Report()
        self._left: dict[str, list[str]] = {}
        """Why the targets are left that are."""

    def run(self, *, to_zookeeper: bool) -> list[ReportRow]:
        seen = look_at_targets(self._brokers, self._plans)
        marked = self._look_at_marks()
        todo = {target: restoring(self._plans[target], it.committed) for target, it in seen.items()}
        for target, it in seen.items():
            if it.unreadable or todo[target].touched or target in marked:
                self._leave(target, living(it))
        if to_zookeeper:
            self._return(seen)
        elif not self._force:
            for target, its in todo.items():
                self._leave(target, moved_obstacles(its))
        answers = self._write({target: it for target, it in todo.items() if target not in self._left})
        for target, rows in self._plans.items():
            self._tell(rows, seen[target], todo[target], answers.get(target, {}))
        self._unmark(answers)
        return self._report.rows

    def _leave(self, target: str, reasons: Sequence[str]) -> None:
        if reasons:
            self._left.setdefault(target, []).extend(reasons)

    def _look_at_marks(self) -> set[str]:
        """The targets whose groups this plan has marked; what another has, it has to put back first."""
        if self._registry is None:
            return set()
        groups = {row.group: target for target, rows in self._plans.items() for row in rows}
        mine = set()
        for group, it in marks.read(self._registry.handle, groups).items():
            target = groups[group]
            reasons = marked_by_another(it, self._plans[target][0].plan)
            if not reasons:
                mine.add(target)
            elif not self._force:
                self._leave(target, reasons)
        return mine

    def _return(self, seen: Mapping[str, TargetSeen]) -> None:
        """Carry to ZooKeeper first what was read on the targets; what is there then may go from here."""
        assert self._registry is not None
        going = {target: self._plans[target] for target in self._plans if target not in self._left}
        returning = Returning(self._registry, self._report, execute=self._execute)
        for target, reasons in returning.carry(going, seen).items():
            self._leave(target, reasons)
        for target in self._changed(returning.carried, seen):
            self._leave(target, ["somebody has come to the target while its offsets were carried to ZooKeeper"])

    def _changed(self, targets: Iterable[str], seen: Mapping[str, TargetSeen]) -> list[str]:
        return [target for target, now in look_at_targets(self._brokers, targets).items() if now != seen[target]]

    def _write(self, todo: Mapping[str, Restoring]) -> dict[str, Answers]:
        """For each target the answers for what is committed; where the group could not be deleted it is the reason."""
        if not self._execute:
            return {}
        deleted = self._brokers.delete_groups(target for target, it in todo.items() if it.delete)
        kept = {target: error for target, error in deleted.items() if not _is_gone(error)}
        committed = self._brokers.commit({target: it.commits for target, it in todo.items() if target not in kept})
        return committed | {target: dict.fromkeys(todo[target].touched, error) for target, error in kept.items()}

    def _tell(self, rows: Rows, seen: TargetSeen, todo: Restoring, answers: Answers) -> None:
        reasons = self._left.get(rows[0].target)
        known = {row.at for row in rows}
        beside = [replace(rows[0], topic=at.topic, partition=at.partition) for at in todo.taken if at not in known]
        touched = todo.touched
        for row in [*rows, *([] if reasons else beside)]:
            at = row.at
            found = None if at is None else number(seen.committed.get(at))
            if reasons:
                self._report.add(Step.ROLLBACK, row, Outcome.LEFT, found=found, detail="; ".join(reasons))
            elif at is None:
                self._report.add(Step.ROLLBACK, row, Outcome.SKIPPED, detail=row.reason)
            elif at not in touched:
                self._report.add(Step.ROLLBACK, row, Outcome.THERE, found=found)
            else:
                self._tell_of(row, at, found, todo, answers)

    def _tell_of(self, row: PlanRow, at: TopicPartition, found: int | None, todo: Restoring, answers: Answers) -> None:
        taken = "taken away" if at in todo.taken else ""
        error = answers.get(at)
        if not self._execute:
            self._report.add(Step.ROLLBACK, row, Outcome.WOULD_WRITE, found=found, detail=taken)
        elif error is not None:
            self._report.add(Step.ROLLBACK, row, Outcome.FAILED, found=found, detail=str(error))
        else:
            written = number(todo.commits.get(at))
            self._report.add(Step.ROLLBACK, row, Outcome.WRITTEN, found=found, written=written, detail=taken)

    def _unmark(self, answers: Mapping[str, Answers]) -> None:
        """Legacy members may come again to groups that are put back as they were."""
        if self._registry is None or not self._execute:
            return
        failed = {target for target, those in answers.items() if any(those.values())}
        done = [target for target in self._plans if target not in self._left and target not in failed]
        groups = {row.group: row.plan for target in done for row in self._plans[target]}
        for plan in dict.fromkeys(groups.values()):
            marks.remove(self._registry.handle, [group for group in groups if groups[group] == plan], plan=plan)


def _is_gone(error: ZkgroupsException | None) -> bool:
    return error is None or isinstance(error, GroupNotFoundError)
