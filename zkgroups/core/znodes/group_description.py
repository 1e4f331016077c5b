"""Describe a group at one moment from its znodes: states, totals, orphans, and partitions without an owner.

A partition is blocked if some instances subscribe to its topic, and another instance holds it. None of the subscribers
can get it before it is released. An instance whose subscription cannot be evaluated may subscribe to any topic, so the
partitions that it holds are never blocked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Final, TypeAlias

from .codec import decode_owner_path
from .migration_mark import Mark
from .paths import GroupPaths, parent
from .states import GroupState, InstanceState
from .subscription import subscribed_topics
from .values import (
    CommittedOffset,
    ForbiddenNode,
    MalformedNode,
    Owner,
    ReadRegistration,
    Registration,
    TopicPartition,
    UnevaluableRegistration,
    UnreadableNode,
)


@dataclass(frozen=True, slots=True)
class RegisteredInstance:
    """A node under `ids`: who, under which session, since when, and what it subscribes to if that can be read."""

    id: str
    session: int
    registration: ReadRegistration
    registered_ms: int = 0
    version: int = 0

    @property
    def persistent(self) -> bool:
        """True if its node belongs to no session, and so never goes away by itself; see `dead_instances`."""
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
    """The znodes of one group, read in one sweep. `partitions` has the topics that Kafka has registered."""

    group: str
    exists: bool = True
    instances: tuple[RegisteredInstance, ...] = ()
    owners: tuple[Owner, ...] = ()
    offsets: tuple[CommittedOffset, ...] = ()
    malformed: tuple[UnreadableNode, ...] = ()
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    mark: Mark | UnreadableNode | None = None
    """Where a migration has moved it, or is moving it."""

    @property
    def dead(self) -> tuple[RegisteredInstance, ...]:
        """The instances that cannot be alive."""
        below = GroupPaths(self.group).owners
        return dead_instances(self.instances, (*self.owners, *(n for n in self.malformed if n.path.startswith(below))))

    @property
    def living(self) -> tuple[RegisteredInstance, ...]:
        """The instances that may be alive."""
        dead = self.dead
        return tuple(each for each in self.instances if each not in dead) if dead else self.instances

    @property
    def hidden(self) -> tuple[ForbiddenNode, ...]:
        """The forbidden nodes whose contents could change the states: not the registrations of dead instances."""
        denied = [node for node in self.malformed if isinstance(node, ForbiddenNode)]
        dead = [instance.registration for instance in self.dead] if denied else []
        return tuple(node for node in denied if node not in dead)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a group: who owns it, and what was committed.

    Two owners are two dialects, whose nodes do not exclude each other; `instance` is then the first of them that lives.
    """

    at: TopicPartition
    owners: tuple[Owner, ...]
    instance: str | None
    offset: CommittedOffset | None


