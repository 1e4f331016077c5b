"""What a member tells of itself, for logging and metrics: events as they happen, and totals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..core.znodes.topic_partition import TopicPartition

Partitions = frozenset[TopicPartition]


class EventKind(StrEnum):
    """What has happened to a member.

    joined      it is registered
    assigned    partitions have come
    revoked     partitions must go, and were still its own when its workers had ended
    lost        partitions are not its own any more: the session has ended, or somebody has taken them away
    waiting     somebody else still holds what it is to have; `detail` says who
    stuck       the same for longer than `rebalance_timeout`
    conflict    somebody was quicker to claim, and is waited for
    committed   offsets were committed
    missing     a topic is not there, and is waited for
    foreign     members of other clients are there, that may not plan as this one does
    malformed   something in the group cannot be read, and is set aside
    reset       an offset was outside of the log; `detail` has it, and the start that `out_of_range` chose
    idle        nothing was marked for longer than `max_idle`: everything is given up
    failed      something did not work, and will be tried again
    left        it takes part no more
    """

    JOINED = "joined"
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"
    WAITING = "waiting"
    STUCK = "stuck"
    CONFLICT = "conflict"
    COMMITTED = "committed"
    MISSING = "missing"
    FOREIGN = "foreign"
    MALFORMED = "malformed"
    RESET = "reset"
    IDLE = "idle"
    FAILED = "failed"
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
    """How often something was to be claimed."""
    generations: int = 0
    interruptions: int = 0
    """How often a generation has ended, for whatever reason."""
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
