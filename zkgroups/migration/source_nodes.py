"""The input of a plan: the offsets and registrations of groups, as `SourceNode` rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ..core.columns import Columns
from ..core.layouts.layout import Layout, LayoutOffset
from ..core.layouts.legacy import LEGACY
from ..core.migration.offset_decision import NoOffset
from ..core.selection import Selection
from ..core.times import LATEST_MS
from ..core.znodes.paths import Part
from ..core.znodes.topic_partition import parse_partition
from ..core.znodes.values import CommittedOffset, ForbiddenNode, UnreadableNode
from ..zookeeper.reading import group_reader, layouts, tree_walk
from ..zookeeper.reading.tree_walk import PartDirectory, PlainOffsets, TopicFilter
from ..zookeeper.registry import Registry
from ..zookeeper.requests.bulk_read import Block
from ..zookeeper.requests.node import Node
from ..zookeeper.session.session import RegistryContext, context_of
from .plan import SourceNode


class NamedGroup(NamedTuple):
    """A group to plan, and its name on the brokers. All groups of a target are consecutive."""

    group: str
    target: str


MAX_NODES: Final = 20_000
"""The most nodes to keep in memory. The groups of one target may have more, because they are never split."""


_Nodes = Sequence[SourceNode]


def source_chunks(
    registry: Registry, groups: Sequence[NamedGroup], topics: str | None, layout: Layout = LEGACY
) -> Iterator[_Nodes]:
    """Yield the nodes of these groups, all nodes of some targets at a time."""
    chunk: list[_Nodes] = []
    size = 0
    for found in _by_target(registry, groups, topics, layout):
        more = sum(map(len, found))
        if chunk and size + more > MAX_NODES:
            yield Columns.joined(SourceNode, chunk)
            chunk, size = [], 0
        chunk += found
        size += more
    if chunk:
        yield Columns.joined(SourceNode, chunk)


def _by_target(
    registry: Registry, groups: Sequence[NamedGroup], topics: str | None, layout: Layout
) -> Iterator[list[_Nodes]]:
    """Yield the nodes of each target. A group without offsets is left out: nothing can be planned for it."""
    context, names = context_of(registry), [each.group for each in groups]
    targets = {each.group: each.target for each in groups}
    members: dict[str, list[SourceNode]] = {}
    registered = tree_walk.registrations(context, names) if layout.has_registrations else ()
    for place, name, node in tree_walk.nodes(registered):
        if (member := _member(place.group, targets[place.group], name, node)) is not None:
            members.setdefault(place.group, []).append(member)
    offsets = _all_offsets(context, targets, Selection(topics=topics).has_topic, layout)
    for _target, of_target in groupby(offsets, lambda found: targets[found[0]]):
        found = [*of_target]
        with_offsets = dict.fromkeys(group for group, _nodes in found)
        yield [*(nodes for _group, nodes in found), *(members[group] for group in with_offsets if group in members)]


def _all_offsets(
    context: RegistryContext, targets: Mapping[str, str], wanted: TopicFilter, layout: Layout
) -> Iterator[tuple[str, _Nodes]]:
    """Yield the offsets of all groups, some of one group at a time."""
    if layout == LEGACY:
        for block in tree_walk.leaves(context, targets, Part.OFFSETS, wanted):
            yield from _offsets(block, targets)
        return
    for group, found in layouts.read_offsets(context, layout, targets, wanted):
        if found:
            yield group, [_offset_of_layout(targets[group], each) for each in found]


def _member(group: str, target: str, name: str, node: Node | ForbiddenNode) -> SourceNode | None:
    """Return a registration; None if it belongs to no session, and so to no live client."""
    if isinstance(node, Node):
        return SourceNode(group=group, target=target, member=True, instance=name) if node.session else None
    # The name of an instance is known even if its data is forbidden.
    return SourceNode(
        group=group, target=target, member=True, instance=name or None, problem=_problem(node), forbidden=not name
    )


def _offsets(block: Block[PartDirectory], targets: Mapping[str, str]) -> Iterator[tuple[str, _Nodes]]:
    """Yield the offsets in a block, some of one group at a time."""
    if (plain := tree_walk.plain_offsets(block)) is not None:
        for group, parts in groupby(plain, attrgetter("group")):
            yield group, _plain(group, targets[group], list(parts))
    else:
        for found in tree_walk.nodes([block]):
            yield found[0].group, [_offset(targets[found[0].group], *found)]


def _plain(group: str, target: str, parts: Sequence[PlainOffsets]) -> Columns[SourceNode]:
    """Return the offsets of a group as columns, because a plan may have millions."""
    ats = [*chain.from_iterable(part.places for part in parts)]
    columns: dict[str, Sequence[Any]] = {
        "group": [group] * len(ats),
        "target": [target] * len(ats),
        "topic": [at[0] for at in ats],
        "partition": [at[1] for at in ats],
        "offset": [*chain.from_iterable(part.offsets for part in parts)],
        "zxid": [*chain.from_iterable(part.zxids for part in parts)],
        "committed_ms": [*map(_time, chain.from_iterable(part.modified_ms for part in parts))],
        "member": [False] * len(ats),
        "forbidden": [False] * len(ats),
    }
    nothing = [None] * len(ats)
    return Columns(SourceNode, len(ats), lambda name: columns.get(name, nothing))


def _offset(target: str, place: PartDirectory, name: str, node: Node | ForbiddenNode) -> SourceNode:
    topic, partition = place.topic or None, parse_partition(name)
    known = SourceNode(group=place.group, target=target, member=False, topic=topic, partition=partition)
    found: CommittedOffset | UnreadableNode
    if isinstance(node, ForbiddenNode):
        found = node
    else:
        found = group_reader.offset_named(place.group, place.topic, name, node)
        known = known._replace(zxid=node.mzxid, committed_ms=_time(node.modified_ms))
    return _with_offset(known, found)


def _offset_of_layout(target: str, offset: LayoutOffset) -> SourceNode:
    found, node = offset.found, offset.node
    known = SourceNode(group=offset.group, target=target, member=False, topic=offset.topic, partition=offset.partition)
    if node is not None:
        known = known._replace(zxid=node.zxid, committed_ms=_time(node.modified_ms))
    return _with_offset(known, found)


def _with_offset(known: SourceNode, found: CommittedOffset | UnreadableNode) -> SourceNode:
    if isinstance(found, CommittedOffset):
        return known._replace(offset=found.offset)
    forbidden = isinstance(found, ForbiddenNode)
    return known._replace(problem=_problem(found), no_offset=NoOffset.of(found), forbidden=forbidden)


def _time(ms: int) -> int | None:
    return ms if 0 <= ms <= LATEST_MS else None


def _problem(node: UnreadableNode) -> str:
    return f"{node.path}: {node.reason}"
