"""The rules for members that join, restart, sync, stay and leave.

Static members that restart keep their place and their assignment, but get a new member id.

The old member id is fenced: its later requests are refused, and also its parked ones.
"""

from __future__ import annotations

from dataclasses import replace

from . import group_events as events
from . import values
from .actions import Incident
from .consumer_protocol import CONSUMER, decode_assignment
from .generation_rules import (
    begin_or_continue,
    begin_rebalance,
    continue_if_all_joined,
    drop_pending_id,
    remove_members,
    store_generation,
)
from .group import Group, GroupState, Member, stored_members
from .outbox import DeadlineKind
from .storage import Result, StoreGeneration, WorkFailed
from .values import KafkaError

# Checks of a request against a group, before it becomes an event of the group. The order of the checks is Kafka's.


def check_member(group: Group, member_id: str, instance_id: str | None) -> KafkaError:
    """Check that a member is in the group. A static member is fenced if another client has taken its instance id."""
    if instance_id is not None:
        current = group.members.static_ids.get(instance_id)
        if current is not None and current != member_id:
            return KafkaError.FENCED_INSTANCE_ID
        if current is None:
            return KafkaError.UNKNOWN_MEMBER_ID
    return KafkaError.NONE if member_id in group.members else KafkaError.UNKNOWN_MEMBER_ID


def check_heartbeat(group: Group, request: values.HeartbeatRequest) -> KafkaError:
    """Check that a heartbeat comes from a member of the current generation."""
    return check_member(group, request.member_id, request.instance_id) or _check_generation(group, request.generation)


def check_sync(group: Group, request: values.SyncRequest) -> KafkaError:
    """Check that a sync request comes from a member of the current generation, and names its protocol."""
    error = check_member(group, request.member_id, request.instance_id) or _check_generation(group, request.generation)
    if error:
        return error
    same_type = request.protocol_type in (None, group.protocol_type)
    same_protocol = request.protocol is None or group.protocol == request.protocol
    return KafkaError.NONE if same_type and same_protocol else KafkaError.INCONSISTENT_GROUP_PROTOCOL


def check_commit(group: Group, request: values.CommitRequest) -> KafkaError:
    """Check that offsets are committed by a member of the current generation, or that the group has no members.

    A commit without a generation comes from a simple consumer, or from an administrator.
    """
    if request.generation < 0 and group.state is GroupState.EMPTY:
        return KafkaError.NONE
    return check_member(group, request.member_id, request.instance_id) or _check_generation(group, request.generation)


def _check_generation(group: Group, generation: int) -> KafkaError:
    return KafkaError.NONE if generation == group.generation else KafkaError.ILLEGAL_GENERATION


def admit(
    group: Group, request_id: int, request: values.JoinRequest
) -> KafkaError | events.MemberIdRequested | events.MemberJoined | events.MemberRejoined | events.StaticMemberReturned:
    """Return the event of the group for a join request, or the error that refuses it."""
    if not _has_room(group, request.member_id):
        return KafkaError.GROUP_MAX_SIZE_REACHED
    if group.config.only_consumers and request.protocol_type != CONSUMER:
        return KafkaError.INCONSISTENT_GROUP_PROTOCOL
    known = group.strategies(request.protocol_type)
    if not group.members.can_admit(request.protocol_type, request.protocols, known):
        return KafkaError.INCONSISTENT_GROUP_PROTOCOL
    if not request.member_id:
        return _admit_new(group, request_id, request)
    if request.member_id in group.members.pending_ids and request.instance_id is None:
        return events.MemberJoined(request_id, request, request.member_id)
    return check_member(group, request.member_id, request.instance_id) or events.MemberRejoined(request_id, request)


def _admit_new(
    group: Group, request_id: int, request: values.JoinRequest
) -> events.MemberIdRequested | events.MemberJoined | events.StaticMemberReturned:
    if request.instance_id is not None:
        if request.instance_id in group.members.static_ids:
            return events.StaticMemberReturned(request_id, request)
    elif request.requires_known_member_id:
        return events.MemberIdRequested(request_id, request)
    return events.MemberJoined(request_id, request, new_member_id(group, request))


def new_member_id(group: Group, request: values.JoinRequest) -> str:
    """Return a new unique id. It begins with the instance id or the client id."""
    return f"{request.client_id if request.instance_id is None else request.instance_id}-{group.outbox.new_id()}"


def _has_room(group: Group, member_id: str) -> bool:
    """True if a member may join. If the group is full during a rebalance, the members that join first are accepted."""
    limit = group.config.max_members
    member = group.members.get(member_id)
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            return (member is not None and member.parked_join is not None) or group.members.joined_count < limit
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            return member is not None or len(group.members) < limit
    return True


# Join requests, in each state of the group.


