"""Reading the znodes of groups into values, in one sweep, whatever is in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final, Self, TypeVar

from ...core.times import to_ms
from ...core.znodes.broker_codec import decode_topic
from ...core.znodes.group_view import GroupView, RegisteredInstance, dead_instances
from ...core.znodes.names import is_topic, parse_partition
from ...core.znodes.offset_codec import decode_offset, decode_offset_path, is_plain_offset
from ...core.znodes.owner_codec import decode_owner, decode_owner_path
from ...core.znodes.paths import BROKER_TOPICS, MIGRATION, GroupPaths, Part, broker_topic, join
from ...core.znodes.registration_codec import decode_registration
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import (
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
from ..admin import migration_marks
from ..requests import bulk_read
from ..requests.bulk_read import Siblings, failed_read
from ..requests.multiread import Record
from ..requests.node import Node
from ..session.registry_context import RegistryContext
from . import tree_walk
from .forbidden_nodes import with_stats
from .tree_walk import PartDirectory, TopicFilter, all_topics

T = TypeVar("T")

TOGETHER: Final = 64
MOST_TOGETHER: Final = 256
"""Groups that are in memory at a time: few at first, so that something is there soon, and then more."""


def read_groups(context: RegistryContext, groups: Iterable[str]) -> Iterator[GroupView]:
    """Everything there is of these groups, in their order, with what Kafka has registered of their topics."""
    waiting = iter(groups)
    together = TOGETHER
    while some := list(islice(waiting, together)):
        yield from _read_together(context, some)
        together = min(2 * together, MOST_TOGETHER)


def _read_together(context: RegistryContext, groups: Sequence[str]) -> Iterator[GroupView]:
    """In one sweep for each kind of node, however many groups there are."""
    roots = bulk_read.children(context, (GroupPaths(group).root for group in groups))
    there = {group: found for group, found in zip(groups, roots, strict=True) if found is not None}
    marked = migration_marks.read(context, (group for group, found in there.items() if _may_have(found, MIGRATION)))
    instances = _by_group(read_instances(context, groups))
    owners = _by_group(read_owners(context, groups))
    offsets = _by_group((group, offset) for group, some in read_offsets(context, groups) for offset in some)
    sweeps = {group: _Sweep.of(group, instances[group], owners[group], offsets[group]) for group in groups}
    topics = _Topics.read(context, sweeps.values())
    for group, sweep in sweeps.items():
        found = sweep.view(topics) if group in there else GroupView(group, exists=False)
        yield replace(found, mark=marked[group]) if group in marked else found


def _may_have(names: list[str] | ForbiddenNode, name: str) -> bool:
    return isinstance(names, ForbiddenNode) or name in names


def _by_group(found: Iterable[tuple[str, T]]) -> defaultdict[str, list[T]]:
    groups: defaultdict[str, list[T]] = defaultdict(list)
    for group, value in found:
        groups[group].append(value)
    return groups


@dataclass(slots=True)
class _Sweep:
    """What was found in a group's own nodes."""

    group: str
    instances: list[RegisteredInstance]
    owners: list[Owner]
    offsets: list[CommittedOffset]
    malformed: list[UnreadableNode]

    @classmethod
    def of(
        cls,
        group: str,
        instances: Iterable[RegisteredInstance | UnreadableNode],
        owners: Iterable[Owner | UnreadableNode],
        offsets: Iterable[CommittedOffset | UnreadableNode],
    ) -> Self:
        """Set aside what cannot be read."""
        malformed: list[UnreadableNode] = []
        good = list(_good(instances, malformed))
        malformed += [bad for node in good if (bad := unreadable_part(node.registration)) is not None]
        return cls(group, good, list(_good(owners, malformed)), list(_good(offsets, malformed)), malformed)

    @property
    def registrations(self) -> Iterator[Registration]:
        """Those that can be read."""
        return (node.registration for node in self.instances if isinstance(node.registration, Registration))

    @property
    def has_patterns(self) -> bool:
        """Whether somebody subscribes by a pattern, so that all of Kafka's topics matter."""
        return any(registration.pattern is not Pattern.STATIC for registration in self.registrations)

    def named_topics(self) -> set[str]:
        """The topics that the group names anywhere."""
        static = (entry for entry in self.registrations if entry.pattern is Pattern.STATIC)
        named = {topic for registration in static for topic in registration.streams}
        return named | {owner.at.topic for owner in self.owners} | {offset.at.topic for offset in self.offsets}

    def view(self, topics: _Topics) -> GroupView:
        """Together with what Kafka has registered."""
        of_interest = self.named_topics().union(topics.names if self.has_patterns else ())
        found = [topics.found[name] for name in sorted(of_interest) if name in topics.found]
        hidden = [topics.hidden] if topics.hidden is not None and self.has_patterns else []
        malformed = [*self.malformed, *hidden]
        partitions = {topic.name: topic.partitions for topic in _good(found, malformed)}
        return GroupView(
            group=self.group,
            instances=tuple(self.instances),
            owners=tuple(self.owners),
            offsets=tuple(self.offsets),
            malformed=tuple(malformed),
            partitions=partitions,
        )


