"""What a member waits for: timers, changes, failed steps that are tried again, and an alarm if it waits too long."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..core.rebalance.shared_plan import AwaitedPlan
from ..core.rebalance.state_machine import (
    ClaimPartitions,
    DeregisterInstance,
    ReadGroup,
    RebalanceRequest,
    RegisterInstance,
    ReleasePartitions,
    StopGeneration,
)
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import uptime
from ..exceptions import NotClaimedError, NotRegisteredError, OutcomeUnknownError
from .events import EventKind, MemberStats, Partitions
from .options import Callbacks, Options

# Timers for one thread. The thread itself calls what is due, between its other work.


Act = Callable[[], None]


class Timers:
    """Functions to call later, in the order of their times."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Act]] = []
        self._order = itertools.count()

    def later(self, seconds: float, act: Act) -> None:
        """Call `act` once, this many seconds from now."""
        heapq.heappush(self._heap, (uptime() + seconds, next(self._order), act))

    def every(self, seconds: float, act: Act) -> None:
        """Call `act` repeatedly, with this many seconds in between."""

        def again() -> None:
            act()
            self.later(seconds, again)

        self.later(seconds, again)

    def due(self, longest: float) -> float:
        """Return when the next timer is due, or `longest` seconds from now if there is none."""
        return self._heap[0][0] if self._heap else uptime() + longest

    def run(self) -> None:
        """Call everything that is due now, each once."""
        now = uptime()
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)[2]()


# Changes of the group that a member has heard of, and when it handles them.
#
# Watches report released partitions one by one. They are collected for a moment and claimed together. Any other
# change makes the member look at the group, that is, read all of it. Looks that follow each other too closely are
# delayed.


IN_A_ROW: Final = 3
"""How many looks may follow each other without a pause. The next one waits, so that it sees many changes together."""

BREATHER: Final = 4
"""The least average time from look to look, in durations of a look. The time is at most LONGEST_BREATHER."""

LONGEST_BREATHER: Final = 0.5
"""In seconds."""

GATHER: Final = 0.005
"""How long to collect released partitions, in seconds."""


class PendingChanges:
    """The changes that one member has still to handle. Other threads only call `released` and `changed`."""

    def __init__(self) -> None:
        self._heard: deque[Partitions] = deque()  # on kazoo's threads
        self._released: Partitions = frozenset()
        self._released_at = 0.0  # when the first of them was collected
        self._changed = False
        self._since: float | None = None  # when the member began to handle a change
        self._next_look = 0.0
        self._looked: deque[float] = deque(maxlen=IN_A_ROW)

    def released(self, partitions: Partitions) -> None:
        """Note that these partitions were released."""
        self._heard.append(partitions)

    def changed(self) -> None:
        """Note that the member must look at the group."""
        self._changed = True

    def due(self, latest: float) -> float:
        """Return when the next change can be taken, at most `latest`."""
        if self._changed:
            latest = min(latest, self._next_look)
        if self._released:
            latest = min(latest, self._released_at + GATHER)
        return latest

    def take_released(self, waiting: Partitions) -> Partitions:
        """Return the released partitions if the member waits for no others, or they were collected long enough."""
        heard = frozenset[TopicPartition]().union(*(self._heard.popleft() for _ in range(len(self._heard))))
        if heard and not self._released:
            self._released_at = uptime()
        self._released |= heard
        if not self._released >= waiting and uptime() < self._released_at + GATHER:
            return frozenset()
        released, self._released = self._released, frozenset()
        return released

    def take_change(self) -> bool:
        """Return True if the member must look at the group now."""
        if not self._changed or uptime() < self._next_look:
            return False
        self._changed = False
        return True

    def begin_look(self) -> float:
        """Note that a look begins, which sees all changes so far. Return the time."""
        now = uptime()
        if self._since is None:
            self._since = now
        self._changed = False
        return now

    def end_look(self, began: float) -> None:
        """Note that a look has succeeded, and choose when the next one may begin."""
        took = uptime() - began
        self._looked.append(uptime())
        if len(self._looked) == IN_A_ROW:
            self._next_look = self._looked[0] + IN_A_ROW * min(BREATHER * took, LONGEST_BREATHER)

    def settle(self) -> float | None:
        """Note that all changes are handled. Return for how many seconds the member has handled them, if at all."""
        since, self._since = self._since, None
        return None if since is None else uptime() - since


