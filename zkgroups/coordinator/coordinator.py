"""A group coordinator as a library: the state machine, together with its storage."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias
from uuid import uuid4

from .actions import (
    Action,
    Event,
    ReportCommit,
    ReportIncident,
    RequestReceived,
    SendAnswer,
    StartWork,
    TimePassed,
    WorkFinished,
)
from .config import CoordinatorConfig
from .group import GroupMetadata
from .state_machine import CoordinatorMachine
from .storage import Storage
from .values import Request

Outcome: TypeAlias = SendAnswer | ReportIncident | ReportCommit


class GroupCoordinator:
    """Answers the requests of consumers and their tools, for all groups of a storage.

    Each request gets exactly one answer: from the same call, or from a later one. The coordinator has no clock: every
    call passes the time in seconds. When `next_deadline` has come, first pass the requests that arrived before it, and
    then call `pass_time`. Not thread-safe.

    >>> from zkgroups.coordinator import *
    >>> config = CoordinatorConfig(assignment_by=AssignmentBy.COORDINATOR, initial_rebalance_delay=3)
    >>> coordinator = GroupCoordinator(MemoryStorage({"orders": 2}), config, new_id=iter("12").__next__)
    >>> range_of_orders = GroupProtocol("range", encode_subscription(Subscription(frozenset({"orders"}))))
    >>> def join(member_id, client_id):
    ...     return JoinRequest("billing", member_id, (range_of_orders,), 10.0, 60.0, client_id=client_id)

    A new client gets a member id, and joins again with it. The request is parked until all members have joined:

    >>> [given] = coordinator.request(1, join("", "app"), now=0.0)
    >>> given.answer.error.name, given.answer.member_id
    ('MEMBER_ID_REQUIRED', 'app-1')
    >>> coordinator.request(2, join("app-1", "app"), now=0.1), coordinator.next_deadline
    ([], 3.1)
    >>> [joined] = coordinator.pass_time(now=3.1)
    >>> joined.request_id, joined.answer.error.name, joined.answer.generation
    (2, 'NONE', 1)

    Then the client asks for its partitions:

    >>> [synced] = coordinator.request(3, SyncRequest("billing", "app-1", 1, {}), now=3.2)
    >>> sorted(str(at) for at in decode_assignment(synced.answer.assignment))
    ['orders/0', 'orders/1']

    The client commits offsets as a member of this generation. After the member was removed, it cannot commit:

    >>> commit = CommitRequest("billing", {TopicPartition("orders", 0): CommittedValue(17)}, "app-1", generation=1)
    >>> [committed] = coordinator.request(4, commit, now=5.0)
    >>> committed.answer.errors[TopicPartition("orders", 0)].name
    'NONE'
    >>> [action.incident.name for action in coordinator.pass_time(now=20.0)]
    ['MEMBER_EXPIRED']
    >>> [refused] = coordinator.request(5, commit, now=20.0)
    >>> refused.answer.errors[TopicPartition("orders", 0)].name
    'UNKNOWN_MEMBER_ID'
    """

    def __init__(
        self,
        storage: Storage,
        config: CoordinatorConfig | None = None,
        *,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self._storage = storage
        self._machine = CoordinatorMachine(config, new_id=new_id, may_be_lost=storage.may_be_lost)

    @property
    def next_deadline(self) -> float | None:
        """The time at which to call `pass_time`; None if no deadline is set."""
        return self._machine.next_deadline

    def group(self, name: str) -> GroupMetadata | None:
        """Return a group; None if it is not in memory."""
        return self._machine.group(name)

    def groups(self) -> list[str]:
        """Return the names of all groups in memory, sorted."""
        return self._machine.groups()

    def request(self, request_id: int, request: Request, now: float) -> list[Outcome]:
        """Process a request. Its answer may come with a later call."""
        return self.receive(RequestReceived(request_id, request), now)

    def pass_time(self, now: float) -> list[Outcome]:
        """Process all deadlines up to now."""
        return self.receive(TimePassed(), now)

    def receive(self, event: Event, now: float) -> list[Outcome]:
        """Process an event, and carry out its storage work. Return the answers to send, and the reports to log."""
        outcomes: list[Outcome] = []
        actions: deque[Action] = deque(self._machine.receive(event, now))
        while actions:
            action = actions.popleft()
            if not isinstance(action, StartWork):
                outcomes.append(action)
            elif (result := self._storage.start(action.work_id, action.work)) is not None:
                actions.extend(self._machine.receive(WorkFinished(action.work_id, result), now))
        return outcomes