@dataclass(slots=True)
class _Topics:
    """What Kafka has registered: of the topics that matter, and where somebody subscribes by a pattern, all names."""

    found: dict[str, Topic | UnreadableNode]
    names: list[str]
    hidden: ForbiddenNode | None

    @classmethod
    def read(cls, context: RegistryContext, sweeps: Collection[_Sweep]) -> Self:
        """Read each topic once, however many groups have to do with it."""
        known: list[str] | ForbiddenNode | None = []
        if any(sweep.has_patterns for sweep in sweeps):
            [known] = bulk_read.children(context, [BROKER_TOPICS])
        names = known if isinstance(known, list) else []
        wanted = sorted(set(names).union(*(sweep.named_topics() for sweep in sweeps)))
        nodes = zip(wanted, read_topics(context, wanted), strict=True)
        return cls(
            {topic: node for topic, node in nodes if node is not None},
            names,
            known if isinstance(known, ForbiddenNode) else None,
        )


def _good(values: Iterable[T | UnreadableNode], malformed: list[UnreadableNode]) -> Iterator[T]:
    """The values that could be read; the others are set aside."""
    for value in values:
        if isinstance(value, UnreadableNode):
            malformed.append(value)
        else:
            yield value


def read_instances(
    context: RegistryContext, groups: Iterable[str]
) -> Iterator[tuple[str, RegisteredInstance | UnreadableNode]]:
    """The registered instances, sorted by id; one whose registration cannot be read is still an instance."""
    for block in tree_walk.registrations(context, groups):
        found = list(tree_walk.nodes([block]))
        denied = with_stats(context, [node for _, name, node in found if name and isinstance(node, ForbiddenNode)])
        for place, name, node in found:
            if isinstance(node, Node):
                yield place.group, registered_instance(name, node)
            else:
                yield place.group, _denied_instance(name, denied[node.path]) if name else node


def _denied_instance(name: str, node: ForbiddenNode) -> RegisteredInstance:
    return RegisteredInstance(name, node.session, node, to_ms(node.created_at), node.version)


def read_dead(context: RegistryContext, groups: Iterable[str]) -> dict[str, tuple[RegisteredInstance, ...]]:
    """The registered instances that cannot be alive, of those groups that have any; see `core.dead_instances`."""
    instances = _by_group(read_instances(context, groups))
    suspects = [group for group, some in instances.items() if any(map(_is_persistent, some))]
    owners = _by_group(read_owners(context, suspects)) if suspects else {}
    dead = {group: dead_instances(_good(instances[group], []), owners.get(group, ())) for group in suspects}
    return {group: some for group, some in dead.items() if some}


def _is_persistent(instance: RegisteredInstance | UnreadableNode) -> bool:
    return isinstance(instance, RegisteredInstance) and instance.persistent


def registered_instance(name: str, node: Node) -> RegisteredInstance:
    """What a node under `ids` says."""
    registration = decode_registration(node.path, node.data, session=node.session, version=node.version)
    return RegisteredInstance(name, node.session, registration, node.created_ms, node.version)


