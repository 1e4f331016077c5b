"""Reading the current state of whole groups on both sides, in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from ..core.columns import column
from ..core.kafka_values import NativeGroup, NativeOffset
from ..core.layouts.layout import Layout, LayoutOffset
from ..core.layouts.legacy import LEGACY
from ..core.migration.changes_since_plan import PlanRows
from ..core.migration.obstacles import Obstacle, ObstacleKind
from ..core.migration.source_and_target_state import OffsetNodes, SourceState, TargetState, TopicIds
from ..core.znodes.migration_mark import Mark
from ..core.znodes.names import parse_partition
from ..core.znodes.offset_codec import decode_offset, is_plain_offset
from ..core.znodes.paths import Part
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, ForbiddenNode, UnreadableNode
from ..input_errors import InvalidNameError, ZkgroupsException
from ..kafka import Brokers
from ..kafka.sendable import check_native_group
from ..zookeeper.reading import group_reader, layout_reader, tree_walk
from ..zookeeper.reading.tree_walk import PartDirectory
from ..zookeeper.registry import Registry
from ..zookeeper.requests.bulk_read import Block
from ..zookeeper.requests.node import Node
from ..zookeeper.session.registry_context import context_of

# ZooKeeper


def read_sources(registry: Registry, groups: Iterable[str], layout: Layout = LEGACY) -> dict[str, SourceState]:
    """Read the live instances and all offsets of these groups, as the ZooKeeper leader has them now."""
    names = list(dict.fromkeys(groups))
    registry.sync()
    instances: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    unreadable = dict.fromkeys(names, "")
    for siblings in tree_walk.instances(context_of(registry), names if layout.has_registrations else ()):
        group, hidden = siblings.key.group, siblings.key.forbidden
        instances[group] = tuple(siblings.names)
        unreadable[group] = "" if hidden is None else f"{hidden.path}: {hidden.reason}"
    registered = [group for group in names if instances[group]]
    for group, dead in group_reader.read_dead(context_of(registry), registered).items():
        ids = {instance.id for instance in dead}
        instances[group] = tuple(id for id in instances[group] if id not in ids)
    offsets = {group: OffsetNodes() for group in names}
    if layout == LEGACY:
        for block in tree_walk.leaves(context_of(registry), names, Part.OFFSETS):
            _add_nodes(block, offsets)
    else:
        for group, found in layout_reader.read_offsets(context_of(registry), layout, names):
            _add_offsets(found, offsets[group])
    return {group: SourceState(instances[group], offsets[group], unreadable[group]) for group in names}


def _add_nodes(block: Block[PartDirectory], offsets: Mapping[str, OffsetNodes]) -> None:
    """Add the offset nodes in a block to those of their groups."""
    if (plain := tree_walk.plain_offsets(block)) is not None:
        for part in plain:
            offsets[part.group].add(part.places, part.zxids, part.offsets)
        return
    for place, name, node in tree_walk.nodes([block]):
        partition = parse_partition(name)
        if isinstance(node, ForbiddenNode):
            offsets[place.group].add([(place.topic or None, partition)], [None], [None])
        elif partition is not None:
            offsets[place.group].add([(place.topic, partition)], [node.mzxid], [_offset(node)])


def _add_offsets(found: Iterable[LayoutOffset], offsets: OffsetNodes) -> None:
    """Add the offsets of a group in another layout. A node that does not name its partition is left out."""
    for each in found:
        if each.node is None or each.partition is not None:
            offset = each.found.offset if isinstance(each.found, CommittedOffset) else None
            offsets.add([(each.topic, each.partition)], [None if each.node is None else each.node.zxid], [offset])


def _offset(node: Node) -> int | None:
    if is_plain_offset(node.data):
        return int(node.data)
    found = decode_offset(node.path, node.data)
    return None if isinstance(found, UnreadableNode) else found


def mark_obstacles(mark: Mark | UnreadableNode, plan: str) -> list[Obstacle]:
    """Return an obstacle if this is not the mark of this plan."""
    if isinstance(mark, UnreadableNode):
        text = f"the migration mark cannot be read, {mark.path}: {mark.reason}"
    elif mark.plan != plan:
        text = f"the group {mark.shown}"
    else:
        return []
    return [Obstacle(ObstacleKind.OTHER_MARK, detail=text)]


# Brokers


def read_targets(brokers: Brokers, targets: Iterable[str], *, members: bool = True) -> dict[str, TargetState]:
    """Read the committed offsets and the members of these targets. Without `members`, this takes half the time."""
    names, states = _valid_names(targets)
    groups = brokers.groups(names) if members else {}
    committed = brokers.committed_or_error(names)
    return states | {name: _target_state(groups.get(name), committed[name]) for name in names}


def _valid_names(targets: Iterable[str]) -> tuple[list[str], dict[str, TargetState]]:
    """Return the names that can be sent to brokers, and the states of all others."""
    names, invalid = [], {}
    for target in dict.fromkeys(targets):
        try:
            names.append(check_native_group(target))
        except InvalidNameError as error:
            invalid[target] = TargetState(unreadable=str(error))
    return names, invalid


def _target_state(
    group: NativeGroup | ZkgroupsException | None, committed: Mapping[TopicPartition, NativeOffset] | ZkgroupsException
) -> TargetState:
    unreadable = "; ".join(str(each) for each in (group, committed) if isinstance(each, ZkgroupsException))
    if isinstance(group, ZkgroupsException) or isinstance(committed, ZkgroupsException):
        return TargetState(unreadable=unreadable)
    return TargetState(() if group is None else active_members(group), committed)


def active_members(group: NativeGroup) -> tuple[str, ...]:
    """Return the members of a group on the brokers. If it is in use but its members are unknown, name its state."""
    if not group.in_use:
        return ()
    return tuple(map(str, group.members)) or (f"unknown members, state {group.state}",)


def read_topic_ids(brokers: Brokers, plans: Mapping[str, PlanRows]) -> TopicIds:
    """Read the current ids of the topics in these plans. Topics without an id in the plan are left out."""
    ids = (zip(column(rows, "topic"), column(rows, "topic_id"), strict=True) for rows in plans.values())
    known = set(chain.from_iterable(ids))
    names = [topic for topic, id in known if topic is not None and id is not None]
    return brokers.topic_ids(brokers.partitions(names)) if names else {}
