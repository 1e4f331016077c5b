"""The value of a committed offset, as clients commit and fetch it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommittedValue:
    """The next message to read of one partition, with the fields that a client may store beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    committed_at: float | None = None
    """When the offset was committed, in seconds. The coordinator sets it."""
