"""Read the znodes of groups and decode them into values, with one bulk read for each kind of node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final, Self, TypeVar

from ...core.times import from_ms
from ...core.znodes.codecs import (
    MISNAMED,
    decode_broker,
    decode_offset,
    decode_offset_path,
    decode_owner,
    decode_owner_path,
    decode_topic,
    is_plain_offset,
)
from ...core.znodes.group_description import GroupView, RegisteredInstance, dead_instances
from ...core.znodes.own_nodes import CommitDetails, decode_details
from ...core.znodes.paths import BROKER_IDS, BROKER_TOPICS, MIGRATION, GroupPaths, Part, broker_topic, join
from ...core.znodes.registrations import decode_registration
from ...core.znodes.topic_partition import TopicPartition, is_topic, parse_partition
from ...core.znodes.values import (
    Broker,
    CommittedOffset,
    ForbiddenNode,
    MalformedNode,
    Owner,
    Pattern,
    Registration,
    Topic,
    UnreadableNode,
    unreadable_part,
)
from ...exceptions import NoPermissionError
from ..admin import migration_marks
from ..requests import bulk_read
from ..requests.bulk_read import Siblings, failed_read
from ..requests.multiread import Record
from ..requests.node import Node
from ..session.session import RegistryContext
from . import tree_walk
from .tree_walk import PartDirectory, TopicFilter, all_topics

# Read the stats of forbidden nodes. ZooKeeper before 3.9 reports them to all clients.


def with_stats(context: RegistryContext, forbidden: Sequence[ForbiddenNode]) -> dict[str, ForbiddenNode]:
    """Return the nodes by path, with the fields of their stats if the server reports them."""
    session = context.session
    stats = session.call_all(session.client.exists_async, [node.path for node in forbidden], context.deadline)
    return {
        node.path: node
        if stat is None or isinstance(stat, NoPermissionError)
        else ForbiddenNode(
            node.path,
            node.reason,
            stat.ephemeralOwner,
            stat.version,
            from_ms(stat.ctime),
            persistent=stat.ephemeralOwner == 0 and stat.numChildren == 0,
        )
        for node, stat in zip(forbidden, stats, strict=True)
    }


# Read the znodes of groups and decode them into values, with one bulk read for each kind of node.
#
# A node that cannot be decoded, or is forbidden, becomes an `UnreadableNode` and does not affect other nodes.


T = TypeVar("T")

GROUPS_AT_ONCE: Final = 64
MAX_GROUPS_AT_ONCE: Final = 256
"""How many groups to keep in memory at a time: few at first, so that the first result is available soon."""


def read_groups(context: RegistryContext, groups: Iterable[str], *, with_offsets: bool = True) -> Iterator[GroupView]:
    """Read these groups completely, in order, with the partitions that Kafka has registered for their topics.

    Without offsets, a group costs a few reads, however many partitions it has offsets for.
    """
    remaining = iter(groups)
    count = GROUPS_AT_ONCE
    while batch := list(islice(remaining, count)):
        yield from _read_batch(context, batch, with_offsets=with_offsets)
        count = min(2 * count, MAX_GROUPS_AT_ONCE)


def _read_batch(context: RegistryContext, groups: Sequence[str], *, with_offsets: bool) -> Iterator[GroupView]:
    roots = bulk_read.children(context, (GroupPaths(group).root for group in groups))
    existing = {group: names for group, names in zip(groups, roots, strict=True) if names is not None}
    marked = migration_marks.read(context, (group for group, names in existing.items() if _may_have(names, MIGRATION)))
    instances = _by_group(read_instances(context, groups))
    owners = _by_group(read_owners(context, groups))
    offset_groups = groups if with_offsets else ()
    offsets = _by_group((group, offset) for group, some in read_offsets(context, offset_groups) for offset in some)
    decoded = {group: _DecodedGroup.of(group, instances[group], owners[group], offsets[group]) for group in groups}
    topics = _RegisteredTopics.read(context, decoded.values())
    for group, nodes in decoded.items():
        view = nodes.view(topics) if group in existing else GroupView(group, exists=False)
        yield replace(view, mark=marked[group]) if group in marked else view


def _may_have(names: list[str] | ForbiddenNode, name: str) -> bool:
    return isinstance(names, ForbiddenNode) or name in names


def _by_group(found: Iterable[tuple[str, T]]) -> defaultdict[str, list[T]]:
    groups: defaultdict[str, list[T]] = defaultdict(list)
    for group, value in found:
        groups[group].append(value)
    return groups


@dataclass(slots=True)
class _DecodedGroup:
    """The decoded nodes of one group, without Kafka's topics."""

    group: str
    instances: list[RegisteredInstance]
    owners: list[Owner]
    offsets: list[CommittedOffset]
    unreadable: list[UnreadableNode]

    @classmethod
    def of(
        cls,
        group: str,
        instances: Iterable[RegisteredInstance | UnreadableNode],
        owners: Iterable[Owner | UnreadableNode],
        offsets: Iterable[CommittedOffset | UnreadableNode],
    ) -> Self:
        """Separate the unreadable nodes from the others."""
        unreadable: list[UnreadableNode] = []
        good = list(_readable(instances, unreadable))
        unreadable += [bad for node in good if (bad := unreadable_part(node.registration)) is not None]
        return cls(group, good, list(_readable(owners, unreadable)), list(_readable(offsets, unreadable)), unreadable)

    @property
    def registrations(self) -> Iterator[Registration]:
        """The registrations that can be read and evaluated."""
        return (node.registration for node in self.instances if isinstance(node.registration, Registration))

    @property
    def has_patterns(self) -> bool:
        """True if an instance subscribes by a pattern, which may match any topic."""
        return any(registration.pattern is not Pattern.STATIC for registration in self.registrations)

    def named_topics(self) -> set[str]:
        """Return the topics of all subscriptions without patterns, owners and offsets."""
        static = (entry for entry in self.registrations if entry.pattern is Pattern.STATIC)
        named = {topic for registration in static for topic in registration.streams}
        return named | {owner.at.topic for owner in self.owners} | {offset.at.topic for offset in self.offsets}

    def view(self, topics: _RegisteredTopics) -> GroupView:
        """Add Kafka's topics."""
        wanted = self.named_topics().union(topics.names if self.has_patterns else ())
        registered = [topics.by_name[name] for name in sorted(wanted) if name in topics.by_name]
        forbidden = [topics.forbidden] if topics.forbidden is not None and self.has_patterns else []
        unreadable = [*self.unreadable, *forbidden]
        partitions = {topic.name: topic.partitions for topic in _readable(registered, unreadable)}
        return GroupView(
            group=self.group,
            instances=tuple(self.instances),
            owners=tuple(self.owners),
            offsets=tuple(self.offsets),
            unreadable=tuple(unreadable),
            partitions=partitions,
        )