class Obstacle(StrEnum):
    """Why no member can have a partition: what is the matter with the one who holds it."""

    NOT_REGISTERED = "not registered"
    NOT_SUBSCRIBED = "not subscribed"
    REGISTRATION_UNREADABLE = "registration cannot be read"
    OWNER_UNREADABLE = "owner cannot be read"


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A partition that is held by nobody who takes part in sharing its topic, though somebody does."""

    at: TopicPartition
    holder: Owner | MalformedNode
    obstacle: Obstacle

    @property
    def since_ms(self) -> int:
        """Since when it has been held."""
        return self.holder.claimed_ms if isinstance(self.holder, Owner) else self.holder.created_ms


@dataclass(frozen=True, slots=True)
class InstanceDescription:
    """One instance of a group, with its state and what it owns; `registration` is None when it is leaving."""

    id: str
    state: InstanceState
    session: int
    registered_ms: int
    registration: ReadRegistration | None
    owned: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Everything `describe()` tells of a group."""

    group: str
    state: GroupState
    instances: tuple[InstanceDescription, ...]
    partitions: tuple[PartitionDescription, ...]
    orphans: tuple[Owner, ...]
    unowned: tuple[TopicPartition, ...]
    malformed: tuple[UnreadableNode, ...]
    subscribed: tuple[str, ...] = ()
    blocked: tuple[BlockedPartition, ...] = ()
    mark: Mark | UnreadableNode | None = None
    """Where a migration has moved it, or is moving it; nobody can join then."""

    @property
    def members(self) -> int:
        """The number of registered instances that may be alive."""
        gone = (InstanceState.LEAVING, InstanceState.DEAD)
        return sum(instance.state not in gone for instance in self.instances)

    @property
    def unevaluable(self) -> tuple[str, ...]:
        """The instances whose subscriptions cannot be evaluated."""
        return tuple(each.id for each in self.instances if isinstance(each.registration, UnevaluableRegistration))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are subscribed to, owned, or have offsets, sorted."""
        return tuple(sorted({partition.at.topic for partition in self.partitions}.union(self.subscribed)))

    @property
    def owned(self) -> int:
        """How many partitions a living instance owns."""
        return sum(partition.instance is not None for partition in self.partitions)

    @property
    def offsets(self) -> int:
        """How many partitions have a committed offset."""
        return sum(partition.offset is not None for partition in self.partitions)

    @property
    def last_commit_ms(self) -> int | None:
        """When an offset was last committed, None where there is none."""
        return max((p.offset.modified_ms for p in self.partitions if p.offset is not None), default=None)


_Living: TypeAlias = dict[TopicPartition, tuple[str, ...]]
"""The instances that own a partition: one, or two where two dialects do not see each other."""


def describe(view: GroupView) -> GroupDescription:
    """Work out the states of a group and of its instances."""
    living, orphans = _living_and_orphans(view)
    subscribed = _subscribed(view)
    wanted = _wanted(view, {topic for topics in subscribed.values() for topic in topics})
    unowned = tuple(sorted(wanted - living.keys()))
    return GroupDescription(
        group=view.group,
        state=_group_state(view, living, unowned),
        instances=(*_registered(view, living, subscribed, {at.topic for at in unowned}), *_leaving(orphans)),
        partitions=_partitions(view, living, wanted),
        orphans=tuple(orphans),
        unowned=unowned,
        malformed=view.malformed,
        subscribed=tuple(sorted({topic for topics in subscribed.values() for topic in topics})),
        blocked=tuple(sorted(_blocked(view, subscribed, wanted), key=lambda blocked: blocked.at)),
        mark=view.mark,
    )


def _living_and_orphans(view: GroupView) -> tuple[_Living, list[Owner]]:
    """Which instances own what, and the owners that are none: the same name *and* the same session make one."""
    sessions = _by_session(view)
    living: dict[TopicPartition, tuple[str, ...]] = {}
    orphans: list[Owner] = []
    for owner in view.owners:
        instance = owner.instance(sessions.get(owner.session, frozenset()))
        if instance is None:
            orphans.append(owner)
        elif instance not in living.get(owner.at, ()):
            living[owner.at] = (*living.get(owner.at, ()), instance)
    return living, orphans


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
    """Kafka's partitions of the topics; those that left a trace in the group where Kafka has registered none."""
    if not topics:
        return set()
    known = {TopicPartition(topic, number) for topic in topics for number in view.partitions.get(topic, ())}
    traces = {owner.at for owner in view.owners} | {offset.at for offset in view.offsets}
    return known | {at for at in traces if at.topic in topics and at.topic not in view.partitions}


def _blocked(
    view: GroupView, subscribed: Mapping[str, Iterable[str]], wanted: set[TopicPartition]
) -> Iterator[BlockedPartition]:
    """Only by nodes where members make theirs: those of pykafka, which have other paths, stop nobody."""
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
    for node in view.malformed:
        if isinstance(node, MalformedNode) and (at := _owned(paths, node.path)) in wanted and at is not None:
            yield BlockedPartition(at, node, Obstacle.OWNER_UNREADABLE)


