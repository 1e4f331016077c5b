"""The place of a member in its group: the actions of the rebalance, carried out in ZooKeeper.

Every call may raise an error, and waits no longer than its timeout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from ..core.rebalance.shared_plan import AwaitedPlan, ReleaseSignals, Roster
from ..core.session_lifetime import PROOF_LIFETIME
from ..core.znodes.group_description import RegisteredInstance
from ..core.znodes.paths import broker_topic
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CurrentOffset, Dialect, Owner, Registration, UnreadableNode
from ..deadline import Deadline, uptime
from ..exceptions import (
    AlreadyRegisteredError,
    ClaimedByOtherError,
    MalformedNodeError,
    NotClaimedError,
    NotRegisteredError,
    ZkgroupsException,
)
from ..zookeeper.claim import Claims
from ..zookeeper.group import Consumergroup, owners_elsewhere
from ..zookeeper.instance import MemberInstance
from ..zookeeper.ownership.ownership import is_in_use
from ..zookeeper.reading.observers import GroupObserver
from ..zookeeper.session.session import RegistryContext, Session, context_of
from .events import EventKind, MemberStats, Partitions
from .generation import Generation, Offsets
from .group_plan import GroupPlan, missing_topics, oddities, offsets_elsewhere
from .options import Options

# Registrations that a resumed session has brought along, and that this process does not use.
#
# The process before this one may have had other ids, for example the name of a container that was replaced. The
# resumed session keeps their registrations and claims alive, so that no member can have their partitions. A member
# deregisters them in its group. It waits for one session timeout first: other members of this process may still be
# about to start.


log = logging.getLogger("zkgroups.member")


class UnusedRegistrations:
    """The unused registrations of one group, with the time since when each is known to be unused."""

    def __init__(self, group: Consumergroup) -> None:
        self._group = group
        self._session = context_of(group).session
        self._since: dict[str, float] = {}

    def deregister(self, registered: Iterable[RegisteredInstance]) -> None:
        """Deregister the instances that were unused for a session timeout. Errors are logged: the next call retries."""
        resumed = self._session.resumed
        if resumed is None:
            return
        now, known = uptime(), self._since
        mine = (each.id for each in registered if each.session == resumed)
        unused = [id for id in mine if not is_in_use(self._session, self._group.paths.instance(id))]
        self._since = {id: known.get(id, now) for id in unused}
        limit = self._session.granted_timeout or context_of(self._group).timeout
        for id, since in self._since.items():
            if now - since >= limit:
                self._deregister(id, limit)

    def _deregister(self, id: str, limit: float) -> None:
        instance, name = MemberInstance(self._group.paths, context_of(self._group), id), self._group.name
        try:
            if instance.resume():
                instance.deregister()
                log.warning(
                    "deregistered instance %r of group %r: the process that resumed its session has not used it "
                    "for %g s",
                    id,
                    name,
                    limit,
                )
        except AlreadyRegisteredError:
            return  # another member of this process has just started with this id
        except ZkgroupsException as error:
            log.warning("could not deregister %r of group %r, retrying: %s", id, name, error)
        instance.free_id()


# Topics that were deleted or recreated while a member held partitions of them.


class RecreatedTopics:
    """Detects topics that were deleted, or recreated under the same name, while the member held partitions of them.

    Such partitions have outlived their topic. The member releases them, and claims them again if the topic was
    recreated. Until then it commits nothing for them: the offsets would be taken for those of the new topic. It also
    claims no other partition of that topic: all partitions that it holds belong to one creation of their topic.
    """

    def __init__(self) -> None:
        self.outlived: Partitions = frozenset()
        self._made: dict[str, int] = {}
        self._gone: set[str] = set()

    def made(self, topic: str) -> int | None:
        """Return the zxid that created the topic the member holds partitions of; None if it is not known."""
        return self._made.get(topic)

    def is_claimable(self, at: TopicPartition) -> bool:
        """Return False if the member must first release the partitions that have outlived this topic."""
        return at.topic not in self._gone

    def outlived_by(
        self, held: Iterable[TopicPartition], made: Mapping[str, int], unreadable: Iterable[UnreadableNode]
    ) -> Partitions:
        """Return the held partitions that have outlived their topic. `made` has the zxids of the current topics."""
        held, hidden = frozenset(held), {node.path for node in unreadable}
        known = {at.topic: self._made[at.topic] for at in held if at.topic in self._made}
        self._made = {**made, **known}
        self._gone = {
            topic for topic, zxid in known.items() if made.get(topic) != zxid and broker_topic(topic) not in hidden
        }
        self.outlived = frozenset(at for at in held if at.topic in self._gone)
        return self.outlived


# Where the offsets of a member are committed and read, while its group is in ZooKeeper.


Write: TypeAlias = Callable[[Offsets, Offsets], None]
"""Commits offsets. The second argument has the committed offsets that may go back."""


class MemberOffsets:
    """The committed offsets of one member, by default in the group's own nodes.

    Called by the member's thread, and writers by all threads that commit.
    """

    def __init__(self, group: Consumergroup) -> None:
        self._group = group

    def writer(self, claims: Claims) -> Write:
        """Return a function that commits through these claims, as long as all of them are held."""

        def write(offsets: Offsets, back_from: Offsets) -> None:
            claims.commit(offsets, backward=back_from)

        return write

    def read(self, partitions: Partitions) -> Mapping[TopicPartition, CurrentOffset]:
        """Read the committed offsets of these partitions, which the member has just claimed, or holds."""
        return self._group.offsets.fetch_many(sorted(partitions))

    def look(self) -> None:
        """Do what is due from time to time. Called whenever the member reads its group."""

    def leave(self, partitions: Partitions) -> None:
        """Finish what is under way for these partitions, which are about to be released."""

    def close(self) -> None:
        """Close connections. They are opened again when they are needed."""


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


class AnyMembership:
    """The place of a member: in a group in ZooKeeper, in one on the brokers, or in none.

    By default nobody else has a part in it: there is nothing to wait for, and nothing to lose.
    """

    id: str
    group_name: str
    timeout: float
    """The timeout of one call, in seconds."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.holders: dict[TopicPartition, Holder] = {}
        """The holders of the partitions that this member waits for."""

    @property
    def alive(self) -> bool:
        """True if every claim is certain to be held."""
        return True

    @property
    def connected(self) -> bool:
        """True if work may begin now."""
        return True

    @property
    def cut_off(self) -> bool:
        """True if the connection to ZooKeeper was closed for good."""
        try:
            self._session.wait_connected(Deadline(0.0))
        except ZkgroupsException:
            return True
        return False

    @property
    def awaited(self) -> AwaitedPlan | None:
        """The plan that this member waits for."""
        return None

    def register(self) -> None:
        """Register, or adopt the registration that this session has made before."""

    def deregister(self) -> None:
        """Release everything and deregister."""
        raise NotImplementedError

    def wait_connected(self) -> None:
        """Wait for a connection, at most until the timeout. Raise if it was closed for good."""

    def close(self) -> None:
        """Stop watching, and free what this process has for it."""
        raise NotImplementedError

    def look(self) -> GroupLook:
        """Find out which partitions this member should have, and who holds them now."""
        raise NotImplementedError

    def skip(self, _awaited: AwaitedPlan, /) -> list[str]:
        """Stop waiting for this planner. The next look chooses another one, unless a plan was written meanwhile."""
        return []

    def claim(self, partitions: Partitions) -> Partitions:
        """Claim the free partitions among these, together unless others claim some first. Return the claimed."""
        raise NotImplementedError

    def release(self, partitions: Partitions) -> None:
        """Release these partitions."""
        raise NotImplementedError

    def await_free(self, partitions: Partitions) -> None:
        """Watch for the release of these partitions."""

    def writer(self, _partitions: Partitions, /) -> Write:
        """Return a function that commits offsets through the claims on these partitions."""
        raise NotImplementedError

    def commit_marked(self, generation: Generation, among: Partitions) -> None:
        """Commit the marked offsets of these partitions."""
        generation._commit_marked(among)

    def forget_offsets(self, partitions: Partitions) -> None:
        """Make the next commit read the committed offsets of these partitions again, and write over them."""

    def committed(self, partitions: Partitions) -> Mapping[TopicPartition, CurrentOffset]:
        """Read the committed offsets of these partitions."""
        raise NotImplementedError

    def topic_zxid(self, _topic: str, /) -> int | None:
        """Return the zxid that created the topic; None if it is not known."""
        return None

    def stream(self, _at: TopicPartition, /) -> int:
        """Return the number of the stream that reads this partition."""
        return 0


