"""Join requests, in each state of the group."""

from __future__ import annotations

from ..deadlines import DeadlineKind
from ..group.events import MemberIdRequested, MemberJoined, MemberRejoined
from ..group.group import Group, GroupState
from ..group.members import Member
from ..values.answers import JoinAnswer
from ..values.kafka_errors import KafkaError
from ..values.requests import JoinRequest
from .admission import new_member_id
from .rebalancing import begin_or_continue
from .removing import drop_pending_id


def give_id(group: Group, event: MemberIdRequested) -> None:
    """Answer with a new member id. A rebalance waits for this client to join, at most for its session timeout."""
    member_id = new_member_id(group, event.request)
    group.members.pending_ids.add(member_id)
    group.set_deadline(DeadlineKind.PENDING_ID, event.request.session_timeout, member_id)
    group.outbox.answer(event.request_id, JoinAnswer(KafkaError.MEMBER_ID_REQUIRED, member_id))


def add_member(group: Group, event: MemberJoined) -> None:
    """Add a new member, and begin a rebalance if none has begun."""
    request = event.request
    drop_pending_id(group, event.member_id)
    member = Member(
        id=event.member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout=request.session_timeout,
        rebalance_timeout=request.rebalance_timeout,
        protocols=request.protocols,
    )
    if group.state is GroupState.PREPARING_REBALANCE and group.generation == 0:
        group.more_members_came = True
    group.members.add(member, request.protocol_type)
    group.park_join(member, event.request_id)
    group.set_deadline(DeadlineKind.SESSION, group.config.new_member_join_timeout, member.id)
    begin_or_continue(group)


def rejoin(group: Group, event: MemberRejoined) -> None:
    """Park the request, and begin a rebalance if none has begun."""
    member = group.members[event.request.member_id]
    update_member(group, member, event.request)
    group.park_join(member, event.request_id)
    begin_or_continue(group)


def rejoin_or_repeat(group: Group, event: MemberRejoined) -> None:
    """Repeat the answer if the request is the same as before: the first answer was lost. If not, begin a rebalance."""
    member = group.members[event.request.member_id]
    if event.request.protocols == member.protocols:
        repeat_answer(group, member, event.request_id)
    else:
        rejoin(group, event)


def rejoin_or_repeat_to_follower(group: Group, event: MemberRejoined) -> None:
    """Begin a rebalance if the leader joins again, even with the same request: it saw that partitions have changed.

    For other members, do the same as `rejoin_or_repeat`.
    """
    if event.request.member_id == group.leader:
        rejoin(group, event)
    else:
        rejoin_or_repeat(group, event)


def repeat_answer(group: Group, member: Member, request_id: int) -> None:
    group.outbox.answer(request_id, group.generation_answer(member))


def update_member(group: Group, member: Member, request: JoinRequest) -> None:
    """Store the settings that a member sends when it joins again."""
    group.members.change_protocols(member, request.protocols)
    member.client_id, member.client_host = request.client_id, request.client_host
    member.session_timeout, member.rebalance_timeout = request.session_timeout, request.rebalance_timeout
