"""Offsets and groups that are no longer used are deleted.

Offsets are deleted after the retention time, by Kafka's rules:

- A group without members loses all its offsets. The time counts from the commit, or from the moment when the last
  member left, if that is later.
- A stable group loses the offsets of topics to which no member subscribes.
- A group that rebalances loses no offsets.
"""

from __future__ import annotations

from ..actions import Incident
from ..deadlines import DeadlineKind
from ..group.group import Group, GroupState
from ..storage.work import ExpireOffsets, OffsetsExpired


def schedule_cleanup(group: Group) -> None:
    """Set the time of the next check: after the interval, or earlier if the group is due to be removed earlier."""
    delay = group.config.cleanup_interval
    if group.state is GroupState.EMPTY:
        until_timeout = group.since + group.config.empty_group_timeout - group.outbox.time
        delay = min(delay, until_timeout) if until_timeout > 0 else delay
    group.set_deadline(DeadlineKind.CLEANUP, delay)


def expired_offsets(group: Group) -> ExpireOffsets:
    """Return the work that deletes the offsets whose retention time has elapsed, and counts the others."""
    retention = group.config.offset_retention
    limit = None if retention is None else group.outbox.time - retention
    keep: frozenset[str] = frozenset()
    match group.state:
        case GroupState.EMPTY:
            if limit is not None and group.protocol_type and group.since > limit:
                limit = None
        case GroupState.STABLE:
            limit, keep = (None, keep) if group.topics is None else (limit, group.topics)
        case _:
            limit = None
    return ExpireOffsets(group.name, limit, keep)


def is_unused(group: Group, expired: OffsetsExpired) -> bool:
    """True if the group has no offsets, and had no members for so long that it must be removed."""
    empty_for = group.outbox.time - group.since
    return (
        group.state is GroupState.EMPTY
        and not group.members.pending_ids
        and not expired.remaining
        and empty_for >= group.config.empty_group_timeout
    )


def report_expiry(group: Group) -> None:
    group.outbox.report(Incident.GROUP_EXPIRED, group.name)
