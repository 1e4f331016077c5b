"""The report of a rollback: the result for each offset of a target, and newer offsets of its group in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ..core.migration.apply_rules import is_begun
from ..core.migration.changes_since_plan import PlanRows
from ..core.migration.obstacles import Obstacle, ObstacleKind, texts
from ..core.migration.plan_rows import MigrationStep, Outcome, PlanRow
from ..core.migration.rollback_rules import (
    ALL_RESTORABLE,
    Restoration,
    UnrestorableOffsets,
    newer_obstacle,
    newer_offsets,
    not_moved,
)
from ..core.migration.source_and_target_state import SourceState, TargetState
from ..core.znodes.topic_partition import TopicPartition
from ..input_errors import ZkgroupsException
from .report import Answers, Report, offset_or_none


class RollbackReport:
    """Reports the targets of one call.

    `overtaken` are the targets that were written without a lock, and `mark_errors` those whose marks could not be
    removed.
    """

    def __init__(
        self,
        report: Report,
        unrestorable: Mapping[str, UnrestorableOffsets],
        overtaken: Set[str],
        mark_errors: Mapping[str, ZkgroupsException],
        *,
        execute: bool,
    ) -> None:
        self._report = report
        self._unrestorable = unrestorable
        self._overtaken = overtaken
        self._mark_errors = mark_errors
        self._execute = execute

    def add(
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
            if left:
                self._add(row, left_as, found=found, detail=texts(left))
            elif at is None:
                self._add(row, Outcome.SKIPPED, detail=row.reason)
            elif at in todo.touched:
                self._add_touched(row, at, found, todo, answers)
            elif (why := unrestorable.reason(at)) and (row.prior is not None or at in state.committed):
                self._add(row, Outcome.SKIPPED, found=found, detail=why)
            else:
                self._add(row, Outcome.THERE, found=found)

    def _add_touched(
        self, row: PlanRow, at: TopicPartition, found: int | None, todo: Restoration, answers: Answers
    ) -> None:
        change = "deleted" if at in todo.removed else self._unrestorable[row.target].reason(at) or ""
        error = answers.get(at)
        if not self._execute:
            self._add(row, Outcome.WOULD_WRITE, found=found, detail=change)
        elif error is not None:
            self._add(row, Outcome.FAILED, found=found, detail=str(error))
        else:
            written = offset_or_none(todo.commits.get(at))
            outcome, detail = Outcome.WRITTEN, change
            if row.target in self._overtaken:
                outcome, detail = Outcome.OVERTAKEN, str(Obstacle(ObstacleKind.LOCK_LOST_AFTER_WRITE))
            self._add(row, outcome, found=found, written=written, detail=detail)

    def _add(
        self,
        row: PlanRow,
        outcome: Outcome,
        *,
        found: int | None = None,
        written: int | None = None,
        detail: str = "",
    ) -> None:
        if (error := self._mark_errors.get(row.target)) is not None:
            outcome, detail = Outcome.FAILED, str(Obstacle(ObstacleKind.MARK_FAILED, detail=str(error)))
        self._report.add(MigrationStep.ROLLBACK, row, outcome, found=found, written=written, detail=detail)

    def add_newer(self, rows: PlanRows, source: SourceState, state: TargetState) -> None:
        """Add the offsets of a group in ZooKeeper that are newer than the plan. The rollback keeps them."""
        newer = newer_offsets(rows, source, state.committed)
        detail = str(newer_obstacle(newer)) if newer else ""
        for at, found in newer.items():
            row = rows[0]._replace(topic=at.topic, partition=at.partition)
            self._report.add(MigrationStep.ROLLBACK, row, Outcome.NEWER, found=found, detail=detail)
