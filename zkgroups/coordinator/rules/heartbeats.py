"""Heartbeats, and the sessions that they keep alive."""

from __future__ import annotations

from ..actions import Incident
from ..group.events import HeartbeatReceived, MemberExpired
from ..group.group import Group
from ..values.answers import HeartbeatAnswer
from ..values.kafka_errors import KafkaError
from .leaving import remove_and_rebalance


def confirm(group: Group, event: HeartbeatReceived) -> None:
    """Answer without an error."""
    _renew_and_answer(group, event, KafkaError.NONE)


def call_to_join(group: Group, event: HeartbeatReceived) -> None:
    """Ask the member to join the rebalance."""
    _renew_and_answer(group, event, KafkaError.REBALANCE_IN_PROGRESS)


def expire_member(group: Group, event: MemberExpired) -> None:
    """Remove a member that sent nothing in time, unless its request is parked: it sends no heartbeats while it waits.

    A new member is removed even then: its client may have given up, and would return as another member.
    """
    member = group.members.get(event.member_id)
    if member is None or (member.is_parked and member.has_had_generation):
        return
    group.outbox.report(Incident.MEMBER_EXPIRED, group.name, member.id)
    remove_and_rebalance(group, member)


def _renew_and_answer(group: Group, event: HeartbeatReceived, error: KafkaError) -> None:
    group.renew_session(group.members[event.member_id])
    group.outbox.answer(event.request_id, HeartbeatAnswer(error))
