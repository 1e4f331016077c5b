"""Sync requests are parked until the assignments of the generation are stored. The answers contain the assignments."""

from __future__ import annotations

from ..actions import Incident
from ..deadlines import DeadlineKind
from ..group.events import GenerationReady, MemberSynced, SyncTimedOut
from ..group.group import Group, GroupState
from ..values.answers import SyncAnswer
from ..values.kafka_errors import KafkaError
from .assigning import store_generation
from .rebalancing import begin_rebalance
from .removing import remove_members


def refuse_sync(group: Group, event: MemberSynced) -> None:
    """Tell the member that it must join again."""
    group.outbox.answer(event.request_id, SyncAnswer(KafkaError.REBALANCE_IN_PROGRESS))


def await_assignment(group: Group, event: MemberSynced) -> None:
    """Park the request. If it comes from the leader, store the assignments that it contains."""
    member = group.members[event.request.member_id]
    group.park_sync(member, event.request_id)
    _note_sync(group, event)
    if member.id == group.leader:
        store_generation(group, event.request.assignments)


def give_assignment(group: Group, event: MemberSynced) -> None:
    """Answer with the assignment of this generation."""
    member = group.members[event.request.member_id]
    _note_sync(group, event)
    group.outbox.answer(event.request_id, group.assignment_answer(member))
    group.renew_session(member)


def become_stable(group: Group, event: GenerationReady) -> None:
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


def remove_unsynced(group: Group, _event: SyncTimedOut) -> None:
    """Remove the members that have not asked for their assignment in time, and rebalance without them."""
    late = [member for member in group.members if member.must_sync]
    group.outbox.report(Incident.SYNC_TIMED_OUT, group.name, *(member.id for member in late))
    remove_members(group, late)
    begin_rebalance(group)


def _note_sync(group: Group, event: MemberSynced) -> None:
    group.members[event.request.member_id].must_sync = False
    if not any(member.must_sync for member in group.members):
        group.cancel_deadline(DeadlineKind.SYNC)
