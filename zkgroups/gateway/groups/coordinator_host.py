"""Runs the coordinator in the event loop: with a clock, deadlines, and a storage that may answer later."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import TimeoutError as NotInTimeError
from itertools import count
from typing import Any, Final, TypeVar

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
from ...coordinator.group import GroupMetadata
from ...coordinator.memory_storage import MemoryStorage, assign_partitions
from ...coordinator.state_machine import CoordinatorMachine
from ...coordinator.storage import AssignmentMade, PerformAssignment, Result, Storage, Work, WorkFailed
from ...coordinator.values import Answer, CommitRequest, JoinRequest, KafkaError, Request, refusal
from ...deadline import Deadline
from ...exceptions import NotConnectedError, ZkgroupsException
from ...kafka.wire.cluster import Cluster
from ...kafka.wire.connection import Code
from ...kafka.wire.errors import WireError

# The topics of the cluster, as its brokers report them.


_log = logging.getLogger("zkgroups.gateway")

_DESCRIBE_QUORUM: Final = 55
"""A request that only brokers in KRaft mode offer."""

_KNOWN: Final = {Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_TOPIC_EXCEPTION}
"""A topic with another error may exist."""

T = TypeVar("T")


class BrokerTopics:
    """Asks the brokers for topics and their partitions. The coroutines belong to the event loop that made it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._reported: set[str] = set()

    async def partitions(self, topics: Collection[str] | None) -> dict[str, tuple[int, ...] | None]:
        """Return the partitions of these topics, or of all. None for a topic that the brokers do not describe.

        Topics that do not exist are left out.
        """
        found = (await self._cluster.metadata(topics)).topics
        partitions: dict[str, tuple[int, ...] | None]
        partitions = {name: tuple(sorted(topic.leaders)) for name, topic in found.items() if topic.leaders}
        hidden = {name for name, topic in found.items() if topic.error not in _KNOWN} - partitions.keys()
        for name in sorted(hidden - self._reported):
            _log.warning(
                "the brokers do not describe topic %s to the gateway (error %d), so its partitions are not assigned; "
                "its login needs the permission: see --command-config",
                name,
                found[name].error,
            )
        self._reported |= hidden
        return partitions | dict.fromkeys(hidden)

    async def are_outside(self, cluster_id: str | None) -> bool:
        """Return whether the brokers keep their topics outside of the ZooKeeper that has this id of a cluster.

        Brokers in KRaft mode do. After a migration to KRaft, ZooKeeper still has the same id and the former topics.
        """
        found = await self._cluster.metadata([])
        return _DESCRIBE_QUORUM in (await self._cluster.versions()).ranges or found.cluster_id != cluster_id

    def call(self, asked: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run one of the coroutines for another thread. Raise `NotConnectedError` if no broker answers."""
        try:
            answer = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError as error:
            asked.close()
            raise NotConnectedError("the gateway has closed its connection to the brokers") from error
        try:
            return answer.result(timeout)
        except NotInTimeError as error:
            answer.cancel()
            raise NotConnectedError(f"no broker answered within {timeout:g} s") from error
        except (WireError, ZkgroupsException) as error:
            raise NotConnectedError(f"no broker answered: {error}") from error


# Groups in memory. The brokers are asked which partitions exist.


class MemoryGroupStorage(MemoryStorage):
    """A storage that asks the brokers for partitions before each assignment. Its offsets exist only in memory."""

    def __init__(self, topics: BrokerTopics, report: Callable[[Event], None]) -> None:
        super().__init__()
        self._topics = topics
        self._report = report
        self._assigning: set[asyncio.Task[None]] = set()

    def start(self, work_id: int, work: Work) -> Result | None:
        """Carry out work. The result of an assignment comes later."""
        if not isinstance(work, PerformAssignment):
            return super().start(work_id, work)
        task = asyncio.create_task(self._assign(work_id, work))
        self._assigning.add(task)
        task.add_done_callback(self._assigning.discard)
        return None

    async def _assign(self, work_id: int, work: PerformAssignment) -> None:
        topics = {topic for member in work.members.values() for topic in member.subscription.topics}
        try:
            found = await self._topics.partitions(topics)
        except Exception as error:
            expected = isinstance(error, WireError | ZkgroupsException)
            _log.warning("could not assign the partitions of group %s: %s", work.group, error, exc_info=not expected)
            self._report(WorkFinished(work_id, WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE)))
            return
        known = {name: numbers or () for name, numbers in found.items()}
        shares = assign_partitions(work.strategy, work.members, known)
        self._report(WorkFinished(work_id, AssignmentMade(shares)))


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
