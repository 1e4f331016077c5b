"""Read groups, and convert their descriptions and lags to the rows of `description_tables.py`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from zkgroups import (
    BlockedPartition,
    ForbiddenNode,
    GroupDescription,
    GroupState,
    InstanceDescription,
    MalformedNode,
    Owner,
    Registration,
    Registry,
    TopicPartition,
    UnevaluableRegistration,
    UnreadableNode,
)
from zkgroups.core.layouts.layout import Layout
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.offsets.lag import GroupLag, LagNote, LogRanges, PartitionLag, group_lag
from zkgroups.core.times import to_ms
from zkgroups.core.znodes.migration_mark import Mark
from zkgroups.core.znodes.session_ids import session_hex
from zkgroups.exceptions import GroupNotFoundError, NoPermissionError

from ..shared.errors_to_exit_codes import Tally
from ..shared.output import Row


def describe_groups(
    registry: Registry, names: Iterable[str], tally: Tally, *, must_exist: Collection[str], layout: Layout = LEGACY
) -> Iterator[GroupDescription]:
    """Yield the existing groups while they are read. Report forbidden nodes, and missing groups in `must_exist`."""
    for found in registry.describe(names, layout=layout):
        with tally.attempt():
            if found.state is not GroupState.DEAD:
                yield found
            elif found.group in must_exist:
                raise GroupNotFoundError(found.group)
            if forbidden := forbidden_nodes(found):
                raise NoPermissionError(forbidden[0].path)


def forbidden_nodes(group: GroupDescription) -> list[ForbiddenNode]:
    """Return the nodes of the group that this client has no permission to read."""
    return [node for node in group.unreadable if isinstance(node, ForbiddenNode)]


def summary_row(group: GroupDescription) -> dict[str, Any]:
    """Return the summary of a group. If it has forbidden nodes, its state and totals are unknown."""
    known = not forbidden_nodes(group)
    totals = {
        "members": group.members,
        "topics": len(group.topics),
        "partitions": len(group.partitions),
        "owned": group.owned,
        "offsets": group.offsets,
    }
    return {
        "group": group.group,
        "state": group.state.value if known else None,
        "totals": totals if known else dict.fromkeys(totals),
        "last_commit_ms": to_ms(group.last_commit_at) or None if known else None,
        "unevaluable": list(group.unevaluable),
    }


def description_row(group: GroupDescription, logs: LogRanges | None = None) -> Row:
    """Return the full description of a group. Without `logs`, its lag is unknown."""
    notes = _notes(group)
    lags = group_lag(group, group.partitions, logs or {}).partitions
    return summary_row(group) | {
        "topics": list(group.topics),
        "instances": [instance_row(instance) for instance in group.instances],
        "partitions": [
            _at(each.partition.at)
            | _lag_row(each)
            | {"note": _joined(notes.get(each.partition.at), _log_note(each) if logs is not None else None)}
            for each in lags
        ],
        "orphans": [_at(orphan.at) | _owner_row(orphan) for orphan in group.orphans],
        "unowned": [_at(at) for at in group.unowned],
        "blocked": [_blocked_row(blocked) for blocked in group.blocked],
        "migration": [_migration_row(group.mark)] if isinstance(group.mark, Mark) else [],
        "malformed": [_unreadable_row(node) for node in _unreadable(group)],
    }


def lag_row(group: str, lag: PartitionLag) -> Row:
    """Return the lag of a group in one partition."""
    return {"group": group} | _at(lag.partition.at) | _lag_row(lag) | {"note": lag.note and lag.note.value}


def total_lag_row(group: GroupLag) -> Row:
    """Return the lag of a group as one row."""
    return {
        "group": group.group,
        "partitions": len(group.partitions),
        "total_lag": group.total,
        "max_lag": group.most,
        "unknown": group.unknown,
        "last_commit_ms": max(
            (to_ms(each.partition.offset.committed_at) for each in group.partitions if each.partition.offset), default=0
        )
        or None,
    }


def _commit_times(group: GroupLag) -> Iterator[int]:
    for each in group.partitions:
        if each.partition.offset is not None:
            yield to_ms(each.partition.offset.committed_at)


def instance_row(instance: InstanceDescription) -> Row:
    found = instance.registration
    registration, note = found if isinstance(found, Registration) else None, {}
    if isinstance(found, UnevaluableRegistration):
        registration, note = found.registration, {"unevaluable": found.reason}
    streams = registration and {"pattern": registration.pattern.value, "streams": dict(registration.streams)}
    return {
        "instance": instance.id,
        "state": instance.state.value,
        "owned": len(instance.owned),
        "subscription": streams and streams | note,
        "dialect": registration and registration.dialect.value,
        "client_id": (registration and registration.client_id) or None,
        "client_host": (registration and registration.client_host) or None,
        "session": _session(instance.session),
        "registered_ms": to_ms(instance.registered_at) or None,
    }


def _lag_row(lag: PartitionLag) -> dict[str, Any]:
    offset = lag.partition.offset
    return {
        "offset": offset and offset.offset,
        "log_start": lag.log and lag.log.start,
        "log_end": lag.log and lag.log.end,
        "lag": lag.lag,
        "committed_ms": offset and to_ms(offset.committed_at),
        "owners": [_owner_row(owner) for owner in lag.partition.owners],
    }


def _log_note(lag: PartitionLag) -> str | None:
    """Return the note about the lag. A partition without a commit needs none: its OFFSET is empty."""
    return None if lag.note is None or lag.note is LagNote.NEVER_COMMITTED else lag.note.value


def _joined(*notes: str | None) -> str | None:
    return ", ".join(note for note in notes if note) or None


def _notes(group: GroupDescription) -> dict[TopicPartition, str]:
    """Return the problem of each partition. Of several, the last one added below is shown."""
    orphans = [(orphan.at, "orphan") for orphan in group.orphans]
    two = [(partition.at, "two owners") for partition in group.partitions if len(partition.owners) > 1]
    blocked = [(blocked.at, "blocked") for blocked in group.blocked]
    return dict([*((at, "unowned") for at in group.unowned), *blocked, *orphans, *two])


def _owner_row(owner: Owner) -> dict[str, Any]:
    return {"id": owner.id, "session": _session(owner.session), "claimed_ms": to_ms(owner.claimed_at)}


def _blocked_row(blocked: BlockedPartition) -> dict[str, Any]:
    holder = blocked.holder
    return _at(blocked.at) | {
        "holder": holder.id if isinstance(holder, Owner) else holder.shown,
        "session": _session(holder.session),
        "claimed_ms": to_ms(blocked.since) or None,
        "obstacle": blocked.obstacle.value,
    }


def _migration_row(mark: Mark) -> Row:
    return {"target": mark.target, "state": mark.state.value, "plan": mark.plan, "since_ms": to_ms(mark.since)}


def _unreadable(group: GroupDescription) -> list[UnreadableNode]:
    """Return the unreadable nodes. A mark of a migration is one of them: even unreadable, it keeps members out."""
    return [*group.unreadable, *([group.mark] if isinstance(group.mark, UnreadableNode) else [])]


def _unreadable_row(node: UnreadableNode) -> Row:
    data = node.data if isinstance(node, MalformedNode) else None
    return {
        "path": node.path,
        "reason": node.reason,
        "data": None if data is None else node.shown,
        "data_base64": None if data is None else b64encode(data).decode(),
    }


def _at(at: TopicPartition) -> dict[str, Any]:
    return {"topic": at.topic, "partition": at.partition}


def _session(session: int) -> str | None:
    """Format a session as ZooKeeper does, in hexadecimal. JSON numbers would lose its last digits."""
    return session_hex(session) if session else None
