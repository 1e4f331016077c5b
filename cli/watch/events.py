"""The events of `zkgroups watch`: the row of a change, and its line in a table."""

from __future__ import annotations

import time
from typing import Final

from zkgroups import (
    Change,
    ChangeKind,
    CommittedOffset,
    Dialect,
    Owner,
    RegisteredInstance,
    Registration,
    Watched,
)
from zkgroups.core.times import to_ms, utc_exactly
from zkgroups.core.znodes.names import parse_partition
from zkgroups.core.znodes.session_ids import session_hex

from ..shared.output import Column, Row, Table

EVENTS: Final = Table(
    "events",
    key="path",
    columns=(
        Column("TIME", "time_ms"),
        Column("EVENT", "event"),
        Column("GROUP", "group"),
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition"),
        Column("INSTANCE", "instance"),
        Column("SESSION", "session"),
        Column("OFFSET", "offset"),
        Column("BEFORE", "before"),
        Column("DETAIL", "detail"),
        Column("PATH", "path"),
    ),
)

_NAMES: Final = {
    (Watched.MEMBERS, ChangeKind.APPEARED): "join",
    (Watched.MEMBERS, ChangeKind.CHANGED): "subscribe",
    (Watched.MEMBERS, ChangeKind.VANISHED): "leave",
    (Watched.OWNERS, ChangeKind.APPEARED): "claim",
    (Watched.OWNERS, ChangeKind.CHANGED): "claim",
    (Watched.OWNERS, ChangeKind.VANISHED): "release",
    (Watched.OFFSETS, ChangeKind.APPEARED): "commit",
    (Watched.OFFSETS, ChangeKind.CHANGED): "commit",
    (Watched.OFFSETS, ChangeKind.VANISHED): "forget",
}


def event_row(group: str, what: Watched, change: Change) -> Row:
    value = change.now if change.now is not None else change.before
    topic, name = change.path.rsplit("/", 2)[1:] if what is not Watched.MEMBERS else (None, "")
    at = getattr(value, "at", None)
    return {
        "time_ms": _time_ms(change),
        "event": _NAMES[what, change.kind],
        "group": group,
        "topic": at.topic if at else topic,
        "partition": at.partition if at else parse_partition(name),
        "instance": value.id if isinstance(value, RegisteredInstance | Owner) else None,
        "session": session_hex(session) if (session := getattr(value, "session", 0)) else None,
        "offset": change.now.offset if isinstance(change.now, CommittedOffset) else None,
        "before": change.before.offset if isinstance(change.before, CommittedOffset) else None,
        "detail": _detail(value),
        "path": change.path,
    }


def _time_ms(change: Change) -> int:
    """Return the time in the node, or else the current time."""
    appeared = change.kind is ChangeKind.APPEARED
    match change.now:
        case CommittedOffset(committed_at=committed):
            return to_ms(committed)
        case RegisteredInstance(registered_at=registered) if appeared and registered:
            return to_ms(registered)
        case Owner(claimed_at=claimed) if appeared:
            return to_ms(claimed)
    return int(time.time() * 1000)


def _detail(value: object) -> str | None:
    """Return the subscription of an instance and the client of a gateway, or the reason why a node cannot be read."""
    if isinstance(value, RegisteredInstance):
        return _detail(value.registration)
    if isinstance(value, Registration):
        streams = ", ".join(f"{name} x{number}" for name, number in value.streams.items())
        client = f", {value.client_id} at {value.client_host}" if value.dialect is Dialect.GATEWAY else ""
        return f"{value.pattern.value} {streams}".rstrip() + client
    reason: str | None = getattr(value, "reason", None)
    return reason


def event_line(row: Row, *, with_group: bool) -> str:
    """Format an event for a table whose widths are known before all of its rows."""
    where = f"{row['group']} {_where(row)}" if with_group else _where(row)
    return _line(utc_exactly(row["time_ms"]), row["event"], where, _what(row))


def _line(time: str, event: str, where: str, what: str) -> str:
    return f"{time:<24}  {event:<9}  {where:<24}  {what}".rstrip()


def _where(row: Row) -> str:
    """Return the partition of an event, or the instance, or the path."""
    if row["partition"] is not None:
        return f"{row['topic']}/{row['partition']}"
    return str(row["instance"] or row["path"])


def _what(row: Row) -> str:
    if row["detail"] is not None:
        return str(row["detail"])
    if row["instance"] is not None:
        return f"{row['instance']} {row['session']}"
    if row["offset"] is None:
        return f"was {_number(row['before'])}"
    return f"{row['offset']}" if row["before"] is None else f"{row['before']} -> {row['offset']}"


def _number(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


HEADER: Final = _line("TIME", "EVENT", "WHERE", "DETAIL")
