"""The state of a group, its instances and its partitions at one moment, worked out from its znodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from typing import Final, TypeAlias

from .codecs import decode_owner_path
from .own_nodes import Mark
from .paths import GroupPaths, parent
from .registrations import subscribed_topics
from .states import GroupState, InstanceState
from .topic_partition import TopicPartition
from .values import (
    CommittedOffset,
    ForbiddenNode,
    MalformedNode,
    Owner,
    ReadRegistration,
    Registration,
    UnevaluableRegistration,
    UnreadableNode,
)

# The znodes of one group, read in one pass, and which of its instances cannot be alive.


@dataclass(frozen=True, slots=True)
class RegisteredInstance:
    """An instance that is registered in a group, by any client.

    - `id`: the id of the instance.
    - `session`: the id of the session that the registration belongs to; 0 if it belongs to no session.
    - `registration`: its subscription: a `Registration`, or an `UnevaluableRegistration`, `MalformedNode` or
      `ForbiddenNode`.
    - `registered_at`: when it registered, in UTC. None if unknown.
    - `version`: the version of the registration's znode.
    """

    id: str
    session: int
    registration: ReadRegistration
    registered_at: datetime | None = None
    version: int = 0

    @property
    def persistent(self) -> bool:
        """True if its node belongs to no session, so that ZooKeeper never deletes it automatically."""
        found = self.registration
        return found.persistent if isinstance(found, ForbiddenNode) else self.session == 0


def dead_instances(
    instances: Iterable[RegisteredInstance], owners: Iterable[Owner | UnreadableNode]
) -> tuple[RegisteredInstance, ...]:
    """Return the instances that cannot be alive: registered without a session, and named by no owner node.

    An owner node belongs to a session, so a client that has one is alive, however it registered. An owner node that
    cannot be read may belong to any instance: then no instance is certainly dead.
    """
    suspects = {instance.id: instance for instance in instances if instance.persistent}
    if not suspects:
        return ()
    for owner in owners:
        if isinstance(owner, Owner):
            suspects.pop(owner.instance(suspects) or "", None)
        elif isinstance(owner, ForbiddenNode) or owner.session:
            return ()
    return tuple(suspects.values())


@dataclass(frozen=True, slots=True)
class GroupView:
    """The znodes of one group, read in one pass. `partitions` has the topics that are registered in Kafka."""

    group: str
    exists: bool = True
    instances: tuple[RegisteredInstance, ...] = ()
    owners: tuple[Owner, ...] = ()
    offsets: tuple[CommittedOffset, ...] = ()
    unreadable: tuple[UnreadableNode, ...] = ()
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    mark: Mark | UnreadableNode | None = None
    """The migration mark: the group is being migrated, or was."""

    @property
    def dead(self) -> tuple[RegisteredInstance, ...]:
        """The instances that cannot be alive."""
        below = GroupPaths(self.group).owners
        return dead_instances(
            self.instances, chain(self.owners, (n for n in self.unreadable if n.path.startswith(below)))
        )

    @property
    def living(self) -> tuple[RegisteredInstance, ...]:
        """The instances that may be alive."""
        dead = {each.id for each in self.dead}
        return tuple(each for each in self.instances if each.id not in dead) if dead else self.instances

    @property
    def hidden(self) -> tuple[ForbiddenNode, ...]:
        """The forbidden nodes whose contents could change the states: not the registrations of dead instances."""
        forbidden = [node for node in self.unreadable if isinstance(node, ForbiddenNode)]
        dead = [instance.registration for instance in self.dead] if forbidden else []
        return tuple(node for node in forbidden if node not in dead)


# The state of a group at one moment.
#
# A partition is blocked if some instances subscribe to its topic, and another instance holds it. None of the
# subscribers can get it before it is released. An instance whose subscription cannot be evaluated may subscribe to
# any topic, so the partitions that it holds are never blocked.


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a group.

    - `at`: the partition.
    - `owners`: the owners in its owner nodes, orphans included. Usually one or none. There can be two if their clients
      name owner nodes differently (Scala and pykafka).
    - `instance`: the id of the first owner that is a registered instance; None if no owner is.
    - `offset`: its committed offset; None if it has none, or if it is unreadable.
    """

    at: TopicPartition
    owners: tuple[Owner, ...]
    instance: str | None
    offset: CommittedOffset | None


