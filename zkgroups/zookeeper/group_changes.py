"""Hear at once which groups have changed: members, owners, migrations or offsets, of all groups, by one watch."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Self

from ..core.znodes.paths import CONSUMERS, Part
from ..deadline import Deadline
from .requests.recursive_watch import RecursiveWatch
from .session.registry_context import RegistryContext

_BELOW: Final = CONSUMERS + "/"


@dataclass(frozen=True, slots=True)
class ChangedGroups:
    """The groups that have changed. With `everything`, changes may have been missed: every group may have changed."""

    groups: frozenset[str] = field(default_factory=frozenset)
    everything: bool = False

    def __bool__(self) -> bool:
        return bool(self.groups) or self.everything


class GroupChanges:
    """The groups that change, from now on. Make it with `registry.group_changes()`.

    >>> with registry.group_changes() as changes:  # doctest: +SKIP
    ...     while changes.begin():
    ...         for group in changes.wait(timeout=60).groups:
    ...             print(registry.group(group).describe().state)

    Servers support it since ZooKeeper 3.6. `ignored` parts of groups are not reported: commits change `offsets`
    thousands of times a second in a large cluster.
    """

    def __init__(self, context: RegistryContext, ignored: Collection[Part] = (Part.OFFSETS,)) -> None:
        self._context = context
        self._ignored = frozenset(ignored)
        self._watch = RecursiveWatch.of(context.session)
        self._changed = threading.Condition()
        self._groups: set[str] = set()  # guarded by _changed, as is _gap
        self._gap = False
        self._closed = False
        self._watch.add(self)

    def begin(self) -> bool:
        """Begin to watch, also after a lost connection. Return False if the server does not support it.

        The first result of `wait` then has `everything`.
        """
        return self._watch.begin(Deadline(self._context.timeout))

    @property
    def is_live(self) -> bool:
        """True if changes are reported now: the server supports it, and there is a connection."""
        return self._watch.active

    def wait(self, timeout: float, *, pause: float = 0.0) -> ChangedGroups:
        """Wait for a change, and then for `pause` seconds more, because changes seldom come alone. Return them all.

        After `timeout` seconds, or after `wake`, the result may be empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._groups or self._gap or self._closed, timeout)
            if pause and self._groups and not self._closed:
                self._changed.wait_for(lambda: self._closed, pause)
            found = ChangedGroups(frozenset(self._groups), self._gap)
            self._groups.clear()
            self._gap = False
        return found

    def close(self) -> None:
        """End all waiting. Later changes are not reported."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # On kazoo's threads

    def on_change(self, path: str) -> None:
        """Called with the path of a node that has changed."""
        group, _, below = path.removeprefix(_BELOW).partition("/")
        if path == CONSUMERS or below.partition("/")[0] in self._ignored:
            return
        with self._changed:
            self._groups.add(group)
            self._changed.notify_all()

    def on_gap(self) -> None:
        """Called when changes may have been missed."""
        with self._changed:
            self._gap = True
            self._changed.notify_all()
