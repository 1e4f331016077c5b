"""The input of a plan: the offsets and registrations of groups, as `SourceNode` rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Final

from ..core.migration.offset_decision import NoOffset
from ..core.selection import Selection
from ..core.times import LATEST_MS
from ..core.znodes.names import is_topic, parse_partition
from ..core.znodes.offset_codec import is_plain_offset
from ..core.znodes.paths import Part
from ..core.znodes.values import CommittedOffset, ForbiddenNode, UnreadableNode
from ..zookeeper.reading import group_reader, tree_walk
from ..zookeeper.reading.tree_walk import PartDirectory
from ..zookeeper.registry import Registry
from ..zookeeper.requests.node import Node
from ..zookeeper.session.registry_context import context_of
from .plan import SourceNode


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedGroup:
    """A group to plan, and its name on the brokers. The groups of one target come together."""

    group: str
    target: str


_is_topic = lru_cache(maxsize=256)(is_topic)

MAX_NODES: Final = 20_000
"""The most nodes to keep in memory. The groups of one target may have more, because they are never split."""


def source_chunks(registry: Registry, groups: Sequence[NamedGroup], topics: str | None) -> Iterator[list[SourceNode]]:
    """Yield the nodes of these groups, all nodes of some targets at a time."""
    chunk: list[SourceNode] = []
    for found in _by_target(registry, groups, topics):
        if chunk and len(chunk) + len(found) > MAX_NODES:
            yield chunk
            chunk = []
        chunk += found
    if chunk:
        yield chunk


def _by_target(registry: Registry, groups: Sequence[NamedGroup], topics: str | None) -> Iterator[list[SourceNode]]:
    """Yield the nodes of each target. A group without offsets is left out: nothing can be planned for it."""
    context, names = context_of(registry), [each.group for each in groups]
    targets = {each.group: each.target for each in groups}
    members: dict[str, list[SourceNode]] = {}
    for place, name, node in tree_walk.nodes(tree_walk.registrations(context, names)):
        if (member := _member(place.group, targets[place.group], name, node)) is not None:
            members.setdefault(place.group, []).append(member)
    wanted = Selection(topics=topics).has_topic
    offsets = tree_walk.nodes(tree_walk.leaves(context, names, Part.OFFSETS, wanted))
    for target, of_target in groupby(offsets, lambda found: targets[found[0].group]):
        nodes = [_offset(target, *found) for found in of_target]
        with_offsets = dict.fromkeys(node.group for node in nodes)
        yield nodes + [member for group in with_offsets for member in members.get(group, ())]


def _member(group: str, target: str, name: str, node: Node | ForbiddenNode) -> SourceNode | None:
    """Return a registration that may belong to a live client: without a session it has none."""
    if isinstance(node, Node):
        return SourceNode(group=group, target=target, member=True, instance=name) if node.session else None
    # An instance whose data is forbidden is known all the same.
    return SourceNode(
        group=group, target=target, member=True, instance=name or None, problem=_problem(node), forbidden=not name
    )


def _offset(target: str, place: PartDirectory, name: str, node: Node | ForbiddenNode) -> SourceNode:
    group, topic, partition = place.group, place.topic or None, parse_partition(name)
    if isinstance(node, Node):
        if partition is not None and is_plain_offset(node.data) and _is_topic(place.topic):
            return _committed(group, target, place.topic, partition, int(node.data), node)
        found = group_reader.offset_named(group, place.topic, name, node)
        if isinstance(found, CommittedOffset):
            return _committed(group, target, place.topic, found.at.partition, found.offset, node)
        zxid, modified_ms = node.mzxid, _time(node.modified_ms)
    else:
        found, zxid, modified_ms = node, None, None
    return SourceNode(
        group=group,
        target=target,
        member=False,
        topic=topic,
        partition=partition,
        zxid=zxid,
        committed_ms=modified_ms,
        problem=_problem(found),
        no_offset=NoOffset.of(found),
        forbidden=isinstance(found, ForbiddenNode),
    )


def _committed(group: str, target: str, topic: str, partition: int, offset: int, node: Node) -> SourceNode:
    return SourceNode(
        group=group,
        target=target,
        member=False,
        topic=topic,
        partition=partition,
        offset=offset,
        zxid=node.mzxid,
        committed_ms=_time(node.modified_ms),
    )


def _time(ms: int) -> int | None:
    return ms if 0 <= ms <= LATEST_MS else None


def _problem(node: UnreadableNode) -> str:
    return f"{node.path}: {node.reason}"