def read_owners(
    context: RegistryContext, groups: Iterable[str], wanted: TopicFilter = all_topics
) -> Iterator[tuple[str, Owner | UnreadableNode]]:
    """The owners of all partitions, in whichever form they are written."""
    for place, name, node in tree_walk.nodes(tree_walk.leaves(context, groups, Part.OWNERS, wanted)):
        yield place.group, owner(place.topic, name, node) if isinstance(node, Node) else node


def owner(topic: str, name: str, node: Node) -> Owner | UnreadableNode:
    """What a node under `owners/<topic>` says."""
    return decode_owner(
        node.path,
        decode_owner_path(topic, name),
        node.data,
        session=node.session,
        claimed_ms=node.created_ms,
        version=node.version,
        czxid=node.czxid,
    )


def pykafka_owner(context: RegistryContext, paths: GroupPaths, at: TopicPartition) -> Owner | UnreadableNode | None:
    """Who holds the partition as pykafka writes it: the node is named after the leader, too, which may be any."""
    topic = f"b'{at.topic}'"
    directory = paths.owned_topic(topic)
    names = context.session.children(directory, deadline=context.deadline()) or []
    mine = [name for name in sorted(names) if decode_owner_path(topic, name) == at]
    for name, node in zip(mine, bulk_read.nodes(context, (join(directory, name) for name in mine)), strict=True):
        if node is not None:
            return node if isinstance(node, UnreadableNode) else owner(topic, name, node)
    return None


def read_offsets(
    context: RegistryContext, groups: Iterable[str]
) -> Iterator[tuple[str, Iterator[CommittedOffset | UnreadableNode]]]:
    """The offsets of all partitions of these groups, topic by topic: each must be taken before the next."""
    for block in tree_walk.leaves(context, groups, Part.OFFSETS):
        found = block.records()
        for siblings in block.parts:
            hidden = siblings.key.forbidden
            yield siblings.key.group, _offsets(siblings, found) if hidden is None else iter([hidden])


def every_offset(context: RegistryContext, groups: Iterable[str]) -> Iterator[CommittedOffset | UnreadableNode]:
    """The same as one stream."""
    return chain.from_iterable(offsets for _group, offsets in read_offsets(context, groups))


def _offsets(
    siblings: Siblings[PartDirectory], found: Iterator[Record | int]
) -> Iterator[CommittedOffset | UnreadableNode]:
    """Those of one topic. There may be millions, so that what is plainly an offset is made one without a detour."""
    group, topic = siblings.key.group, siblings.key.topic
    plain = is_topic(topic)
    for name in siblings.names:
        record = next(found)
        if isinstance(record, int):
            if (denied := failed_read(siblings.path(name), record)) is not None:
                yield denied
            continue
        data, _, mzxid, created, modified, version, _ = record
        partition = parse_partition(name)
        if plain and partition is not None and is_plain_offset(data):
            at = TopicPartition.checked(topic, partition)
            yield CommittedOffset(group, at, int(data), version, modified, created, mzxid)
        else:
            yield offset_named(group, topic, name, Node(siblings.path(name), *record))


def offset_named(group: str, topic: str, name: str, node: Node) -> CommittedOffset | UnreadableNode:
    """What a node under `offsets/<topic>` says."""
    at = decode_offset_path(topic, name)
    if at is None:
        return MalformedNode(node.path, node.data, "its name is not a partition", version=node.version)
    return offset(group, at, node)


def offset(group: str, at: TopicPartition, node: Node) -> CommittedOffset | UnreadableNode:
    """What the offset node of a partition says."""
    value = decode_offset(node.path, node.data, version=node.version)
    if isinstance(value, UnreadableNode):
        return value
    return CommittedOffset(group, at, value, node.version, node.modified_ms, node.created_ms, node.mzxid)


def read_topics(context: RegistryContext, names: Sequence[str]) -> Iterator[Topic | UnreadableNode | None]:
    """What Kafka has registered of these topics, in their order; None of one it does not know."""
    for name, node in zip(names, bulk_read.nodes(context, map(broker_topic, names)), strict=True):
        yield decode_topic(node.path, name, node.data) if isinstance(node, Node) else node