class Obstacle(StrEnum):
    """Why no member can claim a partition: the problem with its current owner.

    - not registered: the owner is not a registered instance
    - not subscribed: the owner does not subscribe to the topic
    - registration cannot be read: so zkgroups cannot know its subscription
    - owner cannot be read: the owner node is malformed
    """

    NOT_REGISTERED = "not registered"
    NOT_SUBSCRIBED = "not subscribed"
    REGISTRATION_UNREADABLE = "registration cannot be read"
    OWNER_UNREADABLE = "owner cannot be read"


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A partition whose owner does not subscribe to its topic, although other instances do.

    - `at`: the partition.
    - `holder`: its owner, or its malformed owner node.
    - `obstacle`: the problem with the owner.
    """

    at: TopicPartition
    holder: Owner | MalformedNode
    obstacle: Obstacle

    @property
    def since(self) -> datetime | None:
        """When the partition was claimed by its current owner, as a datetime in UTC. None if unknown."""
        return self.holder.claimed_at if isinstance(self.holder, Owner) else self.holder.created_at


@dataclass(frozen=True, slots=True)
class InstanceDescription:
    """One instance of a group.

    - `id`: the id of the instance.
    - `state`: its state.
    - `session`: the id of the session of its registration; 0 if that belongs to no session. If the instance is
      leaving, the session of its owner nodes.
    - `registered_at`: when it registered, in UTC. None if it is leaving.
    - `registration`: its subscription: a `Registration`, or an `UnevaluableRegistration`, `MalformedNode` or
      `ForbiddenNode`. None if it is leaving.
    - `owned`: the partitions that it owns.
    """

    id: str
    state: InstanceState
    session: int
    registered_at: datetime | None
    registration: ReadRegistration | None
    owned: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The result of `describe()`: the state of a group, its instances and its partitions.

    - `group`: the name of the group.
    - `state`: its state.
    - `instances`: its registered instances, sorted by id, and then the instances that own partitions without being
      registered.
    - `partitions`: all partitions that are subscribed to, are owned, or have a committed offset, sorted.
    - `orphans`: the owners that are not registered.
    - `unowned`: the partitions of subscribed topics that no registered instance owns, sorted.
    - `unreadable`: the malformed and forbidden nodes of the group.
    - `subscribed`: the topics that instances subscribe to, sorted.
    - `blocked`: the partitions that no subscriber can claim before their owners release them, sorted.
    - `mark`: the migration mark, with `plan`, `target`, `state` and `since`: the group is being migrated to
      Kafka-native offsets, or was, and zkgroups members cannot join it. Otherwise None.
    """

    group: str
    state: GroupState
    instances: tuple[InstanceDescription, ...]
    partitions: tuple[PartitionDescription, ...]
    orphans: tuple[Owner, ...]
    unowned: tuple[TopicPartition, ...]
    unreadable: tuple[UnreadableNode, ...]
    subscribed: tuple[str, ...] = ()
    blocked: tuple[BlockedPartition, ...] = ()
    mark: Mark | UnreadableNode | None = None

    @property
    def members(self) -> int:
        """The number of registered instances that may be alive."""
        not_counted = (InstanceState.LEAVING, InstanceState.DEAD)
        return sum(instance.state not in not_counted for instance in self.instances)

    @property
    def unevaluable(self) -> tuple[str, ...]:
        """The ids of the instances whose subscriptions cannot be evaluated."""
        return tuple(each.id for each in self.instances if isinstance(each.registration, UnevaluableRegistration))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are subscribed to, are owned, or have committed offsets, sorted."""
        return tuple(sorted({partition.at.topic for partition in self.partitions}.union(self.subscribed)))

    @property
    def owned(self) -> int:
        """The number of partitions that are owned by a registered instance."""
        return sum(partition.instance is not None for partition in self.partitions)

    @property
    def offsets(self) -> int:
        """The number of partitions with a committed offset."""
        return sum(partition.offset is not None for partition in self.partitions)

    @property
    def last_commit_at(self) -> datetime | None:
        """When an offset was last committed, as a datetime in UTC. None if the group has no offsets."""
        offsets = (partition.offset for partition in self.partitions)
        times = (offset.committed_at for offset in offsets if offset is not None)
        return max((time for time in times if time is not None), default=None)


# `describe`: work out the state of a group, its instances and its partitions from its znodes.


_LiveOwners: TypeAlias = dict[TopicPartition, tuple[str, ...]]
"""The instances that own each partition: one, or two if their clients name owner nodes differently."""


def describe(view: GroupView) -> GroupDescription:
    """Work out the state of a group and of its instances."""
    live, orphans = _live_owners_and_orphans(view)
    subscribed = _subscribed(view)
    wanted = _wanted(view, {topic for topics in subscribed.values() for topic in topics})
    unowned = tuple(sorted(wanted - live.keys()))
    return GroupDescription(
        group=view.group,
        state=_group_state(view, live, unowned),
        instances=(*_registered(view, live, subscribed, {at.topic for at in unowned}), *_leaving(orphans)),
        partitions=_partitions(view, live, wanted),
        orphans=tuple(orphans),
        unowned=unowned,
        unreadable=view.unreadable,
        subscribed=tuple(sorted({topic for topics in subscribed.values() for topic in topics})),
        blocked=tuple(sorted(_blocked(view, subscribed, wanted), key=lambda blocked: blocked.at)),
        mark=view.mark,
    )


def _live_owners_and_orphans(view: GroupView) -> tuple[_LiveOwners, list[Owner]]:
    """Match owners with instances that have the same id *and* the same session. The others are orphans."""
    sessions = _by_session(view)
    live: dict[TopicPartition, tuple[str, ...]] = {}
    orphans: list[Owner] = []
    for owner in view.owners:
        instance = owner.instance(sessions.get(owner.session, frozenset()))
        if instance is None:
            orphans.append(owner)
        elif instance not in live.get(owner.at, ()):
            live[owner.at] = (*live.get(owner.at, ()), instance)
    return live, orphans


def _by_session(view: GroupView) -> dict[int, set[str]]:
    sessions: dict[int, set[str]] = {}
    for node in view.instances:
        sessions.setdefault(node.session, set()).add(node.id)
    return sessions


def _subscribed(view: GroupView) -> dict[str, Iterable[str]]:
    return {
        instance.id: subscribed_topics(instance.registration, view.partitions)
        for instance in view.living
        if isinstance(instance.registration, Registration)
    }


def _wanted(view: GroupView, topics: set[str]) -> set[TopicPartition]:
    """The partitions of the topics. For topics unknown to Kafka, the partitions with an owner or an offset."""
    if not topics:
        return set()
    known = {TopicPartition(topic, number) for topic in topics for number in view.partitions.get(topic, ())}
    traces = {owner.at for owner in view.owners} | {offset.at for offset in view.offsets}
    return known | {at for at in traces if at.topic in topics and at.topic not in view.partitions}


def _blocked(
    view: GroupView, subscribed: Mapping[str, Iterable[str]], wanted: set[TopicPartition]
) -> Iterator[BlockedPartition]:
    """Yield the blocked partitions. Owner nodes of pykafka block no other member, as they have other paths."""
    paths = GroupPaths(view.group)
    if not wanted or any(node.path.startswith(paths.ids) for node in view.hidden):
        return
    sessions = _by_session(view)
    unevaluable = {each.id for each in view.instances if isinstance(each.registration, UnevaluableRegistration)}
    for owner in view.owners:
        if owner.at in wanted and owner.path in ("", paths.owner(owner.at)):
            instance = owner.instance(sessions.get(owner.session, frozenset()))
            obstacle = None if instance in unevaluable else _obstacle(owner, instance, subscribed)
            if obstacle is not None:
                yield BlockedPartition(owner.at, owner, obstacle)
    for node in view.unreadable:
        if isinstance(node, MalformedNode) and (at := _owned(paths, node.path)) in wanted and at is not None:
            yield BlockedPartition(at, node, Obstacle.OWNER_UNREADABLE)


def _obstacle(owner: Owner, instance: str | None, subscribed: Mapping[str, Iterable[str]]) -> Obstacle | None:
    if instance is None:
        return Obstacle.NOT_REGISTERED
    if instance not in subscribed:
        return Obstacle.REGISTRATION_UNREADABLE
    return None if owner.at.topic in subscribed[instance] else Obstacle.NOT_SUBSCRIBED


def _owned(paths: GroupPaths, path: str) -> TopicPartition | None:
    """Return the partition of an owner node's path; None for other paths and for paths of pykafka."""
    directory, _, name = path.rpartition("/")
    if parent(directory) != paths.owners:
        return None
    at = decode_owner_path(directory.rpartition("/")[2], name)
    return at if at is not None and paths.owner(at) == path else None


