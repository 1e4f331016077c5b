"""`zkgroups watch`: print the changes in groups as they happen."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Final

import click

from zkgroups import (
    Change,
    ChangeKind,
    CommittedOffset,
    Consumergroup,
    Dialect,
    ForbiddenNode,
    Owner,
    RegisteredInstance,
    Registration,
    Registry,
    Watched,
)
from zkgroups.core.session_lifetime import session_hex
from zkgroups.core.times import to_ms, utc_exactly
from zkgroups.core.znodes.paths import join
from zkgroups.core.znodes.topic_partition import parse_partition
from zkgroups.deadline import Deadline
from zkgroups.exceptions import GroupNotFoundError, NoPermissionError
from zkgroups.zookeeper.watch import GroupChanges, Value

from .claim.claim import CONNECTED, LOST, ConnectionState
from .shared.arguments import matching_option, maybe_groups_argument
from .shared.connect import connected
from .shared.errors import Tally
from .shared.global_options import Command
from .shared.messages import say
from .shared.options import ExitCode, Format, Options
from .shared.output import Column, Output, Row, Table, wait_while_read
from .shared.parameter_types import Duration
from .shared.signals import Terminated, raise_recorded, recorded_signals

# The events of `zkgroups watch`: the row of a change, and its line in a table.


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


# Watch several groups at once.


_NEW_GROUPS_EVERY: Final = 2.0
"""The interval between two looks for new groups, in seconds."""

_LEVELS: Final = 5
"""How many slashes the path of an owner or an offset has. Only a forbidden topic is reported by the path above it."""

_PACE: Final = 0.05
"""The longest delay of a change of one kind by waiting for another kind, in seconds."""


class _Watches:
    """The watches of one group."""

    def __init__(self, group: Consumergroup, stack: ExitStack, *, everything: bool) -> None:
        self.name = group.name
        self.watches = {what: stack.enter_context(group.watch(what)) for what in Watched}
        self.to_begin = set(Watched)
        """The watches that have not read their existing nodes."""
        self.forbidden: dict[Watched, Deadline] = {}
        """The watches without permission, and when to try each again."""
        self._old = {} if everything else _existing_nodes(group)

    def row(self, what: Watched, change: Change) -> Row | None:
        """Return the row of a change, or None if the node existed at the start, and for the directory of a topic."""
        before = self._old.pop(change.path, None)
        if change.before is None and before is not None:
            change = replace(change, before=before)
        is_topic = what is not Watched.MEMBERS and change.path.count("/") < _LEVELS
        return event_row(self.name, what, change) if change.now != change.before and not is_topic else None


class WatchedGroups:
    """All watched groups."""

    def __init__(self, options: Options, registry: Registry, stack: ExitStack, *, everything: bool) -> None:
        self._options = options
        self._registry = registry
        self._stack = stack
        self._everything = everything
        self._groups: dict[str, _Watches] = {}
        self._is_wanted: Callable[[str], object] | None = None
        self._changes: GroupChanges | None = None
        self.tally = Tally()

    @property
    def is_single(self) -> bool:
        """True if only one group will ever be watched."""
        return self._is_wanted is None and len(self._groups) == 1

    def add(self, names: Iterable[str], *, must_exist: bool = False, everything: bool | None = None) -> None:
        """Watch these groups, too."""
        for name in names:
            group = self._registry.group(name)
            if must_exist and not group.exists():
                raise GroupNotFoundError(name)
            if name not in self._groups:
                shown = self._everything if everything is None else everything
                self._groups[name] = _Watches(group, self._stack, everything=shown)

    def follow(self, matching: re.Pattern[str] | None) -> None:
        """Watch all groups that match, now and later: by one watch, if the server supports that."""
        self._changes = self._registry.group_changes()
        self._changes.begin()
        self._is_wanted = (lambda _name: True) if matching is None else matching.fullmatch
        self.add(filter(self._is_wanted, self._registry.groups()))

    def events(self, deadline: Deadline) -> Iterator[Row]:
        """Yield the rows of all changes, of all watches in turn, so that a busy one does not delay the others."""
        busy, begun, looked_at = True, False, time.monotonic()
        with ConnectionState(self._registry) as connection:
            while not deadline.passed:
                wait_while_read(0.0)
                if not begun and not any(group.to_begin for group in self._groups.values()):
                    begun = True
                    say(self._options, f"Watching {self._names}. Ctrl-C ends.")
                if _report_connection(self._options, connection):
                    for group in self._groups.values():
                        group.to_begin = set(Watched)
                due = time.monotonic() >= looked_at + _NEW_GROUPS_EVERY
                if self._is_wanted is not None and (due or self._has_new_group()):
                    looked_at = time.monotonic()
                    self.add(filter(self._is_wanted, self._registry.groups()), everything=True)
                some = self._next(0.0 if busy else min(_PACE, deadline.remaining))
                busy = bool(some)
                for group, what, change in some:
                    if change.kind is ChangeKind.RESCANNED:
                        self._note_scan(group, what, change)
                        continue
                    if isinstance(bad := getattr(change.now, "registration", change.now), ForbiddenNode):
                        self.tally.failed(NoPermissionError(bad.path))
                    if (row := group.row(what, change)) is not None:
                        yield row

    @property
    def _names(self) -> str:
        return (
            next(iter(self._groups))
            if self.is_single
            else f"{len(self._groups)} group{'' if len(self._groups) == 1 else 's'}"
        )

    def _has_new_group(self) -> bool:
        """Return True if the watch on all groups has reported a group that is not watched yet."""
        changed = self._changes.wait(0.0).groups if self._changes is not None else ()
        return any(self._is_wanted and self._is_wanted(name) for name in changed if name not in self._groups)

    def _note_scan(self, group: _Watches, what: Watched, change: Change) -> None:
        if group.forbidden.pop(what, None) is not None:
            say(self._options, f"{change.path} is no longer forbidden")
        elif what in group.to_begin:
            group.to_begin.remove(what)
        else:
            say(self._options, f"{change.path} was read again: {change.reason}")

    def _next(self, pause: float) -> list[tuple[_Watches, Watched, Change]]:
        """Return at most one change of each watch. Wait only for the first one."""
        some: list[tuple[_Watches, Watched, Change]] = []
        with recorded_signals() as recorded:
            for group in self._groups.values():
                for what, watched in group.watches.items():
                    if what in group.forbidden and not group.forbidden[what].passed:
                        continue
                    try:
                        change = watched.next(timeout=pause)
                    except NoPermissionError as error:
                        self._forbid(group, what, error)
                        change = None
                    if change is not None:
                        some.append((group, what, change))
                    pause = 0.0
            time.sleep(pause)  # if there is nothing to watch
        raise_recorded(recorded)
        return some

    def _forbid(self, group: _Watches, what: Watched, error: NoPermissionError) -> None:
        """Try this watch again later. Raise the error if only named groups are watched, and all are forbidden."""
        group.to_begin.discard(what)
        group.forbidden[what] = Deadline(_NEW_GROUPS_EVERY)
        if self._is_wanted is None and all(len(each.forbidden) == len(Watched) for each in self._groups.values()):
            raise error
        self.tally.failed(error)


def _existing_nodes(group: Consumergroup) -> dict[str, Value]:
    """Return the members, owners and offsets by path. Forbidden members are left out."""
    paths = group.paths
    found: dict[str, Value] = {}
    with suppress(NoPermissionError):
        found |= {join(paths.ids, instance.id): instance for instance in group.instances()}
    found |= {owner.path: owner for owner in group.owners()}
    for offset in group.offsets:
        found[paths.offset(offset.at) if isinstance(offset, CommittedOffset) else offset.path] = offset
    return found


def _report_connection(options: Options, connection: ConnectionState) -> bool:
    """Report changes of the connection. Return True if it was lost; then all watches read everything again."""
    states = list(connection.changes())
    for state in states:
        if state == CONNECTED:
            say(options, "reconnected")
        else:
            say(options, "session expired" if state == LOST else "connection lost")
    return any(state != CONNECTED for state in states)


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@click.option("--for", "seconds", type=Duration(), help="End after this time; by default at Ctrl-C.")
@click.option("--all", "everything", is_flag=True, help="First print the existing members, owners and offsets.")
@click.pass_obj
def watch(
    options: Options,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    seconds: float | None,
    everything: bool,
) -> None:
    """Print the changes in groups as they happen: members, claims and commits.

    The command watches the named groups, or all groups. New groups that match --groups are watched, too.

    The events are join, leave, subscribe (a changed subscription), claim, release, commit, and forget (a deleted
    offset). Times come from the server's clock, and the times of deletions from the clock of this machine. After a
    lost connection, the command reconnects and prints the changes since then. It prints several changes of one node as
    one event.

    A node that your user may not read is reported once on stderr, and shown as soon as permissions allow. The exit
    code is then 9. If all named groups are forbidden, the command ends.

    \b
    Example:
      zkgroups -z zk1:2181/kafka watch billing
      zkgroups -z zk1:2181/kafka watch --groups 'bill.*'
      zkgroups -z zk1:2181/kafka watch billing --all -o jsonl
    """
    output = Output(options)
    with connected(options) as registry, ExitStack() as stack:
        deadline = Deadline(math.inf if seconds is None else seconds)
        groups = WatchedGroups(options, registry, stack, everything=everything)
        groups.add(names, must_exist=True)
        if matching is not None or not names:
            groups.follow(matching)
        events = groups.events(deadline)
        if output.format in {Format.TABLE, Format.WIDE}:
            if not options.no_headers:
                output.line(HEADER)
            for row in events:
                output.line(event_line(row, with_group=(not groups.is_single)))
        elif output.format in {Format.JSON, Format.YAML}:
            _write_all(output, events)
        else:
            output.write(EVENTS, events)
        if not groups.tally.all_done:
            raise click.exceptions.Exit(ExitCode.PARTIAL)


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
