"""The status of a group: that of its worst partition, and how many partitions have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..doctor.findings import Severity
from ..znodes.states import GroupState
from .partition_health import messages_wait
from .verdicts import Status, Verdict, worst

FORBIDDEN: Final = Verdict(Status.UNKNOWN, Severity.WARNING, "some of its nodes may not be read")
NO_PARTITIONS: Final = Verdict(Status.UNKNOWN, Severity.INFO, "it has no offsets and no owners")


def judge_group(state: GroupState, partitions: Sequence[Verdict], lag: int | None = None) -> Verdict:
    """Return the verdict on a group in this state with these partitions and this total lag.

    >>> stop = Verdict(Status.STOP, Severity.ERROR, "no commit for 2h")
    >>> judge_group(GroupState.EMPTY, [Verdict(Status.OK, None, "up to date"), stop]).reason
    'no commit for 2h (1 of 2 partitions)'
    >>> judge_group(GroupState.EMPTY, [stop]).reason
    'no commit for 2h'
    """
    found = worst(partitions)
    if state is GroupState.UNKNOWN and (found is None or found.severity is not Severity.ERROR):
        return FORBIDDEN
    if found is None:
        return NO_PARTITIONS
    if found.status is Status.OK and lag:
        return found._replace(reason=messages_wait(lag))
    if found.status in (Status.OK, Status.MOVED):
        return found
    count = sum(each.status is found.status for each in partitions)
    if count == len(partitions) == 1:
        return found
    return found._replace(reason=f"{found.reason} ({count} of {len(partitions)} partitions)")