def _group_state(view: GroupView, live: _LiveOwners, unowned: tuple[TopicPartition, ...]) -> GroupState:
    if not view.exists:
        return GroupState.DEAD
    offsets = GroupPaths(view.group).offsets
    if any(not node.path.startswith(offsets) for node in view.hidden):
        return GroupState.UNKNOWN
    if not view.living:
        return GroupState.EMPTY
    if not live:
        return GroupState.PREPARING_REBALANCE
    return GroupState.COMPLETING_REBALANCE if unowned else GroupState.STABLE


def _registered(
    view: GroupView,
    live: _LiveOwners,
    subscribed: Mapping[str, Iterable[str]],
    unsettled: set[str],
) -> Iterator[InstanceDescription]:
    owned: dict[str, list[TopicPartition]] = {}
    for at, instances in sorted(live.items()):
        for instance in instances:
            owned.setdefault(instance, []).append(at)
    dead = {each.id for each in view.dead}
    for node in sorted(view.instances, key=lambda node: node.id):
        mine = tuple(owned.get(node.id, ()))
        if node.id in dead:
            state = InstanceState.DEAD
        elif node.id in subscribed:
            state = _instance_state(mine, unsettled.intersection(subscribed[node.id]))
        else:
            state = InstanceState.UNKNOWN
        yield InstanceDescription(node.id, state, node.session, node.registered_at, node.registration, mine)