@dataclass(slots=True)
class _RegisteredTopics:
    """The topics that Kafka has registered. `names` are all topics, but only if a group subscribes by a pattern."""

    by_name: dict[str, Topic | UnreadableNode]
    names: list[str]
    forbidden: ForbiddenNode | None

    @classmethod
    def read(cls, context: RegistryContext, groups: Collection[_DecodedGroup]) -> Self:
        """Read each topic once, even if several groups need it."""
        listed: list[str] | ForbiddenNode | None = []
        if any(group.has_patterns for group in groups):
            listed = topic_names(context)
        names = listed if isinstance(listed, list) else []
        wanted = sorted(set(names).union(*(group.named_topics() for group in groups)))
        nodes = zip(wanted, read_topics(context, wanted), strict=True)
        return cls(
            {topic: node for topic, node in nodes if node is not None},
            names,
            listed if isinstance(listed, ForbiddenNode) else None,
        )


def _readable(values: Iterable[T | UnreadableNode], unreadable: list[UnreadableNode]) -> Iterator[T]:
    """Yield the readable values, and append the others to `unreadable`."""
    for value in values:
        if isinstance(value, UnreadableNode):
            unreadable.append(value)
        else:
            yield value


def read_instances(
    context: RegistryContext, groups: Iterable[str]
) -> Iterator[tuple[str, RegisteredInstance | UnreadableNode]]:
    """Yield the registered instances, sorted by id. An instance may have an unreadable registration."""
    for block in tree_walk.registrations(context, groups):
        nodes = list(tree_walk.nodes([block]))
        forbidden = with_stats(context, [node for _, name, node in nodes if name and isinstance(node, ForbiddenNode)])
        for directory, name, node in nodes:
            if isinstance(node, Node):
                yield directory.group, registered_instance(name, node)
            else:
                yield directory.group, _forbidden_instance(name, forbidden[node.path]) if name else node