def give_id(group: Group, event: events.MemberIdRequested) -> None:
    """Answer with a new member id. A rebalance waits for this client to join, at most for its session timeout.

    If very many ids are not in use yet, forget the oldest one. A client that has received its id joins at once.
    """
    member_id = new_member_id(group, event.request)
    if len(group.members.pending_ids) >= group.config.max_members:
        drop_pending_id(group, next(iter(group.members.pending_ids)))
    group.members.pending_ids[member_id] = None
    group.set_deadline(DeadlineKind.PENDING_ID, event.request.session_timeout, member_id)
    group.outbox.answer(event.request_id, values.JoinAnswer(KafkaError.MEMBER_ID_REQUIRED, member_id))


def add_member(group: Group, event: events.MemberJoined) -> None:
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


def rejoin(group: Group, event: events.MemberRejoined) -> None:
    """Park the request, and begin a rebalance if none has begun."""
    member = group.members[event.request.member_id]
    update_member(group, member, event.request)
    group.park_join(member, event.request_id)
    begin_or_continue(group)


def rejoin_or_repeat(group: Group, event: events.MemberRejoined) -> None:
    """Repeat the answer if the request is the same as before: the first answer was lost. If not, begin a rebalance."""
    member = group.members[event.request.member_id]
    if event.request.protocols == member.protocols:
        repeat_answer(group, member, event.request_id)
    else:
        rejoin(group, event)


def rejoin_or_repeat_to_follower(group: Group, event: events.MemberRejoined) -> None:
    """Begin a rebalance if the leader joins again, even with the same request: it saw that partitions have changed.

    For other members, do the same as `rejoin_or_repeat`. If the coordinator assigns, the member that would lead counts
    as the leader. So commits for the generation before are refused, as with Kafka.
    """
    if event.request.member_id == group.members.leader:
        rejoin(group, event)
    else:
        rejoin_or_repeat(group, event)


def repeat_answer(group: Group, member: Member, request_id: int) -> None:
    group.outbox.answer(request_id, group.generation_answer(member))


def update_member(group: Group, member: Member, request: values.JoinRequest) -> None:
    """Store the settings that a member sends when it joins again."""
    group.members.change_protocols(member, request.protocols)
    member.client_id, member.client_host = request.client_id, request.client_host
    member.session_timeout, member.rebalance_timeout = request.session_timeout, request.rebalance_timeout


def replace_and_rebalance(group: Group, event: events.StaticMemberReturned) -> None:
    """Replace the member id. The new join request takes the place of the old one.

    In the state CompletingRebalance, a new rebalance begins, because the leader would assign partitions to the old id.
    """
    _replace(group, event)
    begin_or_continue(group)


def replace_quietly(group: Group, event: events.StaticMemberReturned) -> None:
    """Replace the member id without a rebalance, unless the protocol or the topics change.

    Kafka compares only the protocol. With Kafka, the client itself notices that it got partitions of other topics.

    If the client had to give partitions up, it would have joined again afterwards. The new client does not know that,
    so its arrival begins the rebalance. Otherwise nobody would get these partitions.
    """
    former = group.members[group.members.static_ids[event.request.instance_id or ""]]
    before, had_to_give_up = former.subscription(group.protocol), _had_to_give_up(group, former)
    leader_before = group.leader
    member = _replace(group, event)
    after = member.subscription(group.protocol)
    same_topics = (before and before.topics) == (after and after.topics)
    same_protocol = group.choose_protocol() == group.protocol
    if same_topics and same_protocol and not had_to_give_up:
        _store_replacement(group, member, event, leader_before)
    else:
        begin_or_continue(group)


def answer_replacement(group: Group, event: events.ReplacementStored) -> None:
    """Answer a static member that was replaced without a rebalance.

    If the member is the leader, it must not assign the partitions again. An old client does not know `skip_assignment`.
    Its answer names the old member id as the leader, so the client does not assign partitions.
    """
    member = group.members.get(event.member_id)
    if member is None:
        return
    group.renew_session(member)
    if event.error:
        group.answer_join(member, values.JoinAnswer(event.error))
        return
    answer = group.generation_answer(member)
    if event.skips_assignment:
        answer = replace(answer, skip_assignment=group.leader == member.id)
    else:
        answer = replace(answer, leader=event.leader_before, members=())
    group.answer_join(member, answer)


def _replace(group: Group, event: events.StaticMemberReturned) -> Member:
    request = event.request
    member = group.members[group.members.static_ids[request.instance_id or ""]]
    group.answer_parked(member, KafkaError.FENCED_INSTANCE_ID, member.id)
    group.cancel_deadline(DeadlineKind.SESSION, member.id)
    group.members.change_id(member, new_member_id(group, request))
    update_member(group, member, request)
    group.park_join(member, event.request_id)
    return member


def _had_to_give_up(group: Group, member: Member) -> bool:
    """True if a member listed partitions as its own that were not assigned to it."""
    subscription = member.subscription(group.protocol)
    assigned = decode_assignment(member.assignment) or frozenset()
    return subscription is not None and not subscription.owned <= assigned


