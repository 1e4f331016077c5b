"""Static members that restart keep their place and their assignment, but get a new member id.

The old member id is fenced: its later requests are refused, and also its parked ones.
"""

from __future__ import annotations

from dataclasses import replace

from ..deadlines import DeadlineKind
from ..group.events import ReplacementStored, StaticMemberReturned
from ..group.group import Group
from ..group.members import Member
from ..group.stored_members import stored_members
from ..storage.work import Result, StoreGeneration, WorkFailed
from ..values.answers import JoinAnswer
from ..values.consumer_protocol import decode_assignment
from ..values.kafka_errors import KafkaError
from .admission import new_member_id
from .joining import update_member
from .rebalancing import begin_or_continue


def replace_and_rebalance(group: Group, event: StaticMemberReturned) -> None:
    """Replace the member id. The new join request takes the place of the old one.

    In the state CompletingRebalance, a new rebalance begins, because the leader would assign partitions to the old id.
    """
    _replace(group, event)
    begin_or_continue(group)


def replace_quietly(group: Group, event: StaticMemberReturned) -> None:
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
    same_protocol = group.members.choose_protocol(group.config.preferred_protocols) == group.protocol
    if same_topics and same_protocol and not had_to_give_up:
        _store_replacement(group, member, event, leader_before)
    else:
        begin_or_continue(group)


def answer_replacement(group: Group, event: ReplacementStored) -> None:
    """Answer a static member that was replaced without a rebalance.

    If the member is the leader, it must not assign the partitions again. An old client does not know `skip_assignment`.
    Its answer names the old member id as the leader, so the client does not assign partitions.
    """
    member = group.members.get(event.member_id)
    if member is None:
        return
    group.renew_session(member)
    if event.error:
        group.answer_join(member, JoinAnswer(event.error))
        return
    answer = group.generation_answer(member)
    if event.skips_assignment:
        answer = replace(answer, skip_assignment=group.leader == member.id)
    else:
        answer = replace(answer, leader=event.leader_before, members=())
    group.answer_join(member, answer)


def _replace(group: Group, event: StaticMemberReturned) -> Member:
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


def _store_replacement(group: Group, member: Member, event: StaticMemberReturned, leader_before: str) -> None:
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
        group.receive(ReplacementStored(member_id, leader_before, skips, error))

    group.outbox.start(work, stored)
