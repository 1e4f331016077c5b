"""Reports when a member has waited too long for partitions that others hold, or for a plan of another member."""

from __future__ import annotations

from collections.abc import Callable

from ..core.rebalance.planner_election import AwaitedPlan
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import uptime
from .callbacks import Callbacks
from .events import EventKind
from .options import Options
from .timers import Timers

Partitions = frozenset[TopicPartition]


class StuckAlarm:
    """Report once if one member waits longer than `rebalance_timeout`, and skip a slow planner."""

    def __init__(
        self,
        options: Options,
        timers: Timers,
        callbacks: Callbacks,
        holders: Callable[[Partitions], str],
        skip: Callable[[AwaitedPlan], None],
    ) -> None:
        self._limit = options.rebalance_timeout
        self._planning_limit = options.planning_timeout
        self._timers = timers
        self._callbacks = callbacks
        self._holders = holders
        self._skip_planner = skip
        self._since: dict[TopicPartition, float] = {}
        self._told: Partitions = frozenset()
        self._awaited: AwaitedPlan | None = None
        self._awaited_since = 0.0
        self._planless_since: float | None = None
        self._planless_told = False

    def begin_anew(self, partitions: Partitions) -> None:
        """Restart the wait for these partitions now, whoever held them before."""
        self._told -= partitions
        self._since = {at: since for at, since in self._since.items() if at not in partitions}

    def watch(self, waiting: Partitions, awaited: AwaitedPlan | None) -> None:
        """Record the partitions and the plan that the member waits for now."""
        now = uptime()
        known, self._since = self._since, {at: self._since.get(at, now) for at in waiting}
        self._told &= waiting
        if waiting - known.keys():
            self._timers.later(self._limit, self._look)
        if awaited is None:
            self._planless_since, self._planless_told = None, False
        elif self._planless_since is None:
            self._planless_since = now
            self._timers.later(self._limit, self._look)
        if awaited is not None and awaited != self._awaited:
            self._awaited_since = now
            self._timers.later(self._planning_limit, lambda: self._look_at_planner(awaited))
        self._awaited = awaited

    def _look(self) -> None:
        now = uptime()
        stuck = frozenset(at for at, since in self._since.items() if now - since >= self._limit) - self._told
        if stuck:
            self._told |= stuck
            self._callbacks.event(EventKind.STUCK, stuck, self._holders(stuck))
        since = self._planless_since
        if self._awaited is None or since is None or self._planless_told or now - since < self._limit:
            return
        self._planless_told = True
        self._callbacks.event(EventKind.STUCK, detail=f"{self._awaited.planner!r} has not written a plan")

    def _look_at_planner(self, awaited: AwaitedPlan) -> None:
        if awaited == self._awaited and uptime() - self._awaited_since >= self._planning_limit:
            self._awaited = None  # if this plan is awaited again, its time restarts
            self._skip_planner(awaited)
