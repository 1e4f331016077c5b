"""The coordinator of all groups as a state machine: events in, actions out, and no clock, thread, socket or storage."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from . import actions, values
from . import group_events as events
from .config import CoordinatorConfig
from .generation_rules import expired_offsets, is_unused, report_expiry, schedule_cleanup
from .group import Group, GroupMetadata, metadata_of
from .outbox import DeadlineKey, DeadlineKind, Outbox
from .requests import AdminRequests, GroupsInMemory, MemberRequests
from .storage import LoadGroup, OffsetsExpired, Result, WorkFailed
from .values import KafkaError


class CoordinatorMachine:
    """Answers the requests for all groups. `receive` takes an event and returns the actions to carry out, in order.

    `now` is the time in seconds, from a clock that never goes back. If the storage keeps offsets longer than the
    process runs, the clock must continue in the next process.

    When `next_deadline` has come, first pass the events that arrived before it, and then call
    `receive(TimePassed(), now)`. So a request that arrived in time counts, even if the process was suspended.

    `may_be_lost` is the method of the storage. It is called before each request to a group. If it returns True, another
    coordinator may have the group, so the group is dropped, as by `GroupMoved`.
    """

    def __init__(
        self,
        config: CoordinatorConfig | None = None,
        *,
        new_id: Callable[[], str] = lambda: str(uuid4()),
        may_be_lost: Callable[[str], bool] = lambda _group: False,
    ) -> None:
        self._outbox = Outbox(config or CoordinatorConfig(), new_id)
        self._groups = GroupsInMemory(self._outbox)
        self._members = MemberRequests(self._outbox, self._groups)
        self._admins = AdminRequests(self._outbox, self._groups)
        self._may_be_lost = may_be_lost
        self._closed = False

    @property
    def next_deadline(self) -> float | None:
        """The time at which to pass `TimePassed`; None if no deadline is set."""
        return self._outbox.deadlines.next_time

    def group(self, name: str) -> GroupMetadata | None:
        """Return a group; None if it is not in memory."""
        group = self._groups.get(name)
        return metadata_of(group) if group is not None and group.exists else None

    def is_in_memory(self, name: str) -> bool:
        """True if a group was used since the start, and still exists. Faster than `group`."""
        return self._groups.get(name) is not None

    @property
    def group_count(self) -> int:
        """The number of groups in memory."""
        return len(self._groups)

    def groups(self) -> list[str]:
        """Return the names of all groups in memory, sorted."""
        return sorted(group.name for group in self._groups if group.exists)

    def receive(self, event: actions.Event, now: float) -> list[actions.Action]:
        """Process an event, and return the actions to carry out."""
        self._outbox.time = max(now, self._outbox.time)
        match event:
            case actions.RequestReceived():
                self._request(event)
            case actions.WorkFinished(work_id, result):
                self._outbox.finish(work_id, result)
            case actions.TimePassed():
                self._pass_time()
            case actions.RebalanceNeeded() | actions.MembershipLost() | actions.GroupMoved():
                self._follow_storage(event)
            case actions.CloseRequested():
                self._close()
        return self._outbox.take_actions()

    def _follow_storage(self, event: actions.RebalanceNeeded | actions.MembershipLost | actions.GroupMoved) -> None:
        """Tell the groups about a change outside the coordinator."""
        for group in self._groups:
            if event.group not in (None, group.name):
                continue
            match event:
                case actions.RebalanceNeeded():
                    group.receive(events.RebalanceRequested(event.within))
                case actions.MembershipLost():
                    group.receive(events.MembersLost())
                case actions.GroupMoved():
                    self._groups.drop(group, KafkaError.NOT_COORDINATOR)

    def _request(self, event: actions.RequestReceived) -> None:
        id, request = event.request_id, event.request
        if self._closed:
            self._outbox.answer(id, values.refusal(request, KafkaError.COORDINATOR_NOT_AVAILABLE))
            return
        match request:
            case values.LocateRequest():
                self._admins.locate(id, request)
            case values.FetchRequest():
                self._admins.fetch(id, request)
            case values.ListRequest():
                self._admins.list(id, request)
            case values.DescribeRequest():
                self._admins.describe(id, request)
            case values.DeleteGroupsRequest():
                self._admins.delete_groups(id, request)
            case _:
                self._request_to_group(id, request)

    def _request_to_group(self, id: int, request: values.GroupRequest) -> None:
        def refuse(error: KafkaError) -> None:
            self._outbox.answer(id, values.refusal(request, error))

        if error := self._check(request):
            refuse(error)
        else:
            self._drop_if_lost(request.group)
            self._groups.use(request.group, self._handler(id, request), refuse)

    def _drop_if_lost(self, name: str) -> None:
        if self._may_be_lost(name) and (group := self._groups.get(name)) is not None:
            self._groups.drop(group, KafkaError.NOT_COORDINATOR)

    def _check(self, request: values.GroupRequest) -> KafkaError:
        """Check the fields that do not depend on the group. Old clients may commit to the group with the empty name."""
        if not request.group and not isinstance(request, values.CommitRequest):
            return KafkaError.INVALID_GROUP_ID
        config = self._outbox.config
        if isinstance(request, values.JoinRequest):
            allowed = config.min_session_timeout <= request.session_timeout <= config.max_session_timeout
            return KafkaError.NONE if allowed else KafkaError.INVALID_SESSION_TIMEOUT
        return KafkaError.NONE

    def _handler(self, id: int, request: values.GroupRequest) -> Callable[[Group], None]:
        match request:
            case values.JoinRequest():
                return lambda group: self._members.join(id, request, group)
            case values.SyncRequest():
                return lambda group: self._members.sync(id, request, group)
            case values.HeartbeatRequest():
                return lambda group: self._members.heartbeat(id, request, group)
            case values.LeaveRequest():
                return lambda group: self._members.leave(id, request, group)
            case values.CommitRequest():
                return lambda group: self._members.commit(id, request, group)
            case values.DeleteOffsetsRequest():
                return lambda group: self._admins.delete_offsets(id, request, group)

    def _pass_time(self) -> None:
        """Process all deadlines that have come, in the order of their times."""
        while (due := self._outbox.deadlines.take_due(self._outbox.time)) is not None:
            _time, key = due
            if key.kind is DeadlineKind.WORK:
                self._give_up_work(int(key.owner))
            elif key.kind is DeadlineKind.CLEANUP:
                self._clean_up(key.group)
            else:
                self._send(self._groups.get(key.group), _event_of(key))

    def _give_up_work(self, work_id: int) -> None:
        loading = isinstance(self._outbox.open_work[work_id].work, LoadGroup)
        error = KafkaError.COORDINATOR_LOAD_IN_PROGRESS if loading else KafkaError.COORDINATOR_NOT_AVAILABLE
        self._outbox.finish(work_id, WorkFailed(error))

    def _clean_up(self, name: str) -> None:
        group = self._groups.get(name)
        if group is None:
            return

        def expired(result: Result) -> None:
            if self._groups.get(name) is not group:
                return
            if isinstance(result, OffsetsExpired) and is_unused(group, result):
                report_expiry(group)
                self._groups.drop(group, KafkaError.COORDINATOR_NOT_AVAILABLE)
            else:
                schedule_cleanup(group)

        self._outbox.start(expired_offsets(group), expired)

    def _send(self, group: Group | None, event: events.GroupEvent) -> None:
        if group is not None:
            group.receive(event)

    # The end

    def _close(self) -> None:
        """Answer all open requests. The outcome of open work stays unknown. Clients retry at another coordinator."""
        self._closed = True
        for group in self._groups:
            self._groups.drop(group, KafkaError.NOT_COORDINATOR)
        while self._outbox.open_work:
            self._outbox.finish(next(iter(self._outbox.open_work)), WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE))


def _event_of(key: DeadlineKey) -> events.GroupEvent:
    match key.kind:
        case DeadlineKind.SESSION:
            return events.MemberExpired(str(key.owner))
        case DeadlineKind.PENDING_ID:
            return events.PendingIdDropped(str(key.owner))
        case DeadlineKind.INITIAL_DELAY:
            return events.InitialDelayElapsed()
        case DeadlineKind.JOIN:
            return events.JoinTimedOut()
        case DeadlineKind.SYNC:
            return events.SyncTimedOut()
        case DeadlineKind.STUCK:
            return events.RebalanceStuck()
    raise ValueError(f"{key} is not a deadline of a group")