def _instance_state(owned: tuple[TopicPartition, ...], unsettled: set[str]) -> InstanceState:
    if not unsettled:
        return InstanceState.STABLE
    return InstanceState.AWAITING_SYNC if owned else InstanceState.JOINING


def _leaving(orphans: Iterable[Owner]) -> Iterator[InstanceDescription]:
    """Yield the unregistered instances that still own partitions, named as in their owner nodes."""
    owned: dict[tuple[str, int], list[TopicPartition]] = {}
    for owner in orphans:
        owned.setdefault((owner.id, owner.session), []).append(owner.at)
    for (instance, session), partitions in sorted(owned.items()):
        yield InstanceDescription(instance, InstanceState.LEAVING, session, None, None, tuple(sorted(partitions)))


def _partitions(view: GroupView, live: _LiveOwners, wanted: set[TopicPartition]) -> tuple[PartitionDescription, ...]:
    owners: dict[TopicPartition, list[Owner]] = {}
    for owner in view.owners:
        owners.setdefault(owner.at, []).append(owner)
    offsets = {offset.at: offset for offset in view.offsets}
    if not wanted and not owners:  # most groups of a large cluster
        return tuple(PartitionDescription(at, (), None, offsets[at]) for at in sorted(offsets, key=_IN_ORDER))
    return tuple(
        PartitionDescription(at, tuple(owners.get(at, ())), live.get(at, (None,))[0], offsets.get(at))
        for at in sorted(wanted | owners.keys() | offsets.keys(), key=_IN_ORDER)
    )


_IN_ORDER: Final = attrgetter("topic", "partition")
"""The order of `TopicPartition`, but faster than its comparison methods."""
