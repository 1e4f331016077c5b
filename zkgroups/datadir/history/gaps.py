"""Missing transactions: where a history begins, and where the logs have a gap."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ...core.history.period import Period


class GapReason(StrEnum):
    """Why transactions are missing.

    - purged: older logs were deleted, as ZooKeeper does it after a while
    - missing: a log is missing, or the server was down: it gets no log of that time
    - damaged: a log cannot be read to its end
    - repeated: a log contains transactions that another one has had before, as after the restore of a backup; they are
      left out
    """

    PURGED = "purged"
    MISSING = "missing"
    DAMAGED = "damaged"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class LogGap:
    """Transactions that a history does not contain.

    - `reason`: why they are missing.
    - `after`, `after_ms`: the last transaction before the gap, and its time; 0 at the beginning of the logs.
    - `before`, `before_ms`: the first transaction after the gap, and its time; None if none follows.
    - `complete_from`: after this transaction, no owner and no instance is unknown because of the gap.
    - `text`: an explanation that names the file.
    """

    reason: GapReason
    after: int
    after_ms: int
    before: int | None
    before_ms: int | None
    complete_from: int
    text: str

    def concerns(self, period: Period) -> bool:
        """Return whether transactions of the period may be missing."""
        since, until = period.since, period.until
        if since is not None and self.before is not None and not since.is_before(self.before, self.before_ms or 0):
            return False
        return until is None or until.is_after(self.after, self.after_ms)
