"""The progress of each group through its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from ..kafka_values import NativeOffset
from ..znodes.topic_partition import TopicPartition
from .changes_since_plan import PlanRows, is_as_before
from .source_and_target_state import TargetState


class MigrationStage(StrEnum):
    """The progress of a group through its plan."""

    NOT_BEGUN = "not begun"
    PARTLY = "partly"
    """Only some offsets are as planned: apply or rollback was killed, rows failed, or offsets were deleted since."""
    DONE = "done"
    NOT_MARKED = "not marked"
    """The target is as planned, but the group has no mark: legacy members may join and continue from ZooKeeper."""
    NOTHING = "nothing to do"
    """The target is as before, and the plan writes no offset of this group."""
    ROLLED_BACK = "rolled back"
    """The target is as before, because a rollback was the last step that wrote to this group."""
    MOVED_ON = "moved on"
    """Other clients have committed on the target."""
    BLOCKED = "blocked"
    """The target is as before, and the plan has obstacles."""
    UNKNOWN = "unknown"
    """The target could not be read."""


class GroupStatus(NamedTuple):
    """The progress of one group of a plan."""

    plan: str
    group: str
    target: str
    stage: MigrationStage
    as_planned: int
    """The number of planned offsets that the target has."""
    as_before: int
    """The number of planned offsets that are not written yet."""
    otherwise: int
    """The number of other offsets on the target: changed by other clients, or new."""
    mark: str
    """The mark of the group in ZooKeeper; empty if it has none, or ZooKeeper was not read."""
    detail: str


def group_status(rows: PlanRows, target: TargetState, mark: str, *, moved: bool | None) -> GroupStatus:
    """Return the progress of a group. Only reports show whether it was rolled back.

    `moved` says whether the group's mark says that this plan has moved it. None: marks cannot be read.
    """
    counts = _Counts.of(rows, target.committed)
    stage = MigrationStage.UNKNOWN if target.unreadable else _stage(rows, counts, moved=bool(moved))
    stage = MigrationStage.NOT_MARKED if stage is MigrationStage.DONE and moved is False else stage
    return GroupStatus(
        plan=rows[0].plan,
        group=rows[0].group,
        target=rows[0].target,
        stage=stage,
        as_planned=counts.as_planned,
        as_before=counts.as_before,
        otherwise=counts.otherwise,
        mark=mark,
        detail="; ".join(filter(None, [target.unreadable, _STAGE_DETAILS.get(stage), *map(str, rows[0].obstacles)])),
    )


_STAGE_DETAILS: Final = {
    MigrationStage.NOT_MARKED: "the group has no mark of this plan in ZooKeeper: legacy members may join"
}


@dataclass(frozen=True, slots=True)
class _Counts:
    as_planned: int
    as_before: int
    otherwise: int
    is_missing: bool

    @classmethod
    def of(cls, rows: PlanRows, committed: Mapping[TopicPartition, NativeOffset]) -> _Counts:
        as_planned = as_before = otherwise = 0
        is_missing = False
        for row in rows:
            now = None if row.at is None else committed.get(row.at)
            if row.is_commit and now is not None and now.offset == row.planned:
                as_planned += 1
            elif is_as_before(row, now):
                as_before += row.is_commit
            elif now is None:
                is_missing = True
            else:
                otherwise += 1
        new = len(committed.keys() - {row.at for row in rows})
        return cls(as_planned, as_before, otherwise + new, is_missing)


def _stage(rows: PlanRows, counts: _Counts, *, moved: bool) -> MigrationStage:
    if counts.otherwise:
        return MigrationStage.MOVED_ON
    if counts.is_missing or (counts.as_planned and counts.as_before):
        return MigrationStage.PARTLY
    if counts.as_planned:
        return MigrationStage.DONE
    if rows[0].obstacles:  # if the group was followed and moved, its offsets were deleted since
        return MigrationStage.PARTLY if moved else MigrationStage.BLOCKED
    return MigrationStage.NOT_BEGUN if counts.as_before else MigrationStage.NOTHING
