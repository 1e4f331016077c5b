"""State that all groups of a coordinator share: the current time, the collected actions, deadlines and open work."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final, Generic, TypeVar

from .actions import Action, Incident, ReportCommit, ReportIncident, SendAnswer, StartWork
from .config import CoordinatorConfig
from .storage import Result, Work
from .values import Answer

# Deadlines as data: set, moved and cancelled by key, and taken in the order of their times.


Key = TypeVar("Key", bound=Hashable)
_FEW: Final = 1000
"""The most outdated entries of a heap that are kept in any case."""


class DeadlineKind(StrEnum):
    """The kinds of deadlines."""

    SESSION = "session of a member"
    PENDING_ID = "time to use a new member id"
    INITIAL_DELAY = "initial delay of an empty group"
    JOIN = "time to join a rebalance"
    SYNC = "time to sync"
    STUCK = "longest time until a rebalancing group is stable"
    CLEANUP = "time between two checks of offsets and empty groups"
    WORK = "time for storage work"


@dataclass(frozen=True, slots=True)
class DeadlineKey:
    """The key of a deadline. `owner` is the id of the member or of the storage work, if the deadline has one."""

    kind: DeadlineKind
    group: str = ""
    owner: str | int = ""


class Deadlines(Generic[Key]):
    """The deadlines that are set. Moving a deadline to a later time costs only a dictionary entry.

    >>> deadlines = Deadlines[str]()
    >>> deadlines.set("a", 5.0), deadlines.set("b", 7.0), deadlines.set("a", 9.0)
    (None, None, None)
    >>> deadlines.next_time, deadlines.take_due(8.0), deadlines.take_due(8.0), deadlines.next_time
    (7.0, (7.0, 'b'), None, 9.0)
    """

    def __init__(self) -> None:
        self._times: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._queued: dict[Key, float] = {}  # the earliest entry of each key in the heap
        self._order = count()

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: Key, time: float) -> None:
        """Set a deadline, or move it."""
        self._times[key] = time
        if key not in self._queued or time < self._queued[key]:
            self._push(key, time)

    def cancel(self, key: Key) -> None:
        """Cancel a deadline, if it is set."""
        self._times.pop(key, None)
        # Without this, clients that join and leave would fill the memory.
        if len(self._heap) > 2 * len(self._times) + _FEW:
            self._heap = [each for each in self._heap if each[2] in self._times and self._queued[each[2]] == each[0]]
            self._queued = {key: time for time, _order, key in self._heap}
            heapq.heapify(self._heap)

    def time_of(self, key: Key) -> float | None:
        """The time of a deadline; None if it is not set."""
        return self._times.get(key)

    @property
    def next_time(self) -> float | None:
        """The earliest time; None if no deadline is set."""
        self._settle_first()
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> tuple[float, Key] | None:
        """Remove the earliest deadline and return it, if its time has come."""
        self._settle_first()
        if not self._heap or self._heap[0][0] > now:
            return None
        time, _order, key = heapq.heappop(self._heap)
        del self._queued[key], self._times[key]
        return time, key

    def _push(self, key: Key, time: float) -> None:
        self._queued[key] = time
        heapq.heappush(self._heap, (time, next(self._order), key))

    def _settle_first(self) -> None:
        """Drop outdated entries from the top of the heap, and queue moved deadlines with their new times."""
        while self._heap:
            time, _order, key = self._heap[0]
            if self._queued.get(key) == time == self._times.get(key):
                return
            heapq.heappop(self._heap)
            if self._queued.get(key) == time:
                del self._queued[key]
                if key in self._times:
                    self._push(key, self._times[key])


@dataclass(frozen=True, slots=True)
class OpenWork:
    """Work without a result."""

    work: Work
    finish: Callable[[Result], None]


class Outbox:
    """Collects the actions of the current event, in order."""

    def __init__(self, config: CoordinatorConfig, new_id: Callable[[], str]) -> None:
        self.config = config
        self.new_id = new_id
        """Returns a unique text for a member id."""
        self.time = 0.0
        self.deadlines: Deadlines[DeadlineKey] = Deadlines()
        self.open_work: dict[int, OpenWork] = {}
        self._actions: list[Action] = []
        self._work_ids = count(1)

    def take_actions(self) -> list[Action]:
        """Return the actions that were collected, and forget them."""
        actions, self._actions = self._actions, []
        return actions

    def answer(self, request_id: int, answer: Answer) -> None:
        self._actions.append(SendAnswer(request_id, answer))

    def report(self, incident: Incident, group: str, *members: str) -> None:
        self._actions.append(ReportIncident(incident, group, members))

    def report_commit(self, commit: ReportCommit) -> None:
        if self.config.report_commits and commit.offsets:
            self._actions.append(commit)

    def start(self, work: Work, finish: Callable[[Result], None], *, timeout: float | None = None) -> None:
        """Start work. `finish` receives its result, or a failure after the timeout, exactly once."""
        work_id = next(self._work_ids)
        self.open_work[work_id] = OpenWork(work, finish)
        limit = self.config.storage_timeout if timeout is None else timeout
        self.deadlines.set(DeadlineKey(DeadlineKind.WORK, owner=work_id), self.time + limit)
        self._actions.append(StartWork(work_id, work))

    def finish(self, work_id: int, result: Result) -> None:
        """Pass a result to the code that waits for it. Ignore the result of work that has finished already."""
        if (open_work := self.open_work.pop(work_id, None)) is not None:
            self.deadlines.cancel(DeadlineKey(DeadlineKind.WORK, owner=work_id))
            open_work.finish(result)
