"""`describe`: work out the state of a group, its instances and its partitions from its znodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final, TypeAlias

from .group_description import BlockedPartition, GroupDescription, InstanceDescription, Obstacle, PartitionDescription
from .group_view import GroupView
from .owner_codec import decode_owner_path
from .paths import GroupPaths, parent
from .states import GroupState, InstanceState
from .subscribed_topics import subscribed_topics
from .topic_partition import TopicPartition
from .values import MalformedNode, Owner, Registration, UnevaluableRegistration

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
    dead = view.dead
    for node in sorted(view.instances, key=lambda node: node.id):
        mine = tuple(owned.get(node.id, ()))
        if node in dead:
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
