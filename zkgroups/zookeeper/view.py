"""Reading the znodes of one group into values, in one sweep, whatever is in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from ..core.codec import (
    decode_offset,
    decode_offset_path,
    decode_owner,
    decode_owner_path,
    decode_registration,
    decode_topic,
)
from ..core.describe import GroupView, RegisteredInstance
from ..core.model import CommittedOffset, MalformedNode, Owner, Pattern, Registration, Topic, TopicPartition
from ..core.paths import BROKER_TOPICS, GroupPaths, broker_topic, join, parse_partition
from . import bulk
from .handle import Handle
from .node import Node

T = TypeVar("T")


def read_group(handle: Handle, paths: GroupPaths) -> GroupView:
    """Everything there is of a group, with what Kafka has registered of its topics."""
    deadline = handle.deadline()
    if not handle.session.exists(paths.root, deadline=deadline):
        return GroupView(paths.group, exists=False)
    malformed: list[MalformedNode] = []
    instances = tuple(sorted(_good(read_instances(handle, paths), malformed), key=lambda instance: instance.id))
    malformed += [node.registration for node in instances if isinstance(node.registration, MalformedNode)]
    owners = tuple(_good(read_owners(handle, paths), malformed))
    offsets = tuple(_good(read_offsets(handle, paths), malformed))
    names = _topics_of_interest(handle, instances, owners, offsets, malformed)
    topics = tuple(_good(read_topics(handle, names), malformed))
    return GroupView(
        group=paths.group,
        instances=instances,
        owners=owners,
        offsets=offsets,
        malformed=tuple(malformed),
        partitions={topic.name: topic.partitions for topic in topics},
    )


def _good(values: Iterable[T | MalformedNode], malformed: list[MalformedNode]) -> Iterator[T]:
    """The values that could be read; the others are set aside."""
    for value in values:
        if isinstance(value, MalformedNode):
            malformed.append(value)
        else:
            yield value


def _topics_of_interest(
    handle: Handle,
    instances: Iterable[RegisteredInstance],
    owners: Iterable[Owner],
    offsets: Iterable[CommittedOffset],
    malformed: list[MalformedNode],
) -> list[str]:
    """Those the group has to do with; all of Kafka's where somebody subscribes by a pattern."""
    registrations = [node.registration for node in instances if isinstance(node.registration, Registration)]
    named = {owner.at.topic for owner in owners} | {offset.at.topic for offset in offsets}
    named |= {topic for entry in registrations if entry.pattern is Pattern.STATIC for topic in entry.streams}
    if any(entry.pattern is not Pattern.STATIC for entry in registrations):
        [known] = bulk.children(handle, [BROKER_TOPICS])
        if isinstance(known, MalformedNode):
            malformed.append(known)
        else:
            named.update(known or ())
    return sorted(named)


def read_instances(handle: Handle, paths: GroupPaths) -> Iterator[RegisteredInstance | MalformedNode]:
    """The registered instances; one whose registration cannot be read is still an instance."""
    [names] = bulk.children(handle, [paths.ids])
    if isinstance(names, MalformedNode):
        yield names
        return
    for name, node in zip(names or (), bulk.nodes(handle, (join(paths.ids, n) for n in names or ())), strict=True):
        if isinstance(node, MalformedNode):
            yield RegisteredInstance(name, 0, node)
        elif node is not None:
            yield registered_instance(name, node)


def registered_instance(name: str, node: Node) -> RegisteredInstance:
    """What a node under `ids` says."""
    registration = decode_registration(node.path, node.data, session=node.session, version=node.version)
    return RegisteredInstance(name, node.session, registration, node.created_ms, node.version)


def read_owners(handle: Handle, paths: GroupPaths) -> Iterator[Owner | MalformedNode]:
    """The owners of all partitions, in whichever form they are written."""
    for (topic, name), node in _leaves(handle, paths.owners):
        yield node if isinstance(node, MalformedNode) else owner(topic, name, node)


def owner(topic: str, name: str, node: Node) -> Owner | MalformedNode:
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


def pykafka_owner(handle: Handle, paths: GroupPaths, at: TopicPartition) -> Owner | MalformedNode | None:
    """Who holds the partition as pykafka writes it: the node is named after the leader, too, which may be any."""
    topic = f"b'{at.topic}'"
    directory = paths.owned_topic(topic)
    names = handle.session.children(directory, deadline=handle.deadline()) or []
    mine = [name for name in sorted(names) if decode_owner_path(topic, name) == at]
    for name, node in zip(mine, bulk.nodes(handle, (join(directory, name) for name in mine)), strict=True):
        if node is not None:
            return node if isinstance(node, MalformedNode) else owner(topic, name, node)
    return None


def read_offsets(handle: Handle, paths: GroupPaths) -> Iterator[CommittedOffset | MalformedNode]:
    """The offsets of all partitions."""
    for (topic, name), node in _leaves(handle, paths.offsets):
        yield node if isinstance(node, MalformedNode) else offset_named(paths.group, topic, name, node)


def offset_named(group: str, topic: str, name: str, node: Node) -> CommittedOffset | MalformedNode:
    """What a node under `offsets/<topic>` says."""
    at = decode_offset_path(topic, name)
    if at is None:
        return MalformedNode(node.path, node.data, "its name is no partition", version=node.version)
    return offset(group, at, node)


def offset(group: str, at: TopicPartition, node: Node) -> CommittedOffset | MalformedNode:
    """What the offset node of a partition says."""
    value = decode_offset(node.path, node.data, version=node.version)
    if isinstance(value, MalformedNode):
        return value
    return CommittedOffset(group, at, value, node.version, node.modified_ms, node.created_ms, node.mzxid)


def _leaves(handle: Handle, root: str) -> Iterator[tuple[tuple[str, str], Node | MalformedNode]]:
    """The nodes two levels below, topic by topic in order, sorted as partitions are.

    Memory holds the names of as many topics as are asked for together, and the nodes of one such window.
    """
    [topics] = bulk.children(handle, [root])
    if isinstance(topics, MalformedNode):
        yield ("", ""), topics
        return
    topics = sorted(topics or ())
    for topic, names in zip(topics, bulk.children(handle, (join(root, t) for t in topics)), strict=True):
        if isinstance(names, MalformedNode):
            yield (topic, ""), names
            continue
        ordered = sorted(names or (), key=_by_number)
        for name, node in zip(ordered, bulk.nodes(handle, (join(root, topic, n) for n in ordered)), strict=True):
            if node is not None:
                yield (topic, name), node


def _by_number(name: str) -> tuple[int, str]:
    partition = parse_partition(name)
    return (-1 if partition is None else partition, name)


def read_topics(handle: Handle, names: Iterable[str]) -> Iterator[Topic | MalformedNode]:
    """What Kafka has registered of these topics; nothing of one it does not know."""
    names = list(names)
    for name, node in zip(names, bulk.nodes(handle, map(broker_topic, names)), strict=True):
        if isinstance(node, MalformedNode):
            yield node
        elif node is not None:
            yield decode_topic(node.path, name, node.data)
