"""`zkgroups watch`: print the changes in a group as they happen."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import click

from zkgroups import (
    Change,
    ChangeKind,
    CommittedOffset,
    Consumergroup,
    Owner,
    RegisteredInstance,
    Registration,
    Registry,
    Watch,
    Watched,
)
from zkgroups.core.times import to_ms, utc
from zkgroups.core.znodes.names import parse_partition
from zkgroups.core.znodes.paths import join
from zkgroups.core.znodes.session_ids import session_hex
from zkgroups.deadline import Deadline
from zkgroups.exceptions import GroupNotFoundError
from zkgroups.zookeeper.watch_changes import Value

from .claim.connection_state import CONNECTED, LOST, ConnectionState
from .shared.arguments import group_argument
from .shared.command_classes import Command
from .shared.connect import connected
from .shared.durations import seconds_option
from .shared.messages import say
from .shared.options import Format, Options
from .shared.output import Column, Output, Row, Table, wait_while_read
from .shared.signals import Terminated, raise_recorded, recorded_signals

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

_PACE: Final = 0.05
"""The longest delay of a change of one kind by waiting for another kind, in seconds."""


@click.command(cls=Command)
@group_argument
@seconds_option("--for", "seconds", help="End after this time; by default at Ctrl-C.")
@click.option("--all", "everything", is_flag=True, help="First print the existing members, owners and offsets.")
@click.pass_obj
def watch(options: Options, group: str, seconds: float | None, everything: bool) -> None:
    """Print the changes in a group as they happen: members, claims and commits.

    The events are join, leave, subscribe (a changed subscription), claim, release, commit, and forget (a deleted
    offset). Times come from the server's clock, and the times of deletions from the clock of this machine. After a
    lost connection, the command reconnects and prints the changes since then. It prints several changes of one node as
    one event.

    \b
    Example:
      zkgroups -z zk1:2181/kafka watch billing
      zkgroups -z zk1:2181/kafka watch billing --all -o jsonl
    """
    output = Output(options)
    with connected(options) as registry:
        found = registry.group(group)
        if not found.exists():
            raise GroupNotFoundError(group)
        deadline = Deadline(math.inf if seconds is None else seconds)
        events = _events(options, registry, found, deadline, everything=everything)
        if output.format in {Format.TABLE, Format.WIDE}:
            _write_lines(options, output, events)
        elif output.format in {Format.JSON, Format.YAML}:
            _write_all(output, events)
        else:
            output.write(EVENTS, events)


def _events(
    options: Options, registry: Registry, group: Consumergroup, deadline: Deadline, *, everything: bool
) -> Iterator[Row]:
    """Yield all changes. Without `everything`, skip the nodes that existed at the start."""
    old = {} if everything else _existing_nodes(group)
    for what, change in _changes(options, registry, group, deadline):
        before = old.pop(change.path, None)
        if change.before is None and before is not None:
            change = replace(change, before=before)
        if change.now != change.before:
            yield _row(group.name, what, change)


def _existing_nodes(group: Consumergroup) -> dict[str, Value]:
    """Return the members, owners and offsets by path."""
    paths = group.paths
    found: dict[str, Value] = {join(paths.ids, instance.id): instance for instance in group.instances()}
    found |= {owner.path: owner for owner in group.owners()}
    for offset in group.offsets:
        found[paths.offset(offset.at) if isinstance(offset, CommittedOffset) else offset.path] = offset
    return found


def _changes(
    options: Options, registry: Registry, group: Consumergroup, deadline: Deadline
) -> Iterator[tuple[Watched, Change]]:
    """Yield the changes of three watches in turn, so that a busy one does not delay the others."""
    with ConnectionState(registry) as connection, ExitStack() as stack:
        watches = {what: stack.enter_context(group.watch(what)) for what in Watched}
        to_begin = set(Watched)
        busy, begun = True, False
        while not deadline.passed:
            wait_while_read(0.0)
            if not to_begin and not begun:
                begun = True
                say(options, f"Watching {group.name}. Ctrl-C ends.")
            if _report_connection(options, connection):
                to_begin = set(Watched)
            some = _next(watches, 0.0 if busy else min(_PACE, deadline.remaining))
            busy = bool(some)
            for what, change in some:
                if change.kind is not ChangeKind.RESCANNED:
                    yield what, change
                elif what in to_begin:
                    to_begin.remove(what)
                else:
                    say(options, f"{change.path} was read again: {change.reason}")


def _next(watches: Mapping[Watched, Watch], pause: float) -> list[tuple[Watched, Change]]:
    """Return at most one change of each watch. Wait only for the first one."""
    some: list[tuple[Watched, Change]] = []
    with recorded_signals() as recorded:
        for what, watched in watches.items():
            if (change := watched.next(timeout=pause)) is not None:
                some.append((what, change))
            pause = 0.0
    raise_recorded(recorded)
    return some


def _report_connection(options: Options, connection: ConnectionState) -> bool:
    """Report changes of the connection. Return True if it was lost; then all watches read everything again."""
    states = list(connection.changes())
    for state in states:
        if state == CONNECTED:
            say(options, "reconnected")
        else:
            say(options, "session expired" if state == LOST else "connection lost")
    return any(state != CONNECTED for state in states)


# Rows


def _row(group: str, what: Watched, change: Change) -> Row:
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
    """Return the subscription of an instance, or the reason why a node cannot be read."""
    if isinstance(value, RegisteredInstance):
        return _detail(value.registration)
    if isinstance(value, Registration):
        streams = ", ".join(f"{name} x{number}" for name, number in value.streams.items())
        return f"{value.pattern.value} {streams}".rstrip()
    reason: str | None = getattr(value, "reason", None)
    return reason


# Writing


def _write_lines(options: Options, output: Output, events: Iterator[Row]) -> None:
    """Write each event at once. A table would need all of them for the widths of its columns."""
    if not options.no_headers:
        output.line(_line("TIME", "EVENT", "WHERE", "DETAIL"))
    for row in events:
        output.line(_line(utc(row["time_ms"]), row["event"], _where(row), _what(row)))


def _line(time: str, event: str, where: str, what: str) -> str:
    return f"{time:<20}  {event:<9}  {where:<24}  {what}".rstrip()


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


def _write_all(output: Output, events: Iterator[Row]) -> None:
    """Write one document at the end, also after Ctrl-C."""
    ended: list[BaseException] = []

    def until_the_end() -> Iterator[Row]:
        try:
            yield from events
        except (KeyboardInterrupt, Terminated) as end:
            ended.append(end)

    output.write(EVENTS, until_the_end())
    if ended:
        raise ended[0]