def _store_replacement(group: Group, member: Member, event: events.StaticMemberReturned, leader_before: str) -> None:
    member_id, skips = member.id, event.request.supports_skipping_assignment
    work = StoreGeneration(
        group.name,
        group.generation,
        group.protocol_type,
        group.protocol or "",
        group.leader,
        stored_members(group, {each.id: each.assignment for each in group.members}),
    )

    def stored(result: Result) -> None:
        error = result.error if isinstance(result, WorkFailed) else KafkaError.NONE
        group.receive(events.ReplacementStored(member_id, leader_before, skips, error))

    group.outbox.start(work, stored)


# Sync requests are parked until the assignments of the generation are stored. The answers contain the assignments.


def refuse_sync(group: Group, event: events.MemberSynced) -> None:
    """Tell the member that it must join again."""
    group.outbox.answer(event.request_id, values.SyncAnswer(KafkaError.REBALANCE_IN_PROGRESS))


def await_assignment(group: Group, event: events.MemberSynced) -> None:
    """Park the request. If it comes from the leader, store the assignments that it contains."""
    member = group.members[event.request.member_id]
    group.park_sync(member, event.request_id)
    _note_sync(group, event)
    if member.id == group.leader:
        store_generation(group, event.request.assignments)


def give_assignment(group: Group, event: events.MemberSynced) -> None:
    """Answer with the assignment of this generation."""
    member = group.members[event.request.member_id]
    _note_sync(group, event)
    group.outbox.answer(event.request_id, group.assignment_answer(member))
    group.renew_session(member)


def become_stable(group: Group, event: events.GenerationReady) -> None:
    """Answer all parked sync requests with the assignments."""
    if event.generation != group.generation:
        return
    group.cancel_deadline(DeadlineKind.STUCK)
    group.change_state(GroupState.STABLE)
    for member in group.members:
        member.assignment = event.assignments.get(member.id, b"")
        if member.parked_sync is not None:
            group.answer_sync(member, group.assignment_answer(member))
            group.renew_session(member)


def remove_unsynced(group: Group, _event: events.SyncTimedOut) -> None:
    """Remove the members that have not asked for their assignment in time, and rebalance without them."""
    late = [member for member in group.members if member.must_sync]
    group.outbox.report(Incident.SYNC_TIMED_OUT, group.name, *(member.id for member in late))
    remove_members(group, late)
    begin_rebalance(group)


def _note_sync(group: Group, event: events.MemberSynced) -> None:
    group.members[event.request.member_id].must_sync = False
    if not any(member.must_sync for member in group.members):
        group.cancel_deadline(DeadlineKind.SYNC)


# When a member leaves, the other members rebalance.


def leave(group: Group, event: events.MemberLeft) -> None:
    remove_and_rebalance(group, group.members[event.member_id])


def remove_and_rebalance(group: Group, member: Member) -> None:
    """Remove a member, and let the others share its partitions."""
    remove_members(group, [member])
    begin_or_continue(group)


def forget_id(group: Group, event: events.PendingIdDropped) -> None:
    """Forget an id that is not in use."""
    drop_pending_id(group, event.member_id)


def forget_id_and_continue(group: Group, event: events.PendingIdDropped) -> None:
    """Forget an id that is not in use, and continue the rebalance if it waited only for this id."""
    drop_pending_id(group, event.member_id)
    continue_if_all_joined(group)


def drop_group(group: Group, event: events.GroupDropped) -> None:
    """Answer all parked requests with the error. The group is dead from now on."""
    for member in group.members:
        group.answer_parked(member, event.error, member.id)
    group.cancel_all_deadlines()
    group.change_state(GroupState.DEAD)


# Heartbeats, and the sessions that they keep alive.


def confirm(group: Group, event: events.HeartbeatReceived) -> None:
    """Answer without an error."""
    _renew_and_answer(group, event, KafkaError.NONE)


def call_to_join(group: Group, event: events.HeartbeatReceived) -> None:
    """Ask the member to join the rebalance."""
    _renew_and_answer(group, event, KafkaError.REBALANCE_IN_PROGRESS)


def expire_member(group: Group, event: events.MemberExpired) -> None:
    """Remove a member that sent nothing in time, unless its request is parked: it sends no heartbeats while it waits.

    A new member is removed even then: its client may have given up, and would return as another member.
    """
    member = group.members.get(event.member_id)
    if member is None or (member.is_parked and member.has_had_generation):
        return
    group.outbox.report(Incident.MEMBER_EXPIRED, group.name, member.id)
    remove_and_rebalance(group, member)


def _renew_and_answer(group: Group, event: events.HeartbeatReceived, error: KafkaError) -> None:
    group.renew_session(group.members[event.member_id])
    group.outbox.answer(event.request_id, values.HeartbeatAnswer(error))