# Failed steps of a rebalance: when to retry them, and which errors the caller gets.


FIRST_BACKOFF: Final = 0.05
"""The first pause before a retry, in seconds. It doubles with each failure in a row, up to `join_backoff`."""

MENDED_BY_LOOKING: Final = (NotClaimedError, NotRegisteredError, OutcomeUnknownError)
"""Errors that the caller need not see, because the next look at the group resolves them."""

_STEPS: Final = {
    RegisterInstance: "register",
    ReadGroup: "read its group and plan",
    ClaimPartitions: "claim partitions",
    StopGeneration: "stop its workers",
    ReleasePartitions: "release partitions",
    DeregisterInstance: "leave",
}
"""The steps that may fail, as the log names them."""


def is_retriable(error: Exception) -> bool:
    """Return whether the member can retry soon after this error."""
    return isinstance(error, MENDED_BY_LOOKING) or getattr(error, "retriable", False) is True


@dataclass(slots=True)
class StepFailure:
    """The error of a failed step. The caller gets it once, unless the step has succeeded in the meantime."""

    step: type[RebalanceRequest]
    error: Exception
    over: bool = False


class StepFailures:
    """Counts the failures of one member, logs them, and hands out errors that a retry alone does not resolve."""

    def __init__(
        self,
        options: Options,
        stats: MemberStats,
        callbacks: Callbacks,
        hand_out: Callable[[StepFailure], object],
    ) -> None:
        self._options = options
        self._stats = stats
        self._callbacks = callbacks
        self._hand_out = hand_out
        self._in_a_row = 0
        self._handed_out: StepFailure | None = None

    def pause(self, failures: int) -> float:
        """Return how many seconds to wait after this many failures in a row."""
        return min(FIRST_BACKOFF * 2.0 ** min(failures - 1, 16), self._options.join_backoff)

    def worked(self, step: RebalanceRequest) -> None:
        """Note that a step has succeeded."""
        self._in_a_row = 0
        self._callbacks.worked(_STEPS[type(step)])
        if self._handed_out is not None and self._handed_out.step is type(step):
            self._handed_out.over = True

    def failed(self, step: RebalanceRequest, error: Exception, *, retriable: bool, trace: bool) -> float:
        """Note that a step has failed. Return how long to wait before the retry, in seconds.

        The pause is short if the error is retriable. Otherwise it is `join_backoff`, and the caller gets the error.
        """
        self._stats.failures += 1
        self._in_a_row += 1
        self._callbacks.failed(_STEPS[type(step)], error, trace=trace)
        if retriable:
            return self.pause(self._in_a_row)
        self.report(type(step), error)
        return self._options.join_backoff

    def report(self, step: type[RebalanceRequest], error: Exception) -> None:
        """Hand out the error, unless the caller has not received the last one yet: then replace it."""
        if self._handed_out is not None and not self._handed_out.over:
            self._handed_out.step, self._handed_out.error = step, error
            return
        self._handed_out = StepFailure(step, error)
        self._hand_out(self._handed_out)


# Reports when a member has waited too long for partitions that others hold, or for a plan of another member.


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
        stuck = frozenset(at for at, since in self._since.items() if now >= since + self._limit) - self._told
        if stuck:
            self._told |= stuck
            self._callbacks.event(EventKind.STUCK, stuck, self._holders(stuck))
        since = self._planless_since
        if self._awaited is None or since is None or self._planless_told or now < since + self._limit:
            return
        self._planless_told = True
        self._callbacks.event(EventKind.STUCK, detail=f"{self._awaited.planner!r} has not written a plan")

    def _look_at_planner(self, awaited: AwaitedPlan) -> None:
        if awaited == self._awaited and uptime() >= self._awaited_since + self._planning_limit:
            self._awaited = None  # if this plan is awaited again, its time restarts
            self._skip_planner(awaited)