class Membership(AnyMembership):
    """The membership of one member in one group in ZooKeeper."""

    def __init__(
        self,
        group: Consumergroup,
        registration: Registration,
        options: Options,
        *,
        tell: Callable[[Partitions | None], object],
        stats: MemberStats,
        offsets: Callable[[Consumergroup], MemberOffsets] = MemberOffsets,
    ) -> None:
        context = with_short_timeout(context_of(group))
        super().__init__(context.session)
        self.group = Consumergroup(group.name, context)
        self.group_name, self.timeout = group.name, context.timeout
        self._instance = MemberInstance(self.group.paths, context, options.id)
        self.id = self._instance.id
        self._registration = registration
        self._stats = stats
        self._tell = tell
        self._offsets = offsets(self.group)
        self._observer = GroupObserver(self.group.paths, context, self._hear, options.partitions)
        self._plan = GroupPlan(self.group, self._instance, self._observer, options)
        self._signals = ReleaseSignals()
        self._together: frozenset[str] = frozenset()  # the members that release everything at once
        self._streams: Mapping[TopicPartition, int] = {}
        self._ids: list[str] = []
        self._topics = RecreatedTopics()
        self._unused_registrations = UnusedRegistrations(self.group)
        self._plan_awaited = False

    def __str__(self) -> str:
        return f"{self.id!r} of group {self.group.name!r}"

    @property
    def alive(self) -> bool:
        return self._instance.session_alive

    @property
    def connected(self) -> bool:
        return self._session.connected

    def register(self) -> None:
        if not self._instance.resume():
            self._instance.register(self._registration, timeout=SLICE)
            return
        with suppress(MalformedNodeError):
            if _same_subscription(self._instance.registration(), self._registration):
                return
        self._instance.update(self._registration)

    def deregister(self) -> None:
        self._offsets.leave(frozenset(self._instance.claims))
        self._instance.deregister()

    def wait_connected(self) -> None:
        self._session.wait_connected(context_of(self.group).deadline())

    def close(self) -> None:
        self._observer.close()
        self._offsets.close()
        self._instance.free_id()

    def look(self) -> GroupLook:
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
            **missing_topics(self._registration, roster.partitions, roster.unreadable_topics),
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

    def skip(self, awaited: AwaitedPlan, /) -> list[str]:
        return self._plan.skip(awaited)

    @property
    def awaited(self) -> AwaitedPlan | None:
        return self._plan.awaited

    def claim(self, partitions: Partitions) -> Partitions:
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
        held = partitions & self._instance.claims.keys()
        self._offsets.leave(held)
        self._instance.release(*sorted(held))

    def await_free(self, partitions: Partitions) -> None:
        signals = self._signals.choose({at: self._let_go_with(at) for at in partitions})
        self._observer.watch_owners(
            {at: getattr(self.holders.get(at), "path", "") or self.group.paths.owner(at) for at in signals}
        )

    def _let_go_with(self, at: TopicPartition) -> Hashable:
        """Return a key that is equal for all partitions that their holder releases at once."""
        holder = self.holders.get(at)
        id = holder.instance(self._ids) if isinstance(holder, Owner) else None
        return (id, holder.session) if isinstance(holder, Owner) and id in self._together else at

    def _hear(self, at: TopicPartition | None) -> None:
        """Note a change. Called on kazoo's threads."""
        self._tell(None if at is None else self._signals.released_with(at))

    def writer(self, partitions: Partitions, /) -> Write:
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
        generation._commit_marked(among - self._topics.outlived)

    def forget_offsets(self, partitions: Partitions) -> None:
        self._instance.forget_offsets(partitions)

    def committed(self, partitions: Partitions) -> Mapping[TopicPartition, CurrentOffset]:
        return self._offsets.read(partitions)

    def topic_zxid(self, topic: str, /) -> int | None:
        return self._topics.made(topic)

    def stream(self, at: TopicPartition, /) -> int:
        return self._streams.get(at, 0)


def with_short_timeout(context: RegistryContext) -> RegistryContext:
    """Return the context with a timeout that leaves time for a second attempt before the claims end."""
    session_timeout = context.session.granted_timeout or context.timeout
    return context._replace(timeout=min(context.timeout, max(session_timeout * PROOF_LIFETIME / 2, SHORTEST)))


def _same_subscription(found: Registration, own: Registration) -> bool:
    """Return whether two registrations differ only in the time when they were written."""
    return replace(found, timestamp=own.timestamp) == own
