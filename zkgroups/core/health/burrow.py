"""The statuses of Burrow, for programs that poll it: names, numbers, and which of ours becomes which of its."""

from __future__ import annotations

from enum import StrEnum

from ..doctor.findings import Severity
from .verdicts import Status, Verdict


class BurrowStatus(StrEnum):
    """The statuses of Burrow. Its numbers are their positions."""

    NOTFOUND = "NOTFOUND"
    OK = "OK"
    WARN = "WARN"
    ERR = "ERR"
    STOP = "STOP"
    STALL = "STALL"
    REWIND = "REWIND"

    @property
    def code(self) -> int:
        """The number that Burrow uses in its metrics."""
        return list(BurrowStatus).index(self)


def of_partition(verdict: Verdict) -> BurrowStatus:
    """Return the status of a partition. Statuses that Burrow does not have become WARN or ERR by their severity.

    >>> of_partition(Verdict(Status.UNOWNED, Severity.WARNING, "no member owns it")).code
    2
    """
    if verdict.status in (Status.STOP, Status.STALL, Status.REWIND):
        return BurrowStatus(verdict.status.value)
    return of_group(verdict)


def of_group(verdict: Verdict) -> BurrowStatus:
    """Return the status of a group: OK, WARN or ERR."""
    if verdict.severity is Severity.ERROR:
        return BurrowStatus.ERR
    return BurrowStatus.WARN if verdict.severity is Severity.WARNING else BurrowStatus.OK
