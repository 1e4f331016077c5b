"""Applying a plan: which offsets to write, and which groups to mark.

Every decision follows from the plan and the current state, so a run that was killed can start again:

    | on the target now               | apply               | rollback                    |
    |---------------------------------|---------------------|-----------------------------|
    | the planned offset              | done                | restore the earlier offset  |
    | the earlier offset              | write               | done                        |
    | none, but there was one earlier | leave the group     | restore the earlier offset  |
    | anything else                   | leave the group     | leave the group             |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ..columns import column
from ..kafka_values import NativeOffset
from ..znodes.topic_partition import TopicPartition
from .changes_since_plan import PlanRows, is_as_planned
from .offset_decision import Action, Reason
from .plan_rows import all_commit, places


class WriteState(StrEnum):
    """Whether a planned offset still has to be written."""

    TO_WRITE = "to write"
    DONE = "done"
    CHANGED = "changed"
    """The target has neither the earlier nor the planned offset: another client has committed."""


def write_state(now: int | None, before: int | None, planned: int) -> WriteState:
    """Compare the current offset of the target with the offset before the plan and the planned one.

    >>> [write_state(now, before=3, planned=7).value for now in (3, 7, 5, None)]
    ['to write', 'done', 'changed', 'changed']
    """
    if now == planned:
        return WriteState.DONE
    return WriteState.TO_WRITE if now == before else WriteState.CHANGED


def offsets_to_write(rows: PlanRows, committed: Mapping[TopicPartition, NativeOffset]) -> dict[TopicPartition, int]:
    """Return the offsets still to be written for a group without obstacles."""
    ats = places(rows)
    if not committed and None not in ats and all_commit(rows) and column(rows, "before").count(None) == len(rows):
        return dict(zip(ats, column(rows, "planned"), strict=True))  # type: ignore[arg-type]  # as usual, and faster
    found = {}
    for row in rows:
        if row.planned is not None and row.is_commit and (at := row.at) is not None:
            now = committed.get(at)
            if write_state(None if now is None else now.offset, row.before, row.planned) is WriteState.TO_WRITE:
                found[at] = row.planned
    return found


def needs_mark(rows: PlanRows) -> bool:
    """Return whether the group has, or will have, offsets on the target. If all are skipped, it does not move."""
    if not _ARRIVED.isdisjoint(column(rows, "reason")):
        return True
    known = zip(column(rows, "action"), column(rows, "planned"), strict=True)
    return any(action is Action.COMMIT and planned is not None for action, planned in known)


_ARRIVED: Final = frozenset({Reason.ALREADY_THERE, Reason.TARGET_AHEAD})


def is_begun(rows: PlanRows, committed: Mapping[TopicPartition, NativeOffset]) -> bool:
    """Return whether any planned offset is on the target."""
    return any(is_as_planned(row, committed.get(row.at)) for row in rows if row.at)