def _obstacle(owner: Owner, instance: str | None, subscribed: Mapping[str, Iterable[str]]) -> Obstacle | None:
    if instance is None:
        return Obstacle.NOT_REGISTERED
    if instance not in subscribed:
        return Obstacle.REGISTRATION_UNREADABLE
    return None if owner.at.topic in subscribed[instance] else Obstacle.NOT_SUBSCRIBED


def _owned(paths: GroupPaths, path: str) -> TopicPartition | None:
    """The partition whose owner node this is."""
    directory, _, name = path.rpartition("/")
    if parent(directory) != paths.owners:
        return None
    at = decode_owner_path(directory.rpartition("/")[2], name)
    return at if at is not None and paths.owner(at) == path else None


def _group_state(view: GroupView, living: _Living, unowned: tuple[TopicPartition, ...]) -> GroupState:
    if not view.exists:
        return GroupState.DEAD
    offsets = GroupPaths(view.group).offsets
    if any(not node.path.startswith(offsets) for node in view.hidden):
        return GroupState.UNKNOWN
    if not view.living:
        return GroupState.EMPTY
    if not living:
        return GroupState.PREPARING_REBALANCE
    return GroupState.COMPLETING_REBALANCE if unowned else GroupState.STABLE


def _registered(
    view: GroupView,
    living: _Living,
    subscribed: Mapping[str, Iterable[str]],
    unsettled: set[str],
) -> Iterator[InstanceDescription]:
    owned: dict[str, list[TopicPartition]] = {}
    for at, instances in sorted(living.items()):
        for instance in instances:
            owned.setdefault(instance, []).append(at)
    dead = view.dead
    for node in sorted(view.instances, key=lambda node: node.id):
        mine = tuple(owned.get(node.id, ()))
        if node in dead:
            state = InstanceState.DEAD
        elif node.id in subscribed:
            state = _instance_state(mine, unsettled.intersection(subscribed[node.id]))
        else:
            state = InstanceState.UNKNOWN
        yield InstanceDescription(node.id, state, node.session, node.registered_ms, node.registration, mine)


def _instance_state(owned: tuple[TopicPartition, ...], unsettled: set[str]) -> InstanceState:
    if not unsettled:
        return InstanceState.STABLE
    return InstanceState.AWAITING_SYNC if owned else InstanceState.JOINING


def _leaving(orphans: Iterable[Owner]) -> Iterator[InstanceDescription]:
    """Those whose owner nodes outlive their registration; all that is left to name them by is what they wrote."""
    owned: dict[tuple[str, int], list[TopicPartition]] = {}
    for owner in orphans:
        owned.setdefault((owner.id, owner.session), []).append(owner.at)
    for (instance, session), partitions in sorted(owned.items()):
        yield InstanceDescription(instance, InstanceState.LEAVING, session, 0, None, tuple(sorted(partitions)))


def _partitions(view: GroupView, living: _Living, wanted: set[TopicPartition]) -> tuple[PartitionDescription, ...]:
    owners: dict[TopicPartition, list[Owner]] = {}
    for owner in view.owners:
        owners.setdefault(owner.at, []).append(owner)
    offsets = {offset.at: offset for offset in view.offsets}
    if not wanted and not owners:  # as in most groups of a large tree
        return tuple(PartitionDescription(at, (), None, offsets[at]) for at in sorted(offsets, key=_IN_ORDER))
    return tuple(
        PartitionDescription(at, tuple(owners.get(at, ())), living.get(at, (None,))[0], offsets.get(at))
        for at in sorted(wanted | owners.keys() | offsets.keys(), key=_IN_ORDER)
    )


_IN_ORDER: Final = attrgetter("topic", "partition")
"""As partitions compare, but without a method's call for each comparison."""
