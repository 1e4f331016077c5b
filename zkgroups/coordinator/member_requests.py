"""The requests of members: join, sync, heartbeat, leave and commit. They are checked here, and become group events."""

from __future__ import annotations

from dataclasses import replace

from .group.events import (
    CommitReceived,
    GroupEvent,
    HeartbeatReceived,
    MemberLeft,
    MemberSynced,
    PendingIdDropped,
)
from .group.group import Group
from .groups_in_memory import GroupsInMemory
from .outbox import Outbox
from .rules.admission import admit, check_commit, check_heartbeat, check_member, check_sync
from .values.answers import LeaveAnswer, refusal
from .values.kafka_errors import KafkaError
from .values.requests import CommitRequest, HeartbeatRequest, JoinRequest, LeaveRequest, MemberIdentity, SyncRequest


class MemberRequests:
    """Checks the requests of members. All methods answer a request, or pass it on as an event."""

    def __init__(self, outbox: Outbox, groups: GroupsInMemory) -> None:
        self._outbox = outbox
        self._groups = groups

    def join(self, request_id: int, request: JoinRequest, group: Group) -> None:
        admitted = admit(group, request_id, request)
        if isinstance(admitted, KafkaError):
            if admitted is KafkaError.GROUP_MAX_SIZE_REACHED:
                self._give_place_up(group, request.member_id)
                request = replace(request, member_id="")
            self._refuse(request_id, request, admitted)
            return
        self._groups.keep(group)
        group.receive(admitted)

    def _give_place_up(self, group: Group, member_id: str) -> None:
        """Remove a member that is refused because the group is full: the others must not wait for it."""
        if member_id in group.members.pending_ids:
            group.receive(PendingIdDropped(member_id))
        elif member_id in group.members:
            group.receive(MemberLeft(member_id))

    def sync(self, request_id: int, request: SyncRequest, group: Group) -> None:
        self._pass_on(group, check_sync(group, request), request_id, request, MemberSynced(request_id, request))

    def heartbeat(self, request_id: int, request: HeartbeatRequest, group: Group) -> None:
        event = HeartbeatReceived(request_id, request.member_id)
        self._pass_on(group, check_heartbeat(group, request), request_id, request, event)

    def commit(self, request_id: int, request: CommitRequest, group: Group) -> None:
        if not group.exists:
            if request.generation >= 0:
                self._refuse(request_id, request, KafkaError.ILLEGAL_GENERATION)
                return
            self._groups.keep(group)
        self._pass_on(group, check_commit(group, request), request_id, request, CommitReceived(request_id, request))

    def leave(self, request_id: int, request: LeaveRequest, group: Group) -> None:
        errors = tuple(self._leave(group, member) for member in request.members)
        self._outbox.answer(request_id, LeaveAnswer(KafkaError.NONE, errors))

    def _leave(self, group: Group, leaving: MemberIdentity) -> KafkaError:
        """Remove one member. An administrator may name a static member by its instance id alone."""
        member_id = leaving.member_id
        if not member_id:
            member_id = group.members.static_ids.get(leaving.instance_id or "", "")
        elif member_id in group.members.pending_ids:
            group.receive(PendingIdDropped(member_id))
            return KafkaError.NONE
        error = check_member(group, member_id, leaving.instance_id)
        if not error:
            group.receive(MemberLeft(member_id))
        return error

    def _pass_on(
        self,
        group: Group,
        error: KafkaError,
        request_id: int,
        request: SyncRequest | HeartbeatRequest | CommitRequest,
        event: GroupEvent,
    ) -> None:
        if error:
            self._refuse(request_id, request, error)
        else:
            group.receive(event)

    def _refuse(
        self, request_id: int, request: JoinRequest | SyncRequest | HeartbeatRequest | CommitRequest, error: KafkaError
    ) -> None:
        self._outbox.answer(request_id, refusal(request, error))
