"""Checks of owner nodes: partitions that are held by the wrong client, or that nobody owns."""

from __future__ import annotations

from collections.abc import Iterator

from ...exceptions import InvalidNameError
from ..znodes.group_description import Obstacle
from ..znodes.names import check_instance
from ..znodes.owner_codec import decode_owner_path
from ..znodes.paths import Part
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import (
    MalformedNode,
    Owner,
)
from .advice import (
    cannot_be_read,
    command,
    delete_node,
    end_session,
    release,
    repair_group,
    some_partitions,
)
from .findings import Problem, Remove, Repair
from .group_nodes import GroupNodes
from .registration_checks import is_removable


def orphan_owners(nodes: GroupNodes) -> Iterator[Problem]:
    """Find owner nodes without a registration of the same name and the same session."""
    if nodes.has_forbidden_nodes(Part.IDS):
        return  # the registration may be one of the forbidden nodes
    for owner in nodes.description.orphans:
        yield Problem(
            owner.path,
            f"{owner.at} is held by {owner.holder}, which is not registered with that name and session",
            f"if it no longer reads: {release(nodes, owner)}",
        )


def persistent_owners(nodes: GroupNodes) -> Iterator[Problem]:
    """Find owner nodes without a session. They outlive their owner and block the partition."""
    for node in nodes.malformed(Part.OWNERS):
        if node.session == 0:
            at = _owned_partition(node.path)
            repair = _remove_owner(nodes, node) if at and node.path not in nodes.nested else None
            yield Problem(
                node.path,
                f"{at or 'it'} is held by {node.shown}; the node belongs to no session, so it never expires",
                delete_node(node.path) if repair is None else repair_group(nodes),
                repair,
            )


def _owned_partition(path: str) -> TopicPartition | None:
    topic, name = path.split("/")[-2:]
    return decode_owner_path(topic, name)


def _remove_owner(nodes: GroupNodes, node: MalformedNode) -> Repair | None:
    """Repair only a node whose instance will not be registered after registrations are repaired."""
    names = _names_of_owner(node.data)
    registered = {instance.id for instance in nodes.view.instances if not is_removable(nodes, instance)}
    if not names or registered.intersection(names) or nodes.has_forbidden_nodes(Part.IDS):
        return None
    return Repair("delete the node", (Remove(node.path, node.version, persistent=True),), unless=names)


def _names_of_owner(data: bytes) -> tuple[str, ...]:
    """Return the instances that the data may name: with and without a stream number at its end."""
    try:
        owner = check_instance(data.decode())
    except (UnicodeDecodeError, InvalidNameError):
        return ()
    stem, dash, stream = owner.rpartition("-")
    return (owner, stem) if stem and dash and stream.isascii() and stream.isdigit() else (owner,)


def unreadable_owners(nodes: GroupNodes) -> Iterator[Problem]:
    """Find ephemeral owner nodes that do not name an owner or a partition."""
    for node in nodes.malformed(Part.OWNERS):
        if node.session:
            yield Problem(node.path, cannot_be_read("the owner node", node), end_session(node.session))


def two_owners(nodes: GroupNodes) -> Iterator[Problem]:
    """Find partitions with two owners. pykafka uses other paths, so its claims and those of others do not conflict."""
    for partition in nodes.description.partitions:
        if len(partition.owners) > 1:
            plain = nodes.paths.owner(partition.at)
            first, *others = sorted(partition.owners, key=lambda owner: (owner.path != plain, owner.path))
            also = " and ".join(f"{owner.holder} at {owner.path}" for owner in others)
            yield Problem(
                first.path,
                f"{partition.at} is held by {first.holder} and also by {also}: each message is read twice",
                "stop the members of one kind: two kinds of clients in one group do not see each other's claims",
            )


def blocked_partitions(nodes: GroupNodes) -> Iterator[Problem]:
    """Find partitions held by a live instance that does not subscribe to the topic."""
    for blocked in nodes.description.blocked:
        if blocked.obstacle is Obstacle.NOT_SUBSCRIBED and isinstance(blocked.holder, Owner):
            yield Problem(
                blocked.holder.path,
                f"{blocked.at} is held by {blocked.holder.holder}, which does not subscribe to the topic",
                f"if the claim is no longer needed: {release(nodes, blocked.holder)}",
            )


def unowned_partitions(nodes: GroupNodes) -> Iterator[Problem]:
    """Find partitions of subscribed topics that no instance owns."""
    if nodes.has_forbidden_nodes(Part.IDS) or nodes.has_forbidden_nodes(Part.OWNERS):
        return
    topics: dict[str, list[int]] = {}
    for at in nodes.description.unowned:
        if nodes.is_missing(at.topic):
            continue
        topics.setdefault(at.topic, []).append(at.partition)
    for topic, numbers in topics.items():
        yield Problem(
            nodes.paths.owned_topic(topic),
            f"no instance owns {some_partitions(numbers)} of the subscribed topic {topic!r}",
            f"if this persists, restart the instances that own too few: {command('members', 'list', nodes.group)}",
        )
