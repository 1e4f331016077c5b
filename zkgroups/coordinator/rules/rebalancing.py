"""A rebalance begins, waits until all members have joined or until a deadline, and starts a generation."""

from __future__ import annotations

from ..actions import Incident
from ..deadlines import DeadlineKind
from ..group.events import (
    GenerationFailed,
    InitialDelayElapsed,
    JoinTimedOut,
    MembersLost,
    RebalanceRequested,
    RebalanceStuck,
)
from ..group.group import Group, GroupState
from ..storage.work import Result, StoreGeneration
from ..values.answers import SyncAnswer
from ..values.kafka_errors import KafkaError
from .assigning import request_assignment
from .expiry import schedule_cleanup
from .removing import drop_pending_id, remove_members


def begin_rebalance(group: Group) -> None:
    """Begin a rebalance. Parked sync requests are answered: their members must join again."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        _answer_syncs(group, KafkaError.REBALANCE_IN_PROGRESS)
    group.cancel_deadline(DeadlineKind.SYNC)
    if not group.has_deadline(DeadlineKind.STUCK):
        limit = max(group.config.stuck_rebalance_timeout, 2 * group.members.rebalance_timeout)
        group.set_deadline(DeadlineKind.STUCK, limit)
    was_empty = group.state is GroupState.EMPTY
    group.change_state(GroupState.PREPARING_REBALANCE)
    if was_empty:
        _begin_initial_delay(group)
    else:
        group.set_deadline(DeadlineKind.JOIN, group.members.rebalance_timeout)
        continue_if_all_joined(group)


def begin_or_continue(group: Group) -> None:
    """Begin a rebalance. If one has begun already, start the generation if all members have joined."""
    if group.state is GroupState.PREPARING_REBALANCE:
        continue_if_all_joined(group)
    else:
        begin_rebalance(group)


def continue_if_all_joined(group: Group) -> None:
    """Start the generation if all members have joined and the initial delay is over."""
    if not group.has_deadline(DeadlineKind.INITIAL_DELAY) and group.members.all_have_joined:
        _start_generation(group)


def end_initial_delay(group: Group, _event: InitialDelayElapsed) -> None:
    """Start the first generation. If members have joined during the delay, wait once more instead.

    All delays together are at most as long as the longest rebalance timeout.
    """
    if group.more_members_came and group.initial_delay_left > 0:
        delay = min(group.config.initial_rebalance_delay, group.initial_delay_left)
        group.initial_delay_left -= delay
        group.more_members_came = False
        group.set_deadline(DeadlineKind.INITIAL_DELAY, delay)
    else:
        end_joining(group, JoinTimedOut())


def end_joining(group: Group, _event: JoinTimedOut) -> None:
    """Remove the dynamic members that have not joined, and start the generation without them.

    Static members stay until their sessions expire. If no member at all has joined, wait once more.
    """
    late = [member for member in group.members if member.parked_join is None and not member.is_static]
    if late:
        group.outbox.report(Incident.JOIN_TIMED_OUT, group.name, *(member.id for member in late))
        remove_members(group, late)
    if len(group.members) and not group.members.joined_count:
        group.set_deadline(DeadlineKind.JOIN, max(group.members.rebalance_timeout, group.config.min_session_timeout))
    else:
        _start_generation(group)


def begin_on_request(group: Group, event: RebalanceRequested) -> None:
    """Begin a rebalance because something outside the group has changed."""
    begin_or_continue(group)
    limit_joining(group, event)


def limit_joining(group: Group, event: RebalanceRequested) -> None:
    """Shorten the time that members have to join."""
    if event.within is not None:
        group.shorten_deadline(DeadlineKind.JOIN, event.within)


def end_stuck_rebalance(group: Group, _event: RebalanceStuck) -> None:
    """Remove all members: each of them must join as a new member."""
    group.outbox.report(Incident.STUCK_REBALANCE_ENDED, group.name, *(member.id for member in group.members))
    _remove_everyone(group, release=True)


def lose_members(group: Group, _event: MembersLost) -> None:
    """Remove all members. The storage has lost them already, so it has nothing to release."""
    _remove_everyone(group, release=False)


def fail_generation(group: Group, event: GenerationFailed) -> None:
    """Answer the parked sync requests with the error, and let the members join again."""
    if event.generation == group.generation:
        group.outbox.report(Incident.GENERATION_FAILED, group.name)
        _answer_syncs(group, event.error)
        begin_rebalance(group)


def _begin_initial_delay(group: Group) -> None:
    delay = group.config.initial_rebalance_delay
    if delay == 0:
        end_joining(group, JoinTimedOut())
        return
    group.more_members_came = False
    group.initial_delay_left = max(group.members.rebalance_timeout - delay, 0.0)
    group.set_deadline(DeadlineKind.INITIAL_DELAY, delay)


def _answer_syncs(group: Group, error: KafkaError) -> None:
    for member in group.members:
        if member.parked_sync is not None:
            group.answer_sync(member, SyncAnswer(error))
            group.renew_session(member)


def _remove_everyone(group: Group, *, release: bool) -> None:
    for member_id in tuple(group.members.pending_ids):
        drop_pending_id(group, member_id)
    remove_members(group, group.members, release=release)
    group.cancel_deadline(DeadlineKind.SYNC)
    if group.state is not GroupState.PREPARING_REBALANCE:
        group.change_state(GroupState.PREPARING_REBALANCE)
    _start_generation(group)


def _start_generation(group: Group) -> None:
    group.cancel_deadline(DeadlineKind.JOIN)
    group.cancel_deadline(DeadlineKind.INITIAL_DELAY)
    group.generation += 1
    if not len(group.members):
        _become_empty(group)
        return
    group.members.elect_joined_leader()
    group.protocol = group.members.choose_protocol(group.config.preferred_protocols)
    group.topics = group.subscribed_topics()
    group.change_state(GroupState.COMPLETING_REBALANCE)
    for member in group.members:
        group.answer_join(member, group.generation_answer(member))
        group.renew_session(member)
        member.has_had_generation = member.must_sync = True
    group.set_deadline(DeadlineKind.SYNC, group.members.rebalance_timeout)
    if group.coordinator_assigns:
        request_assignment(group)


def _become_empty(group: Group) -> None:
    group.cancel_deadline(DeadlineKind.STUCK)
    group.protocol = group.topics = None
    group.change_state(GroupState.EMPTY)
    schedule_cleanup(group)

    def stored(_result: Result) -> None:
        """Ignore the result: no request waits for it, and the group has no members that depend on it."""

    group.outbox.start(StoreGeneration(group.name, group.generation, group.protocol_type, "", "", {}), stored)
