"""Applying a plan to whole groups: marked, looked at once more, written in bulk, and looked at again.

A group is left as it is where anything is in the way, and each of its rows says what. Killed anywhere and called again,
it ends the same: what is on the target as planned is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

from ..core.migration.apply_rules import (
    SourceSeen,
    TargetSeen,
    TopicIds,
    anew_obstacles,
    by_target,
    is_begun,
    is_made_anew,
    is_to_commit,
    is_worth_a_mark,
    log_obstacles,
    made_anew,
    overwritten,
    source_obstacles,
    target_obstacles,
    to_commit,
)
from ..core.migration.lazy_rows import Rows
from ..core.migration.plain_groups import (
    Group,
    Numbers,
    has_all,
    of_all,
    plain_of,
    source_is_as_planned,
    target_is_untouched,
)
from ..core.migration.plan_rows import Outcome, PlanRow, ReportRow, Step
from ..core.znodes.migration_mark import Mark, MarkState
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import OutcomeUnknownError, ZkgroupsException
from ..kafka import Brokers
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.admin.migration_locks import LOST
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .current_state import look_at_sources, look_at_targets, marked_by_another, topic_ids
from .log_ranges import Logs, topics_made
from .report import Answers, check_asked, number
from .run_context import Carrier


def apply_groups(
    rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, *, execute: bool
) -> list[ReportRow]:
    """Move these groups, all rows of each, or only say what would be done; without a registry ZooKeeper is not asked.

    Every partition has the brokers' own answer. Groups are marked while they are written, and stay so when they are
    done: members of ours do not join them any more.
    """
    check_asked(rows)
    return list(apply_plans(by_target(rows), brokers, registry, execute=execute))


def apply_plans(
    plans: Mapping[str, Sequence[PlanRow]], brokers: Brokers, registry: Registry | None, *, execute: bool
) -> Rows[ReportRow]:
    """The same for rows that are together by their targets."""
    return _Apply(plans, brokers, registry, execute=execute).run() if plans else Rows(ReportRow)


class _Apply(Carrier):
    """One call."""

    def __init__(
        self, plans: Mapping[str, Sequence[PlanRow]], brokers: Brokers, registry: Registry | None, *, execute: bool
    ) -> None:
        super().__init__(plans, brokers, registry, execute=execute)
        self._marked: set[str] = set()
        """Targets whose groups this call has marked."""
        self._marked_before: set[str] = set()
        """Those that an earlier call of this plan has marked and not finished."""
        self._mark_trouble: dict[str, str] = {}
        """Why the mark of a target's group is not what it is to be."""

    def run(self) -> Rows[ReportRow]:
        blocked = {target: of_all(rows, "obstacles") for target, rows in self._plans.items()}
        self._left = {target: list(obstacles) for target, obstacles in blocked.items() if obstacles}
        self.leave_bad_names()
        with self.locked(target for target in self._going if _is_worth_a_mark(self._plans[target])):
            return self._run()

    def _run(self) -> Rows[ReportRow]:
        self._mark()
        seen = self._look()
        self.leave_unlocked(self._going)
        offsets = {target: self._to_commit(target, seen[target]) for target in self._going}
        answers = self._brokers.commit(offsets) if self._execute else {}
        came = self._who_came(offsets, answers)
        self._mark_again(seen, came, answers)
        for target, rows in self._plans.items():
            if target in self._left:
                self._leave(target)
            else:
                self._written(rows, seen[target], offsets[target], answers.get(target, {}), came.get(target, ""))
        return self._report.columns

    @property
    def _going(self) -> list[str]:
        return [target for target in self._plans if target not in self._left]

    def _groups(self, targets: Iterable[str]) -> dict[str, str]:
        """The targets by their groups: one each, for several groups of one target are an obstacle."""
        return {of_all(self._plans[target], "group"): target for target in targets}

    # Before

    def _mark(self) -> None:
        """Before anything is looked at, so that no member of ours comes after."""
        if self._registry is None:
            return
        groups = self._groups(target for target in self._going if _is_worth_a_mark(self._plans[target]))
        found = marks.read(context_of(self._registry), groups)
        for group, it in found.items():
            if reasons := marked_by_another(it, self._plan):
                self._left[groups[group]] = reasons
            elif isinstance(it, Mark) and it.state is MarkState.MOVING:
                self._marked_before.add(groups[group])
        if self._execute:
            self._put({group: target for group, target in groups.items() if group not in found})

    def _put(self, groups: Mapping[str, str]) -> None:
        assert self._registry is not None
        for group, error in marks.put(
            context_of(self._registry), groups, plan=self._plan, state=MarkState.MOVING
        ).items():
            if error is None:
                self._marked.add(groups[group])
            else:
                self._left[groups[group]] = [f"it could not be marked: {error}"]

    def _look(self) -> dict[str, TargetSeen]:
        """Read the targets last: writes to a target after this are not detected before we write."""
        going = self._going
        sources = self._sources(going)
        for target in going:
            self.leave(target, self._source_obstacles(target, sources))
        self._look_at_logs()
        seen = look_at_targets(self._brokers, going)
        for target in going:
            self.leave(target, self._target_obstacles(target, seen[target]))
        return seen

    def _source_obstacles(self, target: str, sources: Mapping[str, SourceSeen]) -> list[str]:
        if target not in sources:
            return []
        plain = plain_of(self._plans[target])
        if plain is not None and source_is_as_planned(plain, sources[target]):
            return []
        return source_obstacles(self._plans[target], sources[target])

    def _target_obstacles(self, target: str, seen: TargetSeen) -> list[str]:
        if plain_of(self._plans[target]) is not None and target_is_untouched(seen):
            return []
        return target_obstacles(self._plans[target], seen)

    def _to_commit(self, target: str, seen: TargetSeen) -> Mapping[TopicPartition, int]:
        """What is still to be written of a group that nothing is in the way of."""
        plain = plain_of(self._plans[target])
        if plain is not None and target_is_untouched(seen):
            return Numbers(plain.shape, plain.planned)
        return to_commit(self._plans[target], seen.committed)

    def _look_at_logs(self) -> None:
        """A topic may have been made anew since the plan, or a log been cut: its offsets are of other messages then."""
        plains = {target: plain for target in self._going if (plain := plain_of(self._plans[target])) is not None}
        rows = {
            target: [row for row in self._plans[target] if is_to_commit(row)]
            for target in self._going
            if target not in plains
        }
        partitions = {row.at for its in rows.values() for row in its if row.at is not None}
        shapes = {plain.shape for plain in plains.values()}
        partitions.update(at for shape in shapes for at in shape.ats)
        topics = {at.topic for at in partitions}
        logs = Logs(self._brokers, {} if self._registry is None else topics_made(self._registry, topics))
        logs.ask(sorted(partitions))
        bounds = {shape: logs.bounds(shape) for shape in shapes}
        for target, plain in plains.items():
            known = bounds[plain.shape]
            if known is None or not known.have(plain):
                rows[target] = list(self._plans[target])
        for target, its in rows.items():
            if reasons := log_obstacles(its, logs.log):
                self._left[target] = reasons

    def _sources(self, targets: Iterable[str]) -> dict[str, SourceSeen]:
        groups = self._groups(targets)
        if self._registry is None or not groups:
            return {}
        return {groups[group]: it for group, it in look_at_sources(self._registry, groups).items()}

    # After

    def _who_came(
        self, offsets: Mapping[str, Mapping[TopicPartition, int]], answers: Mapping[str, Answers]
    ) -> dict[str, str]:
        """Changes by other clients since the first look, by target: these ignore marks and locks."""
        if not self._execute:
            return {}
        found = {}
        sources = self._sources(self._going)
        written = {target: those for target, those in offsets.items() if those}
        seen = look_at_targets(self._brokers, written, members=False)
        ids = topic_ids(self._brokers, {target: self._plans[target] for target in written})
        lost = set(self.lost(written))
        for target in self._going:
            reasons = self._source_obstacles(target, sources)
            if target in lost:
                reasons.append(LOST)
            if target in written:
                reasons += self._anew_obstacles(target, ids)
                reasons += self._overwritten(target, offsets[target], answers[target], seen[target])
            if reasons:
                found[target] = f"while this was written: {'; '.join(reasons)}"
        return found

    def _anew_obstacles(self, target: str, ids: TopicIds) -> list[str]:
        rows = self._plans[target]
        plain = plain_of(rows)
        if plain is not None and not any(map(is_made_anew, plain.shape.topics, plain.topic_ids, repeat(ids))):
            return []
        return anew_obstacles(rows, made_anew(rows, ids))

    def _overwritten(
        self, target: str, offsets: Mapping[TopicPartition, int], answers: Answers, seen: TargetSeen
    ) -> list[str]:
        if has_all(seen, offsets):
            return []
        if seen.unreadable:
            return [f"the target could not be read again: {seen.unreadable}"]
        written = {at: offset for at, offset in offsets.items() if answers[at] is None}
        return overwritten(self._plans[target], written, seen)

    def _leave(self, target: str) -> None:
        detail = "; ".join([*self._left[target], *filter(None, [self._mark_trouble.get(target)])])
        for row in self._plans[target]:
            self._report.add(Step.APPLY, row, Outcome.LEFT, detail=detail)

    def _written(
        self,
        rows: Sequence[PlanRow],
        seen: TargetSeen,
        offsets: Mapping[TopicPartition, int],
        answers: Answers,
        came: str,
    ) -> None:
        """What became of the rows of a group that was not left."""
        if isinstance(rows, Group) and isinstance(offsets, Numbers) and not came and not any(answers.values()):
            self._all_written(rows, offsets)
            return
        detail = came or self._mark_trouble.get(rows[0].target, "")
        for row in rows:
            at = row.at
            found = None if at is None else number(seen.committed.get(at))
            if not is_to_commit(row):
                self._report.add(Step.APPLY, row, Outcome.SKIPPED, found=found, detail=row.reason)
            elif at is None or at not in offsets:
                outcome = Outcome.OVERTAKEN if came else Outcome.THERE
                self._report.add(Step.APPLY, row, outcome, found=found, detail=detail)
            elif not self._execute:
                self._report.add(Step.APPLY, row, Outcome.WOULD_WRITE, found=found)
            elif (error := answers[at]) is not None:
                self._report.add(Step.APPLY, row, Outcome.FAILED, found=found, detail=str(error))
            else:
                outcome = Outcome.OVERTAKEN if came else Outcome.WRITTEN
                self._report.add(Step.APPLY, row, outcome, found=found, written=row.planned, detail=detail)

    def _all_written(self, rows: Group, offsets: Numbers) -> None:
        if self._execute:
            detail = self._mark_trouble.get(of_all(rows, "target"), "")
            self._report.add_group(Step.APPLY, rows, Outcome.WRITTEN, written=offsets.offsets, detail=detail)
        else:
            self._report.add_group(Step.APPLY, rows, Outcome.WOULD_WRITE)

    def _mark_again(
        self, seen: Mapping[str, TargetSeen], came: Mapping[str, str], answers: Mapping[str, Answers]
    ) -> None:
        """As moved, where all is done; not at all, where nothing is. What is moved in part stays marked as it is."""
        if self._registry is None or not self._execute:
            return
        failed = {target for target, those in answers.items() if any(those.values())}
        done = (target for target in self._going if target not in failed and target not in came)
        moved = self._groups(target for target in done if _is_worth_a_mark(self._plans[target]))
        errors = marks.put(context_of(self._registry), moved, plan=self._plan, state=MarkState.MOVED)
        nothing = {target for target in failed if all(map(_was_not_written, answers[target].values()))}
        bare = [target for target in self._marked if target in self._left]
        bare += [
            target
            for target in (self._marked & nothing) | (self._marked_before & self._left.keys())
            if not seen[target].unreadable and not is_begun(self._plans[target], seen[target].committed)
        ]
        groups = self._groups(bare)
        errors |= marks.remove(context_of(self._registry), groups, plan=self._plan)
        targets = moved | groups
        self._mark_trouble = {
            targets[group]: f"its mark is still there as it was: {e}" for group, e in errors.items() if e
        }


def _is_worth_a_mark(rows: Sequence[PlanRow]) -> bool:
    return plain_of(rows) is not None or is_worth_a_mark(rows)


def _was_not_written(error: ZkgroupsException | None) -> bool:
    """For certain."""
    return error is not None and not isinstance(error, OutcomeUnknownError)
