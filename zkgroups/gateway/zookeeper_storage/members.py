"""The members of a gateway in one group: each is registered as an instance, with one stream for each topic.

All are registered in the session of the gateway, so ZooKeeper deletes what they hold when the gateway ends. Their owner
nodes have the form that Scala members write.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final

from ...coordinator.memory_storage import assign_partitions
from ...coordinator.storage import PlannedMember
from ...core.rebalance.assignors import ASSIGNORS
from ...core.rebalance.shared_plan import Roster, agreed_strategy
from ...core.topic_filter import is_topic_of_kafka
from ...core.znodes.codecs import decode_cluster_id
from ...core.znodes.paths import CLUSTER_ID
from ...core.znodes.registrations import MOST_TOPICS
from ...core.znodes.topic_partition import TopicPartition, is_topic
from ...core.znodes.values import Dialect, Registration
from ...deadline import uptime
from ...exceptions import ClaimedByOtherError, NoPermissionError, ZkgroupsException
from ...zookeeper.group import Consumergroup
from ...zookeeper.instance import MemberInstance, register_all
from ...zookeeper.requests.transaction import SessionFence
from ...zookeeper.session.session import RegistryContext, context_of
from ..groups.coordinator_host import BrokerTopics

# Where the partitions of topics are read: in this ZooKeeper, or from brokers that keep their topics elsewhere.


log = logging.getLogger("zkgroups.gateway")

_LONGEST: Final = 5.0
"""In seconds: how long to wait for the brokers."""
_FRESH: Final = 5.0
"""In seconds: how long partitions are used again. All groups are checked every few seconds."""

PartitionsOfTopics = Mapping[str, Sequence[int] | None]


class TopicPartitions:
    """A `TopicSource`. While ZooKeeper has the topics of the brokers, it returns None: observers watch the nodes.

    Any thread may use it, except that of the brokers' event loop.
    """

    def __init__(self, context: RegistryContext, brokers: BrokerTopics) -> None:
        self._context = context
        self._brokers = brokers
        self._are_outside: bool | None = None
        self._known: dict[str, tuple[float, Sequence[int] | None]] = {}

    def __call__(self, topics: Collection[str] | None) -> PartitionsOfTopics | None:
        if self._are_outside is None:
            self._decide()
        return self._of_brokers(topics) if self._are_outside else None

    def refresh(self) -> None:
        """Find out again where the brokers keep their topics: they may have been migrated to KRaft."""
        try:
            self._decide()
        except ZkgroupsException as error:
            log.info("could not find out where the brokers keep their topics, trying again later: %s", error)

    def _decide(self) -> None:
        try:
            node = self._context.session.get(CLUSTER_ID, deadline=self._context.deadline())
        except NoPermissionError:
            are_outside = False
        else:
            cluster_id = None if node is None else decode_cluster_id(node.data)
            are_outside = self._brokers.call(self._brokers.are_outside(cluster_id), _LONGEST)
        if are_outside != self._are_outside:
            log.info("topics and their partitions are read %s", "from the brokers" if are_outside else "in ZooKeeper")
        self._are_outside = are_outside

    def _of_brokers(self, topics: Collection[str] | None) -> PartitionsOfTopics:
        limit = uptime() - _FRESH
        known = self._known
        used = [name for name in topics or () if name in known and known[name][0] > limit]
        fresh = {name: known[name][1] for name in used}
        if topics is not None and len(fresh) == len(topics):
            return fresh
        missing = None if topics is None else [name for name in topics if name not in fresh]
        found = self._brokers.call(self._brokers.partitions(missing), _LONGEST)
        self._known = {name: kept for name, kept in known.items() if kept[0] > limit}
        self._known |= {name: (uptime(), numbers) for name, numbers in found.items()}
        return fresh | found


# Compute the share of each member of a group, including the members of other clients. Pure: no I/O.
#
# While other clients take part, all members must compute the same shares. So the gateway uses the strategy that a
# zkgroups member would choose in this group, and its shares are exactly Scala's. Without other clients, it uses the
# strategy of the Kafka clients.


Partitions = frozenset[TopicPartition]

ANNOUNCED = ("range", "roundrobin")
"""The strategies in the registrations of a gateway's members. Not `sticky`: one of them would have to write plans."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The partitions of this gateway's members, by instance id, and those of the members of other clients."""

    own: Mapping[str, Partitions]
    foreign: Partitions


def has_foreign(roster: Roster, own: Mapping[str, object]) -> bool:
    """Return whether members of other clients take part."""
    return any(id not in own for id in roster.participants)


def compute_shares(roster: Roster, own: Mapping[str, PlannedMember], strategy: str, foreign_assignor: str) -> Shares:
    """Assign all partitions of the roster. `own` has the members of this gateway, by instance id."""
    if not has_foreign(roster, own):
        return Shares(assign_partitions(strategy, own, roster.partitions), frozenset())
    agreed = agreed_strategy(roster.participants, foreign=foreign_assignor)
    shares: dict[str, set[TopicPartition]] = {id: set() for id in own}
    foreign: set[TopicPartition] = set()
    for at, stream in ASSIGNORS[agreed](roster.members()).items():
        shares.get(stream.instance, foreign).add(at)
    return Shares({id: frozenset(some) for id, some in shares.items()}, frozenset(foreign))


LONGEST_ID: Final = 200
"""In characters. Longer ids lose their beginning: the client chooses it, and only the end is unique."""
LONGEST_SUBSCRIPTION: Final = 2**18
"""In bytes: the topics of one registration. A request to ZooKeeper must be smaller than a megabyte."""


def instance_id(member_id: str) -> str:
    """Return the instance id of a member: its member id, changed so that it is valid as the name of a node.

    >>> instance_id("my/app-0a1b")
    'my_app-0a1b'
    """
    return re.sub("[^A-Za-z0-9._-]", "_", member_id)[-LONGEST_ID:]


def registered_topics(topics: Iterable[str]) -> list[str]:
    """Return the topics to register: names that Kafka allows, and not more than fit into a node.

    A client may send any names. They must not stop the other members of its group.

    >>> registered_topics(["orders", "..", "a/b"])
    ['orders']
    """
    possible = [topic for topic in sorted(topics) if is_topic_of_kafka(topic) and is_topic(topic)]
    sizes = accumulate(len(topic) + len('"":1,') for topic in possible)
    return [topic for topic, size in zip(possible, sizes, strict=True) if size <= LONGEST_SUBSCRIPTION][:MOST_TOPICS]


def _shortened(text: str) -> str:
    """Return text that can be encoded as UTF-8, and is not longer than an id."""
    return text[:LONGEST_ID].encode(errors="replace").decode()


@dataclass(slots=True, eq=False)
class GatewayMember:
    """One member, and the instance that holds its partitions."""

    planned: PlannedMember
    instance: MemberInstance
    doubtful: set[TopicPartition] = field(default_factory=set)
    """Partitions whose claim or release failed: only their owner nodes show who holds them."""
    written: Registration | None = None
    """The registration as it was written last."""

    @property
    def owned(self) -> Partitions:
        """The partitions that the instance owns."""
        return frozenset(self.instance.claims)

    @property
    def kept(self) -> Partitions:
        """The owned partitions that a cooperative client listed when it joined: it still works on them."""
        return self.owned & self.planned.subscription.owned

    def registration(self) -> Registration:
        """Return the registration to write."""
        return Registration(
            dict.fromkeys(registered_topics(self.planned.subscription.topics), 1),
            timestamp=datetime.fromtimestamp(int(time.time()), UTC),
            dialect=Dialect.GATEWAY,
            assignors=ANNOUNCED,
            client_id=_shortened(self.planned.client_id),
            client_host=_shortened(self.planned.client_host),
        )

    @property
    def must_register(self) -> bool:
        """True if the topics or the client differ from those in the registration."""
        written = self.written
        new = self.registration()
        return written is None or (written.streams, written.client_id, written.client_host) != (
            new.streams,
            new.client_id,
            new.client_host,
        )


class GatewayMembers:
    """The members of one group, by member id."""

    def __init__(self, group: Consumergroup) -> None:
        self._group = group
        self._context = context_of(group)
        self._members: dict[str, GatewayMember] = {}
        self._leaving: list[MemberInstance] = []
        self.ids: frozenset[str] = frozenset()
        """The ids of all instances. Other threads may read it."""

    def __iter__(self) -> Iterator[GatewayMember]:
        return iter(tuple(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def get(self, member_id: str) -> GatewayMember | None:
        """Return a member, or None if it was released."""
        return self._members.get(member_id)

    @property
    def leaving(self) -> bool:
        """True if instances wait to be deregistered."""
        return bool(self._leaving)

    @property
    def some_must_register(self) -> bool:
        """True if a member is not registered, or its registration must be rewritten."""
        return any(not member.instance.registered or member.must_register for member in self)

    @property
    def session_ids(self) -> set[int]:
        """The sessions in which members are registered. Normally this is only the current one."""
        return {id for member in self if (id := member.instance.session_id) is not None}

    def by_instance_id(self) -> dict[str, PlannedMember]:
        """Return the members as the coordinator describes them, by instance id."""
        return {member.instance.id: member.planned for member in self}

    def member_ids(self) -> dict[str, str]:
        """Return the member id of each instance."""
        return {member.instance.id: member_id for member_id, member in self._members.items()}

    # Coming and leaving

    def set(self, planned: Mapping[str, PlannedMember]) -> None:
        """Replace all members. Nothing is written to ZooKeeper yet."""
        for member_id, each in planned.items():
            self.rename(member_id, each.static_id)
        self.keep(planned)
        for member_id, each in planned.items():
            if (member := self._members.get(member_id)) is not None:
                member.planned = each
            else:
                instance = MemberInstance(self._group.paths, self._context, instance_id(member_id))
                self._members[member_id] = GatewayMember(each, instance)
        self._note_ids()

    def rename(self, member_id: str, static_id: str | None) -> None:
        """Give a static member that has restarted the instance of its former member id."""
        if static_id is None or member_id in self._members:
            return
        for former, member in tuple(self._members.items()):
            if member.planned.static_id == static_id:
                self._members[member_id] = self._members.pop(former)

    def keep(self, member_ids: Collection[str]) -> None:
        """Remove all members but these."""
        self.drop(self._members.keys() - set(member_ids))

    def drop_all(self) -> None:
        self.drop(self._members)

    def drop(self, member_ids: Iterable[str]) -> None:
        """Remove members. Their instances are deregistered by the next call of `deregister_leaving`."""
        for member_id in tuple(member_ids):
            if (member := self._members.pop(member_id, None)) is not None:
                self._leaving.append(member.instance)

    def deregister_leaving(self) -> None:
        """Release the partitions of removed members, and deregister them."""
        while self._leaving:
            self._leaving[0].deregister()
            del self._leaving[0]
        self._note_ids()

    def _note_ids(self) -> None:
        current = (member.instance for member in self._members.values())
        self.ids = frozenset(instance.id for instance in (*current, *self._leaving))

    def register(self, fence: SessionFence | None) -> None:
        """Register all new members in one transaction. Rewrite the registrations of members with other topics.

        The fence lets only the coordinator of the group register members.
        """
        new = [member for member in self if not member.instance.registered]
        registrations = {member.instance: member.registration() for member in new}
        try:
            register_all(self._context, registrations, fence)
        finally:
            for member in new:
                if member.instance.registered:
                    member.written = registrations[member.instance]
        for member in self:
            if member.must_register:
                member.written = member.instance.update(member.registration())

    def resolve_doubts(self) -> None:
        """Find out who owns the partitions whose claim or release failed."""
        for member in self:
            if member.doubtful:
                member.instance.find_owners(member.doubtful, self.ids)
                member.doubtful.clear()

    def release_surplus(self, shares: Mapping[str, Partitions]) -> None:
        """Release all partitions that are not in the shares, unless a cooperative client still works on them."""
        for member in self:
            surplus = member.owned - shares.get(member.instance.id, frozenset()) - member.kept
            self.release(member, surplus)

    def release(self, member: GatewayMember, partitions: Partitions) -> None:
        if partitions:
            try:
                member.instance.release(*sorted(partitions))
            except ZkgroupsException:
                member.doubtful |= partitions
                raise

    def claim(self, shares: Mapping[str, Partitions], registered: Iterable[str]) -> dict[TopicPartition, str]:
        """Claim the shares. Return the partitions that other clients hold, with the paths of their owner nodes."""
        ids = frozenset(registered)
        ours = frozenset(at for member in self for at in member.owned)
        taken: dict[TopicPartition, str] = {}
        for member in self:
            wanted = shares.get(member.instance.id, frozenset()) - ours
            taken |= self._claim(member, wanted, ids)
        return taken

    def _claim(self, member: GatewayMember, wanted: Partitions, ids: frozenset[str]) -> dict[TopicPartition, str]:
        taken: dict[TopicPartition, str] = {}
        while left := wanted - member.owned - taken.keys():
            try:
                member.instance.claim_many(sorted(left), streams=dict.fromkeys(left, 0))
                break
            except ClaimedByOtherError:
                _own, others = member.instance.find_owners(left, ids)
                taken |= {at: others[at].path for at in left if at in others}
            except ZkgroupsException:
                member.doubtful |= left
                raise
        return taken
