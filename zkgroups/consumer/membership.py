"""The place of a member in its group: the actions of the rebalance, carried out in ZooKeeper.

Every call may raise an error, and waits no longer than its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ..core.rebalance.members import Assignor
from ..core.rebalance.planner_election import AwaitedPlan
from ..core.rebalance.release_signals import ReleaseSignals
from ..core.rebalance.roster import Roster
from ..core.session_lifetime import PROOF_LIFETIME
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CurrentOffset, Dialect, Owner, Registration, UnreadableNode
from ..deadline import Deadline
from ..exceptions import ClaimedByOtherError, MalformedNodeError, NotClaimedError, NotRegisteredError, ZkgroupsException
from ..zookeeper.group import Consumergroup
from ..zookeeper.member_instance import MemberInstance
from ..zookeeper.owners_elsewhere import owners_elsewhere
from ..zookeeper.reading.group_observer import GroupObserver
from ..zookeeper.session.registry_context import RegistryContext, context_of
from ..zookeeper.session.session import Session
from .events import EventKind, MemberStats
from .generation import Generation, Offsets
from .group_notes import missing_topics, oddities, offsets_elsewhere
from .group_plan import GroupPlan
from .member_offsets import MemberOffsets, OffsetsInZooKeeper, Write
from .recreated_topics import RecreatedTopics
from .unused_registrations import UnusedRegistrations

Partitions = frozenset[TopicPartition]
Holder = Owner | UnreadableNode
SLICE: Final = 1.0
"""How long to wait at a time, in seconds, for an id that another session has registered."""

SHORTEST: Final = 1.0
"""The shortest timeout of one request, in seconds."""

_DEREGISTERED: Final = "belongs to a member that is not registered any more: stop working on it"


@dataclass(frozen=True, slots=True)
class GroupLook:
    """The result of one look at the group."""

    number: int
    wanted: Mapping[TopicPartition, int]
    """The partitions this member should have, each with the number of its stream."""
    mine: Partitions
    taken: Mapping[TopicPartition, Holder]
    """The partitions this member should have that other instances hold."""
    notes: Mapping[EventKind, str] = field(default_factory=dict)
    """Oddities of the group, as text."""


class Membership:
    """The membership of one member in one group."""

    def __init__(
        self,
        group: Consumergroup,
        id: str | None,
        registration: Registration,
        *,
        assignors: Mapping[str, Assignor],
        foreign: str,
        partitions: Callable[[str], Iterable[int]] | None,
        tell: Callable[[Partitions | None], object],
        stats: MemberStats,
        offsets: Callable[[Consumergroup], MemberOffsets] = OffsetsInZooKeeper,
    ) -> None:
        self.group = Consumergroup(group.name, with_short_timeout(context_of(group)))
        self._instance = MemberInstance(self.group.paths, context_of(self.group), id)
        self.id = self._instance.id
        self._registration = registration
        self._stats = stats
        self._tell = tell
        self._offsets = offsets(self.group)
        self._observer = GroupObserver(self.group.paths, context_of(self.group), self._hear, partitions)
        self._plan = GroupPlan(self.group, self._instance, self._observer, assignors=assignors, foreign=foreign)
        self._signals = ReleaseSignals()
        self._together: frozenset[str] = frozenset()  # the members that release everything at once
        self._streams: Mapping[TopicPartition, int] = {}
        self._ids: list[str] = []
        self._topics = RecreatedTopics()
        self._unused_registrations = UnusedRegistrations(self.group)
        self._plan_awaited = False
        self.holders: dict[TopicPartition, Holder] = {}
        """The holders of the partitions that this member waits for."""

    @property
    def group_name(self) -> str:
        """The name of the group."""
        return self.group.name

    @property
    def timeout(self) -> float:
        """The timeout of one call, in seconds."""
        return context_of(self.group).timeout

    def __str__(self) -> str:
        return f"{self.id!r} of group {self.group.name!r}"

    @property
    def alive(self) -> bool:
        """True if the session, and with it every claim, is certain to be alive."""
        return self._instance.session_alive

    @property
    def connected(self) -> bool:
        """True if the client is connected now."""
        return context_of(self.group).session.connected

    # Registration

    def register(self) -> None:
        """Register, or adopt the registration that this session has made before."""
        if not self._instance.resume():
            self._instance.register(self._registration, timeout=SLICE)
        elif not self._subscription_is_unchanged():
            self._instance.update(self._registration)

    def _subscription_is_unchanged(self) -> bool:
        try:
            return _same_subscription(self._instance.registration(), self._registration)
        except MalformedNodeError:
            return False

    def deregister(self) -> None:
        """Release everything and deregister."""
        self._offsets.leave(frozenset(self._instance.claims))
        self._instance.deregister()

    @property
    def cut_off(self) -> bool:
        """True if the connection was closed for good."""
        return is_cut_off(context_of(self.group).session)

    def wait_connected(self) -> None:
        """Wait for a connection, at most until the timeout. Raise if it was closed for good."""
        context_of(self.group).session.wait_connected(context_of(self.group).deadline())

    def close(self) -> None:
        """Stop watching the group, and free the id in this process."""
        self._observer.close()
        self._offsets.close()
        self._instance.free_id()

    # Planning

    def look(self) -> GroupLook:
        """Read the group. Compute which partitions this member should have, and who holds them now."""
        self._stats.looks += 1
        self._offsets.look()
        awaited, self._plan_awaited = self._plan_awaited, False
        roster = self._observer.read_roster(allow_cached=awaited)
        self._ids = [instance.id for instance in roster.instances]
        self._unused_registrations.deregister(roster.instances)
        self._together = frozenset(id for id, registration in roster.participants.items() if registration.assignors)
        if not self._ensure_registered(roster):
            return GroupLook(0, {}, frozenset(self._instance.claims), {}, oddities(roster))
        number, planned = self._plan.share(roster)
        # A plan for another state of the group: this look may be outdated.
        self._plan_awaited = planned is None and not awaited
        mine, others = self._holding(planned or ())
        wanted = dict.fromkeys(mine, 0) if planned is None else planned  # its share is not known yet
        if self._topics.outlived_by(mine, roster.topic_zxids, roster.unreadable_topics):
            wanted = {at: stream for at, stream in wanted.items() if self._topics.is_claimable(at)}
            self._tell(None)  # the recreated topic can be claimed once these are released
        if Dialect.PYKAFKA in roster.dialects:
            others |= owners_elsewhere(self.group, wanted)
        # A claimed partition stays with its stream, whatever the plan says now: its owner node names the stream.
        self._streams = {**wanted, **mine}
        self.holders = {at: holder for at, holder in others.items() if at in wanted}
        self.await_free(self._signals.without_signal(self.holders))
        notes = {
            **missing_topics(self._registration, roster),
            **offsets_elsewhere(self._registration.offsets, roster),
            **oddities(roster),
        }
        return GroupLook(number, wanted, frozenset(mine), self.holders, notes)

    def _holding(
        self, planned: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Holder]]:
        """Return the claims of this member, and the holders of the other planned partitions.

        While a plan is awaited, return what is known without a request: the next look reads everything again.
        """
        if self._plan_awaited and (known := self._instance.streams) is not None:
            return known, {}
        return self._instance.find_owners(planned, self._ids)

    def _ensure_registered(self, roster: Roster) -> bool:
        """Return True if the registration exists and is its own, and False if another session has the id.

        If it was deleted or overwritten, register again and raise `NotRegisteredError`, so that the look is repeated.
        """
        own = next((instance for instance in roster.instances if instance.id == self.id), None)
        if own is not None and own.session == self._instance.session_id:
            if not self._instance.registered:  # it was created by a request whose reply was lost
                self._instance.resume()
            found = own.registration
            if isinstance(found, Registration) and _same_subscription(found, self._registration):
                return True
            self._instance.update(self._registration)
        elif self._is_registered():
            return True
        elif own is not None:
            return False
        else:
            self._instance.register(self._registration)
        raise NotRegisteredError(self.group.name, self.id)

    def _is_registered(self) -> bool:
        try:
            return self._instance.check_registered()
        except NotRegisteredError:  # already known
            return False

    def skip(self, awaited: AwaitedPlan) -> list[str]:
        """Stop waiting for this planner. The next look chooses another one, unless a plan was written meanwhile."""
        return self._plan.skip(awaited)

    @property
    def awaited(self) -> AwaitedPlan | None:
        """The plan that this member waits for."""
        return self._plan.awaited

    # Partitions

    def claim(self, partitions: Partitions) -> Partitions:
        """Claim the free partitions among these, together unless others claim some first. Return the claimed."""
        already = frozenset(partitions & self._instance.claims.keys())
        left = partitions - already
        while left:
            try:
                self._instance.claim_many(sorted(left), streams=self._streams)
            except ClaimedByOtherError:
                _mine, others = self._instance.find_owners(left, self._ids)
                taken = {at: holder for at, holder in others.items() if at in left}
                self.holders.update(taken)
                self._stats.conflicts += len(taken)
                left -= frozenset(taken)
            else:
                return left | already
        return already

    def release(self, partitions: Partitions) -> None:
        """Release these partitions."""
        held = partitions & self._instance.claims.keys()
        self._offsets.leave(held)
        self._instance.release(*sorted(held))

    def await_free(self, partitions: Partitions) -> None:
        """Watch for the release of these partitions."""
        signals = self._signals.choose({at: self._let_go_with(at) for at in partitions})
        self._observer.watch_owners({at: self._owner_path(at) for at in signals})

    def _let_go_with(self, at: TopicPartition) -> Hashable:
        """Return a key that is equal for all partitions that their holder releases at once."""
        holder = self.holders.get(at)
        id = holder.instance(self._ids) if isinstance(holder, Owner) else None
        return (id, holder.session) if isinstance(holder, Owner) and id in self._together else at

    def _owner_path(self, at: TopicPartition) -> str:
        return getattr(self.holders.get(at), "path", "") or self.group.paths.owner(at)

    def _hear(self, at: TopicPartition | None) -> None:
        """Note a change. Called on kazoo's threads."""
        self._tell(None if at is None else self._signals.released_with(at))

    # Offsets

    def writer(self, partitions: Partitions) -> Write:
        """Return a function that commits offsets through the claims on these partitions."""
        write_fenced = self._offsets.writer(self._instance.claims_on(partitions))

        def write(offsets: Offsets, back_from: Offsets) -> None:
            for at in self._topics.outlived.intersection(offsets):
                raise NotClaimedError(at, "belongs to a topic that was deleted: stop working on it")
            try:
                write_fenced(offsets, back_from)
            except NotRegisteredError as error:
                first, *others = sorted(offsets)
                raise NotClaimedError(first, _DEREGISTERED, also=others) from error

        return write

    def commit_marked(self, generation: Generation, among: Partitions) -> None:
        """Commit the marked offsets of these partitions."""
        generation._commit_marked(among - self._topics.outlived)

    def forget_offsets(self, partitions: Partitions) -> None:
        """Make the next commit read the committed offsets of these partitions again, and write over them."""
        self._instance.forget_offsets(partitions)

    def committed(self, partitions: Partitions) -> dict[TopicPartition, CurrentOffset]:
        """Read the committed offsets of these partitions."""
        return dict(self._offsets.read(partitions))

    def topic_zxid(self, topic: str) -> int | None:
        """Return the zxid that created the topic; None if it is not known."""
        return self._topics.made(topic)

    def stream(self, at: TopicPartition) -> int:
        """Return the number of the stream that reads this partition."""
        return self._streams.get(at, 0)


def is_cut_off(session: Session) -> bool:
    """Return True if a session was closed, or its credentials were refused."""
    try:
        session.wait_connected(Deadline(0.0))
    except ZkgroupsException:
        return True
    return False


def with_short_timeout(context: RegistryContext) -> RegistryContext:
    """Return the context with a timeout that leaves time for a second attempt before the claims end."""
    session_timeout = context.session.granted_timeout or context.timeout
    return context._replace(timeout=min(context.timeout, max(session_timeout * PROOF_LIFETIME / 2, SHORTEST)))


def _same_subscription(found: Registration, own: Registration) -> bool:
    """Return whether two registrations differ only in the time when they were written."""
    return replace(found, timestamp=own.timestamp) == own
