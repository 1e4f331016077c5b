"""Statuses of partitions and groups, and the verdict: a status with its severity and the reason in words.

    | status   | severity         | meaning                                                                            |
    |----------|------------------|------------------------------------------------------------------------------------|
    | PAST_END | error            | the committed offset is past the log end                                           |
    | BLOCKED  | error            | the owner does not subscribe to the topic, so no subscriber can claim it           |
    | ORPHANED | error            | the owner is not registered, so no member can claim it                             |
    | UNOWNED  | warning or error | members subscribe to the topic, but none owns the partition                        |
    | STOP     | error            | messages wait, and nothing was committed for a long time                           |
    | REWIND   | error            | the offset went back, and has not recovered                                        |
    | STALL    | error            | commits arrive, but the offset does not move                                       |
    | WARN     | warning          | the lag never falls, or unread messages were deleted                               |
    | UNKNOWN  | warning or info  | the lag is unknown                                                                 |
    | STALE    | info             | no member, and no commit for months: the group is probably unused                  |
    | MOVED    | info             | the group was moved to Kafka's own offsets, or is being moved                      |
    | OK       | (none)           | none of these                                                                      |

OK, WARN, STOP, STALL and REWIND are the statuses of Burrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from ..doctor.findings import Severity


class Status(StrEnum):
    """The status of a partition or a group. Of equally severe ones, the first counts for a group."""

    PAST_END = "PAST_END"
    BLOCKED = "BLOCKED"
    ORPHANED = "ORPHANED"
    UNOWNED = "UNOWNED"
    STOP = "STOP"
    REWIND = "REWIND"
    STALL = "STALL"
    WARN = "WARN"
    UNKNOWN = "UNKNOWN"
    STALE = "STALE"
    MOVED = "MOVED"
    OK = "OK"


class Verdict(NamedTuple):
    """A status, its severity (None for OK), and the reason in words."""

    status: Status
    severity: Severity | None
    reason: str


_SEVERITIES: Final = {None: len(Severity)} | {severity: rank for rank, severity in enumerate(Severity)}
_STATUSES: Final = {status: rank for rank, status in enumerate(Status)}


def rank(verdict: Verdict) -> tuple[int, int]:
    """Return a sort key: the worst verdict first."""
    return _SEVERITIES[verdict.severity], _STATUSES[verdict.status]


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the worst verdict, the first of equal ones. None if there are none."""
    return min(verdicts, key=rank, default=None)
