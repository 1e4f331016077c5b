"""Runs the coordinator in the event loop: with a clock, deadlines, and a storage that may answer later."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from ...coordinator.actions import (
    Action,
    CloseRequested,
    Event,
    ReportCommit,
    ReportIncident,
    RequestReceived,
    SendAnswer,
    StartWork,
    TimePassed,
    WorkFinished,
)
from ...coordinator.config import CoordinatorConfig
from ...coordinator.group.metadata import GroupMetadata
from ...coordinator.state_machine import CoordinatorMachine
from ...coordinator.storage.storage import Storage
from ...coordinator.values.answers import Answer, refusal
from ...coordinator.values.kafka_errors import KafkaError
from ...coordinator.values.requests import CommitRequest, JoinRequest, Request
from ...deadline import Deadline

_log = logging.getLogger("zkgroups.gateway")

_LATE: Final = 0.5
"""In seconds: the delay of a deadline that shows that the process was suspended, or had no CPU."""
_GRACE: Final = 0.5
"""In seconds: how long a late deadline waits, so that requests that arrived meanwhile are processed first."""

_LOOK: Final = 0.05
"""In seconds: how soon it is noticed that all members have left."""

Report = Callable[[Event], None]
"""Passes an event to the coordinator, from any thread."""


class CoordinatorHost:
    """Answers requests for all groups. Belongs to one event loop.

    - `storage`: returns the storage, given a function that passes events to the coordinator.
    - `most_groups`: the largest number of groups in memory. Further groups are refused.
    """

    def __init__(self, storage: Callable[[Report], Storage], config: CoordinatorConfig, *, most_groups: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._storage = storage(self.receive_soon)
        self._machine = CoordinatorMachine(config, may_be_lost=self._storage.may_be_lost)
        self._most_groups = most_groups
        self._began = time.time() - time.monotonic()
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._is_late = False
        """True while a late deadline waits for the requests that arrived meanwhile."""

    async def answer(self, request: Request) -> Answer:
        """Return the answer to a request, which may be parked for minutes."""
        if (group := self._group_above_limit(request)) is not None:
            _log.warning(
                "refused group %s: the gateway has %d groups already; allow more with --max-groups",
                group,
                self._most_groups,
            )
            return refusal(request, KafkaError.COORDINATOR_NOT_AVAILABLE)
        id = next(self._ids)
        waiting: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[id] = waiting
        try:
            self.receive(RequestReceived(id, request))
            return await waiting
        finally:
            self._waiting.pop(id, None)

    def receive(self, event: Event) -> None:
        """Process an event, and carry out all actions that follow from it."""
        now = self._now()
        actions: deque[Action] = deque(self._machine.receive(event, now))
        while actions:
            match actions.popleft():
                case StartWork(work_id, work):
                    if (result := self._storage.start(work_id, work)) is not None:
                        actions.extend(self._machine.receive(WorkFinished(work_id, result), now))
                case SendAnswer(request_id, answer):
                    self._send(request_id, answer)
                case ReportIncident(incident, group, members):
                    _log.warning("group %s: %s%s", group, incident, f": {', '.join(members)}" if members else "")
                case ReportCommit():
                    pass
        self._set_timer()

    def receive_soon(self, event: Event) -> None:
        """Process an event from any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self.receive, event)

    def groups(self) -> list[GroupMetadata]:
        """Return the groups in memory."""
        found = (self._machine.group(name) for name in self._machine.groups())
        return [group for group in found if group is not None]

    async def let_leave(self, within: float) -> None:
        """Let all members commit and leave, so that nothing is read again after the end."""
        deadline = Deadline(within)
        while not self._storage.let_leave() and not deadline.passed:
            await asyncio.sleep(_LOOK)

    def close(self) -> None:
        """Answer everything, and refuse later requests."""
        self.receive(CloseRequested())
        if self._timer is not None:
            self._timer.cancel()

    def _group_above_limit(self, request: Request) -> str | None:
        """Return the group of a request that would need memory for one group too many; otherwise None."""
        if not isinstance(request, JoinRequest | CommitRequest) or self._machine.is_in_memory(request.group):
            return None
        return request.group if self._machine.group_count >= self._most_groups else None

    def _send(self, request_id: int, answer: Answer) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _now(self) -> float:
        """Return the time in seconds since 1970, by a clock that does not go back."""
        return self._began + time.monotonic()

    def _set_timer(self) -> None:
        if self._is_late:
            return  # otherwise each event would prolong the wait, and a busy gateway would miss all deadlines
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due := self._machine.next_deadline) is not None:
            self._due = due
            self._timer = self._loop.call_later(max(0.0, due - self._now()), self._on_time)

    def _on_time(self) -> None:
        if self._now() - self._due > _LATE:
            self._is_late = True
            self._timer = self._loop.call_later(_GRACE, self._pass_time)
        else:
            self._pass_time()

    def _pass_time(self) -> None:
        self._is_late = False
        self.receive(TimePassed())
