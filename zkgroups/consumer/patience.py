"""Who waits for too long: for partitions that somebody else holds, or for a plan that somebody else is to write."""

from __future__ import annotations

from collections.abc import Callable

from ..core.model import TopicPartition
from ..zookeeper.deadline import uptime
from .events import EventKind
from .telling import Telling
from .timers import Timers

Partitions = frozenset[TopicPartition]


class Patience:
    """The waiting of one member, which is told of once, `limit` seconds after it began."""

    def __init__(
        self, name: str, limit: float, timers: Timers, telling: Telling, holders: Callable[[Partitions], str]
    ) -> None:
        self._name = name
        self._limit = limit
        self._timers = timers
        self._telling = telling
        self._holders = holders
        self._since: dict[TopicPartition, float] = {}
        self._told: Partitions = frozenset()
        self._planner: str | None = None
        self._planless_since: float | None = None
        self._planless_told = False

    def begin_anew(self, partitions: Partitions) -> None:
        """The wait for these begins now, whoever has held them before."""
        self._told -= partitions
        self._since = {at: since for at, since in self._since.items() if at not in partitions}

    def watch(self, waiting: Partitions, planner: str | None) -> None:
        """This is what it waits for now, and who is to write the plan that it waits for."""
        now = uptime()
        known, self._since = self._since, {at: self._since.get(at, now) for at in waiting}
        self._told &= waiting
        if waiting - known.keys():
            self._timers.later(self._limit, self._look)
        self._planner = planner
        if planner is None:
            self._planless_since, self._planless_told = None, False
        elif self._planless_since is None:
            self._planless_since = now
            self._timers.later(self._limit, self._look)

    def _look(self) -> None:
        now = uptime()
        stuck = frozenset(at for at, since in self._since.items() if now - since >= self._limit) - self._told
        if stuck:
            self._told |= stuck
            self._telling.event(EventKind.STUCK, stuck, self._holders(stuck))
        since = self._planless_since
        if since is not None and not self._planless_told and now - since >= self._limit:
            self._planless_told = True
            self._telling.event(EventKind.STUCK, detail=f"{self._planner!r} has not written a plan")
