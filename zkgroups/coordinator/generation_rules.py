"""The rules of a generation: how it begins, who is removed, commits, and what expires.

The assignments of a generation. The leader or the storage makes them, and members get them after they are stored.

With cooperative members, a partition moves in two generations:

1. The old owner lists the partition when it joins. So the first generation assigns the partition to nobody. The old
   owner sees this, and gives it up.
2. The old owner joins again, without the partition. The second generation assigns it to the new owner.

Offsets and groups that are no longer used are deleted.

Offsets are deleted after the retention time, by Kafka's rules:

- A group without members loses all its offsets. The time counts from the commit, or from the moment when the last
  member left, if that is later.
- A stable group loses the offsets of topics to which no member subscribes.
- A group that rebalances loses no offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..core.znodes.topic_partition import TopicPartition
from . import group_events as events
from . import storage
from .actions import Incident, ReportCommit
from .consumer_protocol import Subscription, decode_assignment, encode_assignment
from .group import Group, GroupState, Member, stored_members
from .outbox import DeadlineKind
from .values import CommitAnswer, CommittedValue, KafkaError, SyncAnswer

# When members are removed, their parked requests are answered, and the storage releases their partitions.


def remove_members(group: Group, members: Iterable[Member], *, release: bool = True) -> None:
    """Remove members. Their parked requests get UNKNOWN_MEMBER_ID, so their clients join as new members."""
    gone = list(members)
    for member in gone:
        group.answer_parked(member, KafkaError.UNKNOWN_MEMBER_ID)
        group.members.remove(member)
        group.cancel_deadline(DeadlineKind.SESSION, member.id)
    holding = tuple(member.id for member in gone if member.has_had_generation)
    if release and holding:
        _release(group, holding)


def drop_pending_id(group: Group, member_id: str) -> None:
    """Forget an id that was given to a new member."""
    group.members.pending_ids.pop(member_id, None)
    group.cancel_deadline(DeadlineKind.PENDING_ID, member_id)


def _release(group: Group, member_ids: tuple[str, ...]) -> None:
    group.leaving.update(member_ids)

    def released(_result: storage.Result) -> None:
        group.leaving.difference_update(member_ids)

    group.outbox.start(storage.ReleaseMembers(group.name, member_ids), released)


def request_assignment(group: Group) -> None:
    """Let the storage assign partitions to all members."""
    generation = group.generation
    members = {
        member.id: storage.PlannedMember(
            member.subscription(group.protocol) or Subscription(frozenset()),
            decode_assignment(member.assignment) or frozenset(),
            member.instance_id,
            member.client_id,
            member.client_host,
        )
        for member in group.members
    }

    def assigned(result: storage.Result) -> None:
        if isinstance(result, storage.AssignmentMade):
            group.receive(events.PartitionsAssigned(generation, result.partitions))
        else:
            group.receive(events.GenerationFailed(generation, _error_of(result)))

    work = storage.PerformAssignment(group.name, generation, group.protocol or "", members)
    group.outbox.start(work, assigned, timeout=_time_for_assigning(group))


def store_assigned(group: Group, event: events.PartitionsAssigned) -> None:
    """Store the generation with the partitions that each member may have now."""
    if event.generation == group.generation:
        owned = {member.id: _owned(group, member.id) for member in group.members}
        allowed = withhold_owned(event.partitions, owned)
        store_generation(group, {member_id: encode_assignment(allowed.get(member_id, ())) for member_id in owned})


def store_generation(group: Group, assignments: Mapping[str, bytes]) -> None:
    """Store the generation. The group becomes stable when this has succeeded."""
    generation = group.generation
    known = {member.id: assignments.get(member.id, b"") for member in group.members}
    work = storage.StoreGeneration(
        group.name, generation, group.protocol_type, group.protocol or "", group.leader, stored_members(group, known)
    )

    def stored(result: storage.Result) -> None:
        if isinstance(result, storage.WorkFailed):
            group.receive(events.GenerationFailed(generation, result.error))
        else:
            group.receive(events.GenerationReady(generation, known))

    group.outbox.start(work, stored, timeout=_time_for_assigning(group))


def withhold_owned(
    assigned: Mapping[str, frozenset[TopicPartition]], owned: Mapping[str, frozenset[TopicPartition]]
) -> dict[str, frozenset[TopicPartition]]:
    """Leave out each partition that another member listed as its own when it joined.

    >>> orders = frozenset({TopicPartition("orders", 0)})
    >>> withhold_owned({"new": orders}, {"old": orders, "new": frozenset()})
    {'new': frozenset()}
    >>> withhold_owned({"old": orders}, {"old": orders, "new": frozenset()}) == {"old": orders}
    True
    """
    given = frozenset().union(*assigned.values())
    owners: dict[TopicPartition, set[str]] = {}
    for member_id, partitions in owned.items():
        for at in partitions & given:  # a member may list very many
            owners.setdefault(at, set()).add(member_id)
    return {
        member_id: frozenset(at for at in partitions if owners.get(at, {member_id}) == {member_id})
        for member_id, partitions in assigned.items()
    }


def _owned(group: Group, member_id: str) -> frozenset[TopicPartition]:
    subscription = group.members[member_id].subscription(group.protocol)
    return frozenset() if subscription is None else subscription.owned


def _error_of(result: storage.Result) -> KafkaError:
    return result.error if isinstance(result, storage.WorkFailed) else KafkaError.COORDINATOR_NOT_AVAILABLE


def _time_for_assigning(group: Group) -> float:
    return max(group.config.storage_timeout, group.members.rebalance_timeout)


# Offset commits of members and of simple consumers.


def refuse_commit(group: Group, event: events.CommitReceived) -> None:
    """The member knows the generation, but not its assignment: it cannot have processed anything."""
    errors = dict.fromkeys(event.request.offsets, KafkaError.REBALANCE_IN_PROGRESS)
    group.outbox.answer(event.request_id, CommitAnswer(errors))


def commit(group: Group, event: events.CommitReceived) -> None:
    """Store the offsets, and answer with the result. Like a heartbeat, a commit renews the session of the member.

    During a rebalance, members may commit until the next generation starts: clients do so when partitions are revoked.
    """
    request = event.request
    if (member := group.members.get(request.member_id)) is not None:
        group.renew_session(member)
    limit = group.config.max_offset_metadata
    now = group.outbox.time
    kept = {
        at: CommittedValue(each.offset, each.metadata, each.leader_epoch, now)
        for at, each in request.offsets.items()
        if len(each.metadata) <= limit
    }

    def stored(result: storage.Result) -> None:
        errors = dict.fromkeys(request.offsets, KafkaError.OFFSET_METADATA_TOO_LARGE)
        failed = result.errors if isinstance(result, storage.OffsetsStored) else {}
        everywhere = result.error if isinstance(result, storage.WorkFailed) else KafkaError.NONE
        errors |= {at: failed.get(at, everywhere) for at in kept}
        group.outbox.answer(event.request_id, CommitAnswer(errors))
        done = {at: each for at, each in kept.items() if not errors[at]}
        group.outbox.report_commit(ReportCommit(group.name, request.member_id, request.generation, done))

    if not kept:
        stored(storage.OffsetsStored())
        return
    work = storage.StoreOffsets(group.name, request.member_id, request.generation, kept)
    group.outbox.start(work, stored)


def schedule_cleanup(group: Group) -> None:
    """Set the time of the next check: after the interval, or earlier if the group is due to be removed earlier."""
    delay = group.config.cleanup_interval
    if group.state is GroupState.EMPTY:
        until_timeout = group.since + group.config.empty_group_timeout - group.outbox.time
        delay = min(delay, until_timeout) if until_timeout > 0 else delay
    group.set_deadline(DeadlineKind.CLEANUP, delay)


def expired_offsets(group: Group) -> storage.ExpireOffsets:
    """Return the work that deletes the offsets whose retention time has elapsed, and counts the others."""
    retention = group.config.offset_retention
    limit = None if retention is None else group.outbox.time - retention
    keep: frozenset[str] = frozenset()
    match group.state:
        case GroupState.EMPTY:
            if limit is not None and group.protocol_type and group.since > limit:
                limit = None
        case GroupState.STABLE:
            limit, keep = (None, keep) if group.topics is None else (limit, group.topics)
        case _:
            limit = None
    return storage.ExpireOffsets(group.name, limit, keep)


def is_unused(group: Group, expired: storage.OffsetsExpired) -> bool:
    """True if the group has no offsets, and had no members for so long that it must be removed."""
    empty_for = group.outbox.time - group.since
    return (
        group.state is GroupState.EMPTY
        and not group.members.pending_ids
        and not expired.remaining
        and empty_for >= group.config.empty_group_timeout
    )


def report_expiry(group: Group) -> None:
    group.outbox.report(Incident.GROUP_EXPIRED, group.name)


# A rebalance begins, waits until all members have joined or until a deadline, and starts a generation.


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


def end_initial_delay(group: Group, _event: events.InitialDelayElapsed) -> None:
    """Start the first generation. If members have joined during the delay, wait once more instead.

    All delays together are at most as long as the longest rebalance timeout.
    """
    if group.more_members_came and group.initial_delay_left > 0:
        delay = min(group.config.initial_rebalance_delay, group.initial_delay_left)
        group.initial_delay_left -= delay
        group.more_members_came = False
        group.set_deadline(DeadlineKind.INITIAL_DELAY, delay)
    else:
        end_joining(group, events.JoinTimedOut())


def end_joining(group: Group, _event: events.JoinTimedOut) -> None:
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


def begin_on_request(group: Group, event: events.RebalanceRequested) -> None:
    """Begin a rebalance because something outside the group has changed."""
    begin_or_continue(group)
    limit_joining(group, event)


def limit_joining(group: Group, event: events.RebalanceRequested) -> None:
    """Shorten the time that members have to join."""
    if event.within is not None:
        group.shorten_deadline(DeadlineKind.JOIN, event.within)


def end_stuck_rebalance(group: Group, _event: events.RebalanceStuck) -> None:
    """Remove all members: each of them must join as a new member."""
    group.outbox.report(Incident.STUCK_REBALANCE_ENDED, group.name, *(member.id for member in group.members))
    _remove_everyone(group, release=True)


def lose_members(group: Group, _event: events.MembersLost) -> None:
    """Remove all members. The storage has lost them already, so it has nothing to release."""
    _remove_everyone(group, release=False)


def fail_generation(group: Group, event: events.GenerationFailed) -> None:
    """Answer the parked sync requests with the error, and let the members join again."""
    if event.generation == group.generation:
        group.outbox.report(Incident.GENERATION_FAILED, group.name)
        _answer_syncs(group, event.error)
        begin_rebalance(group)


def _begin_initial_delay(group: Group) -> None:
    delay = group.config.initial_rebalance_delay
    if delay == 0:
        end_joining(group, events.JoinTimedOut())
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
    group.protocol = group.choose_protocol()
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

    def stored(_result: storage.Result) -> None:
        """Ignore the result: no request waits for it, and the group has no members that depend on it."""

    group.outbox.start(storage.StoreGeneration(group.name, group.generation, group.protocol_type, "", "", {}), stored)
