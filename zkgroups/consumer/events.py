"""The events and statistics of a member, for logging and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..core.znodes.topic_partition import TopicPartition

Partitions = frozenset[TopicPartition]


class EventKind(StrEnum):
    """The kind of an event.

    joined      the member is registered
    assigned    it received partitions
    revoked     it must release partitions; its workers have stopped, and it still holds them
    lost        it no longer holds partitions: the session expired, or somebody took them away
    waiting     another instance still holds partitions that this member should have; `detail` names it
    stuck       the member has been waiting for longer than `rebalance_timeout`
    conflict    another instance claimed partitions first; the member waits for them
    committed   offsets were committed
    missing     a topic does not exist; the member waits for it
    foreign     the group has members of other clients, which may use another strategy
    malformed   a node of the group is unreadable; the member ignores it
    back        committed offsets are lower than this member knew them, or gone: somebody moved them, or ZooKeeper was
                restored from a backup; `detail` names them. The member starts at the lower offsets
    differ      the committed offsets in ZooKeeper and on the brokers differ; `detail` has both numbers. Or other
                members of the group commit theirs elsewhere; `detail` names them
    reset       a committed offset was outside of the log; `detail` has it and the start that `out_of_range` chose
    idle        no progress for longer than `max_idle`; the member releases everything
    failed      a step failed and will be retried
    moved       the group is in another place now, in ZooKeeper or on the brokers. A `Consumer` joins it there. A
                `Member` stays out until the group is back; `detail` says whether it was moved, or is being moved
    left        the member has left the group
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
    BACK = "back"
    DIFFER = "differ"
    RESET = "reset"
    IDLE = "idle"
    FAILED = "failed"
    MOVED = "moved"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """One event of a member, for `on_event`.

    - `kind`: the kind of the event.
    - `at`: the partitions that it concerns; empty if it concerns none.
    - `number`: the number of the plan in force, as `Generation.number`.
    - `detail`: details as text, for people.
    """

    kind: EventKind
    at: Partitions = frozenset()
    number: int = 0
    detail: str = ""


@dataclass(slots=True)
class MemberStats:
    """Totals since the member was created.

    - `looks`: reads of the group.
    - `rebalances`: rounds in which partitions were claimed.
    - `generations`: generations that have begun.
    - `interruptions`: generations that have ended, for any reason.
    - `gained`: partitions claimed.
    - `lost`: partitions released or lost.
    - `conflicts`: partitions that another instance claimed first.
    - `waits`: partitions that another instance still held when the member wanted them.
    - `commits`: offsets committed.
    - `failures`: steps that failed and were retried.
    - `last_rebalance`: seconds from the report of a change until the next generation began.
    """

    looks: int = 0
    rebalances: int = 0
    generations: int = 0
    interruptions: int = 0
    gained: int = 0
    lost: int = 0
    conflicts: int = 0
    waits: int = 0
    commits: int = 0
    failures: int = 0
    last_rebalance: float = 0.0
