"""`zkgroups watch`: what happens in a group, as it happens."""

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
from zkgroups.zookeeper.changes import Value

from .claim.connection_state import CONNECTED, LOST, Link
from .shared.arguments import group_argument
from .shared.command_classes import Command
from .shared.connect import connected
from .shared.durations import seconds_option
from .shared.messages import say
from .shared.options import Format, Options
from .shared.output import Column, Output, Row, Table, wait_while_read
from .shared.signals import Terminated, noted_signals, raise_noted

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
"""In seconds: how long a change of one kind may have to wait for those of another."""


@click.command(cls=Command)
@group_argument
@seconds_option("--for", "seconds", help="End after so long; without it, by Ctrl-C.")
@click.option("--all", "everything", is_flag=True, help="Begin with what is there already.")
@click.pass_obj
def watch(options: Options, group: str, seconds: float | None, everything: bool) -> None:
    """Follow a group: who joins and leaves, who claims and releases, and what is committed.

    The events are join, subscribe (to something else), leave, claim, release, commit, and forget, of an offset that was
    deleted. Their time is the server's, where it keeps one, and else that of this machine. After a loss of the
    connection it goes on, and tells what has changed meanwhile; what happened several times then shows as one event.

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
        patience = Deadline(math.inf if seconds is None else seconds)
        events = _events(options, registry, found, patience, everything=everything)
        if output.format in {Format.TABLE, Format.WIDE}:
            _write_lines(options, output, events)
        elif output.format in {Format.JSON, Format.YAML}:
            _write_all(output, events)
        else:
            output.write(EVENTS, events)


def _events(
    options: Options, registry: Registry, group: Consumergroup, patience: Deadline, *, everything: bool
) -> Iterator[Row]:
    """All changes, of which nothing is left out but, unless `everything` is wanted, what was there at the start."""
    old = {} if everything else _what_is_there(group)
    for what, change in _changes(options, registry, group, patience):
        before = old.pop(change.path, None)
        if change.before is None and before is not None:
            change = replace(change, before=before)
        if change.now != change.before:
            yield _row(group.name, what, change)


def _what_is_there(group: Consumergroup) -> dict[str, Value]:
    """By path."""
    paths = group.paths
    found: dict[str, Value] = {join(paths.ids, instance.id): instance for instance in group.instances()}
    found |= {owner.path: owner for owner in group.owners()}
    for offset in group.offsets:
        found[paths.offset(offset.at) if isinstance(offset, CommittedOffset) else offset.path] = offset
    return found


def _changes(
    options: Options, registry: Registry, group: Consumergroup, patience: Deadline
) -> Iterator[tuple[Watched, Change]]:
    """What three watches tell, one from each in turn, so that none has to wait for one that has much to tell."""
    with Link(registry) as link, ExitStack() as stack:
        watches = {what: stack.enter_context(group.watch(what)) for what in Watched}
        to_begin = set(Watched)
        busy, begun = True, False
        while not patience.passed:
            wait_while_read(0.0)
            if not to_begin and not begun:
                begun = True
                say(options, f"Watching {group.name}. Ctrl-C ends.")
            if _say_news(options, link):
                to_begin = set(Watched)
            some = _next(watches, 0.0 if busy else min(_PACE, patience.remaining))
            busy = bool(some)
            for what, change in some:
                if change.kind is not ChangeKind.RESCANNED:
                    yield what, change
                elif what in to_begin:
                    to_begin.remove(what)
                else:
                    say(options, f"{change.path} was looked at again: {change.reason}")


def _next(watches: Mapping[Watched, Watch], pause: float) -> list[tuple[Watched, Change]]:
    """At most one change from each; only the first is waited for."""
    some: list[tuple[Watched, Change]] = []
    with noted_signals() as noted:
        for what, watched in watches.items():
            if (change := watched.next(timeout=pause)) is not None:
                some.append((what, change))
            pause = 0.0
    raise_noted(noted)
    return some


def _say_news(options: Options, link: Link) -> bool:
    """Say what has become of the connection; True if it was lost, after which every watch begins anew."""
    states = list(link.news())
    for state in states:
        if state == CONNECTED:
            say(options, "connected again")
        else:
            say(options, "the session has ended" if state == LOST else "the connection is lost")
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
    """When it happened, as the server has it in the node, else when it was heard."""
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
    """What an instance subscribes to, or why a node cannot be read."""
    if isinstance(value, RegisteredInstance):
        return _detail(value.registration)
    if isinstance(value, Registration):
        streams = ", ".join(f"{name} x{number}" for name, number in value.streams.items())
        return f"{value.pattern.value} {streams}".rstrip()
    reason: str | None = getattr(value, "reason", None)
    return reason


# Writing


def _write_lines(options: Options, output: Output, events: Iterator[Row]) -> None:
    """A line for each event, at once: the columns of a table would have to know the last one."""
    if not options.no_headers:
        output.line(_line("TIME", "EVENT", "WHERE", "DETAIL"))
    for row in events:
        output.line(_line(utc(row["time_ms"]), row["event"], _where(row), _what(row)))


def _line(time: str, event: str, where: str, what: str) -> str:
    return f"{time:<20}  {event:<9}  {where:<24}  {what}".rstrip()


def _where(row: Row) -> str:
    """A partition where it is about one, else an instance; the path, where that is all there is."""
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
    """One document, which is written in the end, also where Ctrl-C is the end."""
    ended: list[BaseException] = []

    def until_the_end() -> Iterator[Row]:
        try:
            yield from events
        except (KeyboardInterrupt, Terminated) as end:
            ended.append(end)

    output.write(EVENTS, until_the_end())
    if ended:
        raise ended[0]
