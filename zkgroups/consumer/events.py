"""What a member tells of itself, for logging and metrics: events as they happen, and totals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..core.model import TopicPartition

Partitions = frozenset[TopicPartition]


class EventKind(StrEnum):
    """What has happened to a member."""

    JOINED = "joined"
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"
    WAITING = "waiting"
    """Somebody else still holds what this member is to have."""
    STUCK = "stuck"
    """The same for longer than `rebalance_timeout`; `detail` says who holds it, and since when."""
    CONFLICT = "conflict"
    """Somebody was quicker to claim; it is waited for."""
    COMMITTED = "committed"
    FOREIGN = "foreign"
    """Members of other clients are there, that do not plan as this one does, or not quite."""
    MALFORMED = "malformed"
    """Something in the group cannot be read, and is set aside."""
    IDLE = "idle"
    """Nothing was marked for longer than `max_idle`: everything is given up."""
    FAILED = "failed"
    """Something did not work, and will be tried again."""
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """One event: the partitions it is about, the number of the plan followed at that time, and more in words."""

    kind: EventKind
    at: Partitions = frozenset()
    number: int = 0
    detail: str = ""


@dataclass(slots=True)
class MemberStats:
    """Totals since the member was made."""

    looks: int = 0
    """How often the group was read."""
    rebalances: int = 0
    """How often that led to something being claimed or released."""
    generations: int = 0
    interruptions: int = 0
    """How often a generation was stopped, or lost."""
    gained: int = 0
    """Partitions claimed."""
    lost: int = 0
    """Partitions released, or lost."""
    conflicts: int = 0
    """Partitions that somebody else was quicker to claim."""
    waits: int = 0
    """Partitions that had to be waited for."""
    commits: int = 0
    """Offsets committed."""
    failures: int = 0
    """Steps that had to be tried again."""
    last_rebalance: float = 0.0
    """In seconds, from hearing of a change until the partitions were worked on."""