def _forbidden_instance(name: str, node: ForbiddenNode) -> RegisteredInstance:
    return RegisteredInstance(name, node.session, node, node.created_at, node.version)


def read_dead(context: RegistryContext, groups: Iterable[str]) -> dict[str, tuple[RegisteredInstance, ...]]:
    """Return the registered instances that cannot be alive, for groups that have any. See `dead_instances`."""
    instances = _by_group(read_instances(context, groups))
    suspects = [group for group, some in instances.items() if any(map(_is_persistent, some))]
    owners = _by_group(read_owners(context, suspects)) if suspects else {}
    dead = {group: dead_instances(_readable(instances[group], []), owners.get(group, ())) for group in suspects}
    return {group: some for group, some in dead.items() if some}


def _is_persistent(instance: RegisteredInstance | UnreadableNode) -> bool:
    return isinstance(instance, RegisteredInstance) and instance.persistent


def registered_instance(name: str, node: Node) -> RegisteredInstance:
    """Decode a node under `ids`."""
    registration = decode_registration(node.path, node.data, session=node.session, version=node.version)
    return RegisteredInstance(name, node.session, registration, from_ms(node.created_ms), node.version)


def read_owners(
    context: RegistryContext, groups: Iterable[str], wanted: TopicFilter = all_topics
) -> Iterator[tuple[str, Owner | UnreadableNode]]:
    """Yield the owners of all partitions, in all formats that clients write."""
    for directory, name, node in tree_walk.nodes(tree_walk.leaves(context, groups, Part.OWNERS, wanted)):
        yield directory.group, owner(directory.topic, name, node) if isinstance(node, Node) else node


def owner(topic: str, name: str, node: Node) -> Owner | UnreadableNode:
    """Decode a node under `owners/<topic>`."""
    return decode_owner(
        node.path,
        decode_owner_path(topic, name),
        node.data,
        session=node.session,
        claimed_at=from_ms(node.created_ms),
        version=node.version,
        czxid=node.czxid,
    )


def pykafka_owner(context: RegistryContext, paths: GroupPaths, at: TopicPartition) -> Owner | UnreadableNode | None:
    """Return the owner of a partition in pykafka's format, whose node name contains the partition's leader."""
    topic = f"b'{at.topic}'"
    directory = paths.owned_topic(topic)
    names = context.session.children(directory, deadline=context.deadline()) or []
    matching = [name for name in sorted(names) if decode_owner_path(topic, name) == at]
    nodes = bulk_read.nodes(context, (join(directory, name) for name in matching))
    for name, node in zip(matching, nodes, strict=True):
        if node is not None:
            return node if isinstance(node, UnreadableNode) else owner(topic, name, node)
    return None


def read_offsets(
    context: RegistryContext, groups: Iterable[str]
) -> Iterator[tuple[str, Iterator[CommittedOffset | UnreadableNode]]]:
    """Yield the offsets of these groups, topic by topic. Exhaust each iterator before taking the next one."""
    for block in tree_walk.leaves(context, groups, Part.OFFSETS):
        records = block.records()
        for siblings in block.parts:
            forbidden = siblings.key.forbidden
            yield siblings.key.group, _offsets(siblings, records) if forbidden is None else iter([forbidden])


def every_offset(context: RegistryContext, groups: Iterable[str]) -> Iterator[CommittedOffset | UnreadableNode]:
    """Yield the offsets of these groups as one stream."""
    return chain.from_iterable(offsets for _group, offsets in read_offsets(context, groups))


