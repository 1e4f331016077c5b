"""One group of a gateway: its members in ZooKeeper, beside the members of other clients.

`assign` prepares a generation, in this order:

1. Deregister the members that have left.
2. If other clients take part, release the partitions that they will get, so that they can claim them at once.
3. Register all new members in one transaction, so that other clients rebalance only once.
4. Read all members, subscriptions and partitions, as of one moment, and compute the shares.
5. Release the partitions that are no longer in the share of their member. A cooperative client still works on the
   partitions that it listed when it joined, so do not release these.
6. Claim the shares. If other clients still hold some of the partitions, try again when one is released or when the
   group changes. Stop when all are claimed, or when `claim_patience` has elapsed.

The result contains only claimed partitions. So a client never gets a partition before its member owns it in ZooKeeper.
The partitions that are missing after `claim_patience` follow in a later generation, when their owners have released
them.

Later, `check` asks the coordinator for a rebalance when another client causes a change of the shares.

If the group is moved to the brokers, or the gateway ends, the members join a last rebalance, before which they commit.
Then all are deregistered, including late ones.

The work queue of the group calls all methods, one at a time, unless a docstring says otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...coordinator import storage
from ...coordinator.actions import Event, GroupMoved, MembershipLost, RebalanceNeeded, WorkFinished
from ...coordinator.consumer_protocol import decode_assignment
from ...coordinator.values import KafkaError
from ...core.rebalance.shared_plan import Roster
from ...core.znodes.group_description import RegisteredInstance
from ...core.znodes.paths import BROKER_TOPICS
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import Dialect, Topic
from ...deadline import Deadline
from ...exceptions import (
    GroupMigratedError,
    InvalidOptionError,
    NotRegisteredError,
    SessionLostError,
    ZkgroupsException,
)
from ...zookeeper.group import Consumergroup, owners_elsewhere
from ...zookeeper.reading.group_reader import read_topics
from ...zookeeper.reading.observers import GroupObserver
from ...zookeeper.session.session import context_of
from .elections import Elections
from .members import GatewayMember, GatewayMembers, Shares, compute_shares, has_foreign
from .offsets import Values, commit_as_member, commit_without_member, kafka_error_of, may_try_again, refused

# The settings of a gateway's groups in ZooKeeper.


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings for all groups of a gateway. Durations are in seconds.

    - `foreign_assignor`: the strategy for which the Scala members are configured: `range` or `roundrobin`.
    - `claim_patience`: how long a generation waits for partitions that other clients still hold. After that it begins
      without them.
    - `join_limit`: how long members may take to join a rebalance while another client waits for their partitions. Then
      they are removed. A Scala member waits for a partition with four attempts, two seconds apart by default.
    - `release_after`: how long a gateway remains the coordinator of a group that has no members and is not used.
    - `reconcile_every`: the time between two checks of each group, in case an event of ZooKeeper was missed.
    """

    foreign_assignor: str = "range"
    claim_patience: float = 5.0
    join_limit: float = 5.0
    release_after: float = 60.0
    reconcile_every: float = 10.0

    def __post_init__(self) -> None:
        if self.foreign_assignor not in ("range", "roundrobin"):
            reason = "it must be range or roundrobin, the strategies of other clients"
            raise InvalidOptionError("foreign_assignor", self.foreign_assignor, reason)
        for option in ("claim_patience", "join_limit", "release_after", "reconcile_every"):
            if not getattr(self, option) > 0:
                raise InvalidOptionError(option, getattr(self, option), "must be above 0")


log = logging.getLogger("zkgroups.gateway")

_NO_GENERATION: Final = -1


