"""Watch several groups at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from zkgroups import (
    Change,
    ChangeKind,
    CommittedOffset,
    Consumergroup,
    Registry,
    Watched,
)
from zkgroups.core.znodes.paths import join
from zkgroups.deadline import Deadline
from zkgroups.exceptions import GroupNotFoundError
from zkgroups.zookeeper.group_changes import GroupChanges
from zkgroups.zookeeper.watch_changes import Value

from ..claim.connection_state import CONNECTED, LOST, ConnectionState
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Row, wait_while_read
from ..shared.signals import raise_recorded, recorded_signals
from .events import event_row

_NEW_GROUPS_EVERY: Final = 2.0
"""The interval between two looks for new groups, in seconds."""

_PACE: Final = 0.05
"""The longest delay of a change of one kind by waiting for another kind, in seconds."""


class _Watches:
    """The watches of one group."""

    def __init__(self, group: Consumergroup, stack: ExitStack, *, everything: bool) -> None:
        self.name = group.name
        self.watches = {what: stack.enter_context(group.watch(what)) for what in Watched}
        self.to_begin = set(Watched)
        """The watches that have not read their existing nodes."""
        self._old = {} if everything else _existing_nodes(group)

    def row(self, what: Watched, change: Change) -> Row | None:
        """Return the row of a change. None if the node existed at the start."""
        before = self._old.pop(change.path, None)
        if change.before is None and before is not None:
            change = replace(change, before=before)
        return event_row(self.name, what, change) if change.now != change.before else None


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
                    elif (row := group.row(what, change)) is not None:
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
        if what in group.to_begin:
            group.to_begin.remove(what)
        else:
            say(self._options, f"{change.path} was read again: {change.reason}")

    def _next(self, pause: float) -> list[tuple[_Watches, Watched, Change]]:
        """Return at most one change of each watch. Wait only for the first one."""
        some: list[tuple[_Watches, Watched, Change]] = []
        with recorded_signals() as recorded:
            if not self._groups:
                time.sleep(pause)
            for group in self._groups.values():
                for what, watched in group.watches.items():
                    if (change := watched.next(timeout=pause)) is not None:
                        some.append((group, what, change))
                    pause = 0.0
        raise_recorded(recorded)
        return some


def _existing_nodes(group: Consumergroup) -> dict[str, Value]:
    """Return the members, owners and offsets by path."""
    paths = group.paths
    found: dict[str, Value] = {join(paths.ids, instance.id): instance for instance in group.instances()}
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