def _offsets(
    siblings: Siblings[PartDirectory], records: Iterator[Record | int]
) -> Iterator[CommittedOffset | UnreadableNode]:
    """Yield the offsets of one topic. There can be millions, so plain offsets are decoded by a fast path."""
    group, topic = siblings.key.group, siblings.key.topic
    plain = is_topic(topic)
    for name in siblings.names:
        record = next(records)
        if isinstance(record, int):
            if (forbidden := failed_read(siblings.path(name), record)) is not None:
                yield forbidden
            continue
        data, _, mzxid, created, modified, version, _ = record
        partition = parse_partition(name)
        if plain and partition is not None and is_plain_offset(data):
            at = TopicPartition.checked(topic, partition)
            yield CommittedOffset(group, at, int(data), version, from_ms(modified), from_ms(created), mzxid)
        else:
            yield offset_named(group, topic, name, Node(siblings.path(name), *record))


def offset_named(group: str, topic: str, name: str, node: Node) -> CommittedOffset | UnreadableNode:
    """Decode a node under `offsets/<topic>`."""
    at = decode_offset_path(topic, name)
    if at is None:
        return MalformedNode(node.path, node.data, MISNAMED, version=node.version)
    return offset(group, at, node)


def offset(group: str, at: TopicPartition, node: Node) -> CommittedOffset | UnreadableNode:
    """Decode the offset node of a partition."""
    value = decode_offset(node.path, node.data, version=node.version)
    if isinstance(value, UnreadableNode):
        return value
    times = from_ms(node.modified_ms), from_ms(node.created_ms)
    return CommittedOffset(group, at, value, node.version, *times, node.mzxid)


def topic_names(context: RegistryContext) -> list[str] | ForbiddenNode | None:
    """Return the names of all topics, or None if ZooKeeper has no directory of topics."""
    if context.topics is not None and (found := context.topics(None)) is not None:
        return sorted(found)
    [listed] = bulk_read.children(context, [BROKER_TOPICS])
    return listed


def read_topics(context: RegistryContext, names: Sequence[str]) -> Iterator[Topic | UnreadableNode | None]:
    """Yield these topics as Kafka has registered them, in order. None for a missing topic."""
    if context.topics is not None and (found := context.topics(names)) is not None:
        for name in names:
            numbers = found.get(name)
            if numbers is not None:
                yield Topic(name, tuple(sorted(numbers)))
            else:
                yield ForbiddenNode(broker_topic(name)) if name in found else None
        return
    for name, node in zip(names, bulk_read.nodes(context, map(broker_topic, names)), strict=True):
        yield decode_topic(node.path, name, node.data) if isinstance(node, Node) else node


def read_brokers(context: RegistryContext) -> list[Broker | UnreadableNode]:
    """Return the live brokers, sorted by id."""
    ids = context.session.children(BROKER_IDS, deadline=context.deadline()) or []
    ordered = sorted(ids, key=lambda name: (len(name), name))
    nodes = bulk_read.nodes(context, (join(BROKER_IDS, name) for name in ordered))
    return [
        decode_broker(node.path, name, node.data) if isinstance(node, Node) else node
        for name, node in zip(ordered, nodes, strict=True)
        if node is not None
    ]


# Read the details of commits (`core/znodes/own_nodes.py`): the metadata and the leader epoch of each offset.


def read_details(
    context: RegistryContext, paths: GroupPaths, offsets: Sequence[CommittedOffset]
) -> dict[TopicPartition, CommitDetails]:
    """Return the details of these offsets. Offsets without details are left out."""
    [topics] = bulk_read.children(context, [paths.details])
    if topics is None or not offsets:
        return {}
    some = offsets if isinstance(topics, ForbiddenNode) else [each for each in offsets if each.at.topic in topics]
    nodes = bulk_read.nodes(context, [paths.details_of(each.at) for each in some])
    return {
        each.at: decode_details(node.data, offset=each.offset, version=each.version)
        for each, node in zip(some, nodes, strict=True)
        if isinstance(node, Node)
    }