@dataclass(slots=True)
class _Assigning:
    """An assignment in progress."""

    work_id: int
    work: storage.PerformAssignment
    patience: Deadline
    deadline: Deadline
    """When to give up if no ZooKeeper server answers."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """The last assignment: its shares, and the partitions of these shares that other clients held."""

    work: storage.PerformAssignment
    shares: Shares
    missing: Mapping[TopicPartition, str]
    frees: int
    """How many partitions had become free before the owners were read for this assignment."""


class GatewayGroup:
    """The members of one group. `send` passes events to the coordinator, `wake` asks for a call of `check`.

    `must_leave` returns whether the members must leave: the group has a route to the brokers, or the gateway ends.
    """

    def __init__(
        self,
        group: Consumergroup,
        settings: GroupSettings,
        elections: Elections,
        must_leave: Callable[[], bool],
        *,
        send: Callable[[Event], object],
        wake: Callable[[], object],
    ) -> None:
        self.group = group
        self.members = GatewayMembers(group)
        self.generation = _NO_GENERATION
        self._context = context_of(group)
        self._settings = settings
        self._elections = elections
        self._not_found: frozenset[str] = frozenset()
        """Subscribed topics that do not exist. They were logged."""
        self._must_leave = must_leave
        self._last_joins: Deadline | None = None
        """When to remove members that must leave."""
        self._send = send
        self._wake = wake
        self._observer: GroupObserver | None = None
        self._assigning: _Assigning | None = None
        self._planned: _Planned | None = None
        self._frees = 0
        """How many times a partition that another client held has become free. Kazoo's thread counts."""
        self.session_id: int | None = None
        """The session of the members; None if no member is registered. The session monitor clears it."""

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def is_unfinished(self) -> bool:
        """True if `check` should be called again soon. Any thread may read it."""
        return self._assigning is not None or self.members.leaving or (len(self.members) > 0 and self._must_leave())

    def assign(self, work_id: int, work: storage.PerformAssignment) -> None:
        """Start an assignment. Its result is sent as an event when it is complete."""
        self._give_up_assigning()
        self.generation = work.generation  # cooperative clients may commit before it is stored
        self.members.set(work.members)
        patience, deadline = Deadline(self._settings.claim_patience), self._context.deadline()
        self._assigning = _Assigning(work_id, work, patience, deadline)
        self._continue_assigning()

    def _continue_assigning(self) -> None:
        assigning = self._assigning
        if assigning is None:
            return
        try:
            planned = self._advance(assigning.work)
        except NotRegisteredError as error:
            log.warning("registering member %s of group %s again: its registration is gone", error.instance, self.name)
            if assigning.patience.passed:
                self._finish(storage.WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE))
            self._wake()
            return
        except Exception as error:
            if may_try_again(error, self._context.session, assigning.deadline):
                self._wake()
                return
            if isinstance(error, GroupMigratedError) and not assigning.patience.passed:
                return  # wait: after an error, clients would retry at once until the migration has ended
            self._planned = None
            self._finish(storage.WorkFailed(kafka_error_of(error)))
            return
        self._planned = planned
        if planned is None:
            if assigning.patience.passed:  # until then, wait: after an error, clients would retry at once
                self._finish(storage.WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE))
            return
        if not planned.missing or assigning.patience.passed:
            owned = {member.instance.id: member.owned for member in self.members}
            claimed = {id: share & owned.get(id, frozenset()) for id, share in planned.shares.own.items()}
            ids = self.members.member_ids()
            self._finish(storage.AssignmentMade({ids[id]: share for id, share in claimed.items()}))

    def _finish(self, result: storage.Result) -> None:
        if self._assigning is not None:
            work_id, self._assigning = self._assigning.work_id, None
            self._send(WorkFinished(work_id, result))

    def _give_up_assigning(self) -> None:
        """Give up an assignment: the members have changed, or a later generation has begun."""
        self._finish(storage.WorkFailed(KafkaError.REBALANCE_IN_PROGRESS))

    def _advance(self, work: storage.PerformAssignment) -> _Planned | None:
        """Register, release and claim everything that is possible now. None if the members must leave."""
        frees = self._frees
        self._require_one_session()
        if self._must_leave():
            self.members.drop_all()
        self.members.deregister_leaving()
        if self._must_leave():
            return None
        observer = self._observe()
        if self.members.some_must_register:
            self._release_for_others(observer.read_roster(), work)
            self.members.register(self._elections.fence(self.name))
        self.session_id = next(iter(self.members.session_ids), None)
        self.members.resolve_doubts()
        roster = observer.read_roster()
        self._require_registered(roster)
        self._report_not_found(roster)
        shares = self._shares(roster, work)
        self.members.release_surplus(shares.own)
        elsewhere = self._owned_elsewhere(roster, shares)
        free = {id: share - elsewhere.keys() for id, share in shares.own.items()}
        missing = elsewhere | self.members.claim(free, (each.id for each in roster.instances))
        observer.watch_owners(missing)
        return _Planned(work, shares, missing, frees)

    def _report_not_found(self, roster: Roster) -> None:
        """Log subscribed topics without partitions: their members get nothing, and no answer tells them why."""
        wanted = {topic for member in self.members for topic in member.registration().streams}
        missing = frozenset(wanted - roster.partitions.keys())
        if missing - self._not_found:
            source = self._context.topics
            are_outside = source is not None and source(()) is not None
            where = "the brokers have no topics" if are_outside else f"{BROKER_TOPICS} does not have"
            log.warning("members of group %s wait for topics: %s %s", self.name, where, ", ".join(sorted(missing)))
        self._not_found = missing

    def _owned_elsewhere(self, roster: Roster, shares: Shares) -> dict[TopicPartition, str]:
        """Return the partitions that pykafka members own, with the paths of their owner nodes."""
        if Dialect.PYKAFKA not in roster.dialects:
            return {}
        owners = owners_elsewhere(self.group, (at for share in shares.own.values() for at in share))
        return {at: owner.path for at, owner in owners.items()}

    def _shares(self, roster: Roster, work: storage.PerformAssignment) -> Shares:
        own = self.members.by_instance_id()
        return compute_shares(roster, own, work.strategy, self._settings.foreign_assignor)

    def _release_for_others(self, roster: Roster, work: storage.PerformAssignment) -> None:
        """Release the partitions that other clients will get when all members are registered."""
        if not has_foreign(roster, self.members.by_instance_id()):
            return
        expected = {member.instance.id: member.registration() for member in self.members}
        others = [each for each in roster.instances if each.id not in expected]
        ours = [RegisteredInstance(id, 1, registration) for id, registration in expected.items()]
        unknown = {topic for each in expected.values() for topic in each.streams} - roster.partitions.keys()
        topics = [each for each in read_topics(self._context, sorted(unknown)) if isinstance(each, Topic)]
        partitions = {**roster.partitions, **{topic.name: topic.partitions for topic in topics}}
        predicted = replace(roster, instances=[*others, *ours], partitions=partitions)
        self.members.release_surplus(self._shares(predicted, work).own)

    def _require_one_session(self) -> None:
        """Raise `SessionLostError` if members were registered in a session that has expired."""
        self._context.session.require_id(self._context.deadline())
        if self._is_session_lost:
            self._report_loss()
            raise SessionLostError(
                f"the session of the members of group {self.name!r} has expired: they must join again"
            )

    @property
    def _is_session_lost(self) -> bool:
        return bool(self.members.session_ids - {self._context.session.id})

    def _report_loss(self) -> None:
        self.drop_members()
        self._send(loss_of(self.name, self._elections))

    def _require_registered(self, roster: Roster) -> None:
        """Raise if a registration was deleted, or has another session."""
        sessions = {each.id: each.session for each in roster.instances}
        for member in self.members:
            if sessions.get(member.instance.id) != member.instance.session_id:
                member.instance.check_registered()  # the instance notices the loss, and `register` registers it again
                raise NotRegisteredError(self.name, member.instance.id)

    def _observe(self) -> GroupObserver:
        if self._observer is None:
            self._observer = GroupObserver(self.group.paths, self._context, self._note_change)
        return self._observer

    def _note_change(self, freed: TopicPartition | None) -> None:
        """Note a change. Called on kazoo's threads."""
        if freed is not None:
            self._frees += 1
        self._wake()

    def store_generation(self, work: storage.StoreGeneration) -> storage.Result:
        """Begin a generation. Its members must own their assigned partitions, and release surplus ones."""
        self._give_up_assigning()
        for member_id, stored in work.members.items():
            self.members.rename(member_id, stored.static_id)
        self.members.keep(work.members)
        for member_id, stored in work.members.items():
            if not self._take_over(member_id, stored):
                return storage.WorkFailed(KafkaError.REBALANCE_IN_PROGRESS)
        self.generation = work.generation
        self.members.deregister_leaving()
        if not work.members:
            self.stop_observing()
        return storage.GenerationStored()

    def _take_over(self, member_id: str, stored: storage.StoredMember) -> bool:
        """Release partitions that are not assigned to a member. Return False if it does not own all assigned ones."""
        member = self.members.get(member_id)
        assigned = decode_assignment(stored.assignment)
        if member is None or assigned is None or not assigned <= member.owned or not member.instance.session_alive:
            return False
        self.members.release(member, member.owned - assigned - stored.still_owned)
        return True

    def remove(self, work: storage.ReleaseMembers) -> storage.Result:
        """Deregister members that have left. A deregistration that fails is retried later."""
        self._give_up_assigning()
        self.members.drop(work.members)
        self.members.deregister_leaving()
        return storage.MembersReleased()

    def stop_observing(self) -> None:
        """Close the watches of a group without members."""
        self._planned = None
        if self._observer is not None:
            self._observer.close()
            self._observer = None

    def reconcile(self) -> None:
        """Check the group periodically: an event may have been missed, or a partition taken away."""
        before = [member.owned for member in self.members]
        try:
            for member in self.members:
                member.instance.forget_lost_claims()
        except ZkgroupsException as error:
            log.info("could not read the owners of group %s, trying again later: %s", self.name, error)
        if before != [member.owned for member in self.members]:
            self.rebalance()
        self.check()

    def check(self) -> None:
        """Continue an assignment, or ask for a rebalance if other clients have caused a change of the shares."""
        try:
            if self._must_leave():
                self._let_leave()
            else:
                self._last_joins = None
            if self._assigning is not None:
                self._continue_assigning()
            elif self.members.leaving:
                self.members.deregister_leaving()
            if self._assigning is None and self._planned is not None and len(self.members) and not self._must_leave():
                self._compare(self._planned)
        except ZkgroupsException as error:
            log.info("could not check group %s, trying again later: %s", self.name, error)

    def _let_leave(self) -> None:
        """Let the members commit and join once more, if none is being assigned now. Then remove the late ones."""
        if self._assigning is not None or not len(self.members):
            return
        if self._last_joins is None:
            self._last_joins = Deadline(2 * self._settings.join_limit)
            self.rebalance(within=self._settings.join_limit)
        elif self._last_joins.passed:
            log.warning("removed the members of group %s that did not join in time", self.name)
            self._report_loss()

    def _compare(self, planned: _Planned) -> None:
        self._require_one_session()
        roster = self._observe().read_roster()
        shares = self._shares(roster, planned.work)
        held = frozenset(at for member in self.members for at in member.owned)
        others_wait = bool(shares.foreign & held)
        try:
            self._require_registered(roster)
        except NotRegisteredError as error:
            log.warning(
                "another client has deleted the registration of member %s of group %s", error.instance, self.name
            )
        else:
            if shares == planned.shares and not (self._frees > planned.frees and planned.missing):
                return
            if shares.own.keys() != planned.shares.own.keys() and not others_wait:
                return  # a member has left: the coordinator knows that, and has begun a rebalance
        self._planned = replace(planned, shares=shares, missing={})
        self.rebalance(within=self._settings.join_limit if others_wait else None)

    def rebalance(self, *, within: float | None = None) -> None:
        """Ask the coordinator for a rebalance. `within` limits the time to join, because another client waits."""
        self._send(RebalanceNeeded(self.name, within))

    def store_offsets(self, work: storage.StoreOffsets) -> storage.Result:
        """Commit offsets of a member of this generation, or of a simple consumer."""
        if work.generation < 0:
            return commit_without_member(self.group, work.offsets, self._elections.fence(self.name))
        if (member := self.members.get(work.member_id)) is None:
            return refused(work.offsets, KafkaError.UNKNOWN_MEMBER_ID)
        if work.generation != self.generation:
            return refused(work.offsets, KafkaError.ILLEGAL_GENERATION)
        if self._is_session_lost:
            self._report_loss()
            return refused(work.offsets, KafkaError.UNKNOWN_MEMBER_ID)
        try:
            return self._commit(member, work.offsets)
        except SessionLostError:
            self._report_loss()
            return refused(work.offsets, KafkaError.UNKNOWN_MEMBER_ID)

    def _commit(self, member: GatewayMember, offsets: Values) -> storage.Result:
        """Commit what the member owns. Ask for a rebalance if partitions were taken away, even if the rest fails."""
        owned = member.owned
        try:
            return commit_as_member(member, offsets)
        finally:
            if owned - member.owned:
                self.rebalance()

    # The end

    def drop_members(self) -> None:
        """Remove all members: their session has expired, or may have expired."""
        self.session_id = None
        self._give_up_assigning()
        self.stop_observing()
        self.members.drop_all()

    def leave(self) -> None:
        """Deregister all members, because the gateway ends. If that fails, they end with the session."""
        self.drop_members()
        try:
            self.members.deregister_leaving()
        except ZkgroupsException as error:
            log.info("could not deregister the members of group %s: %s", self.name, error)


def loss_of(group: str, elections: Elections) -> Event:
    """Return the event after which no client is a member of the group any more. The group may have moved."""
    return GroupMoved(group) if elections.are_held else MembershipLost(group)
