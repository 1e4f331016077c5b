"""Missing transactions: where a history begins, and where the logs have a gap."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class GapReason(StrEnum):
    """Why transactions are missing.

    - purged: older logs were deleted, as ZooKeeper does it after a while
    - missing: a log is missing, or the server was not there: it gets no log of what it has missed
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

    - `after`, `before`: the transactions around the gap: the last one before it, and the first one after it. `after` is
      0 at the beginning of the logs, and `before` is None if none follows.
    - `before_ms`: the time of the first one after it.
    - `complete_from`: after this transaction, no owner and no instance is unknown because of the gap.
    - `text`: an explanation that names the file.
    """

    reason: GapReason
    after: int
    before: int | None
    before_ms: int | None
    complete_from: int
    text: str
