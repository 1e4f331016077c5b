"""The value of a committed offset, as clients commit and fetch it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommittedValue:
    """A committed offset of one partition.

    - `offset`: the next message to read.
    - `metadata`: a free text of the client.
    - `leader_epoch`: the epoch of the partition's leader, if the client committed it.
    - `committed_at`: when it was committed, in seconds. The coordinator sets it.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    committed_at: float | None = None
