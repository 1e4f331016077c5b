"""Read committed offsets and migration marks of several groups in bulk."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from zkgroups import CommittedOffset, ForbiddenNode, Registry, TopicPartition, UnreadableNode
from zkgroups.core.layouts.layout import Layout, OffsetPlace
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.znodes.own_nodes import Mark
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import GroupNotFoundError, MalformedNodeError, NoPermissionError, RefusedError
from zkgroups.zookeeper.admin import migration_marks
from zkgroups.zookeeper.session.session import context_of

from ..shared.arguments import ChosenPartitions, is_chosen
from ..shared.errors import Tally
from ..shared.messages import counted
from ..shared.options import Options


def place_of(node: UnreadableNode, layout: Layout = LEGACY) -> OffsetPlace:
    """Return the group, topic and partition that the path of a node names, as far as it does."""
    found = layout.place(node.path)
    assert found is not None  # the node was read as one of the layout
    return found


def node_error(node: UnreadableNode, layout: Layout = LEGACY) -> NoPermissionError | MalformedNodeError:
    """Return the error for a node that cannot be read."""
    if isinstance(node, ForbiddenNode):
        return NoPermissionError(node.path)
    if layout.has_registrations:
        return MalformedNodeError(node)
    return MalformedNodeError(node, cure="correct it with the program that writes it")


@dataclass(slots=True)
class GroupOffsets:
    """The offsets of one group. `others` has the nodes with invalid partition names, and the forbidden nodes."""

    group: str
    offsets: dict[TopicPartition, CurrentOffset] = field(default_factory=dict)
    others: list[UnreadableNode] = field(default_factory=list)

    @property
    def has_forbidden_nodes(self) -> bool:
        """True if there may be offsets that this client has no permission to read."""
        return any(isinstance(node, ForbiddenNode) for node in self.others)


def read_offsets(
    options: Options,
    registry: Registry,
    groups: Collection[str],
    topics: ChosenPartitions | None = None,
    layout: Layout = LEGACY,
) -> Iterator[CommittedOffset | UnreadableNode]:
    """Yield the chosen offsets of these groups while they are read. Unreadable nodes are yielded in their place."""
    found = registry.offsets(groups, layout=layout)
    return (each for each in counted(options, found, "offsets") if _is_chosen(each, topics, layout))


def _is_chosen(found: CommittedOffset | UnreadableNode, topics: ChosenPartitions | None, layout: Layout) -> bool:
    if topics is None:
        return True
    if isinstance(found, CommittedOffset):
        return is_chosen(found.at, topics)
    place = place_of(found, layout)
    if place.at is not None:
        return is_chosen(place.at, topics)
    # A node above the partitions may hide chosen offsets. A node with an invalid name hides none, so it is chosen only
    # with its whole topic.
    return place.topic is None or (place.topic in topics and (not place.is_misnamed or topics[place.topic] is None))


def read_offsets_by_group(
    options: Options,
    registry: Registry,
    groups: Collection[str],
    topics: ChosenPartitions | None = None,
    layout: Layout = LEGACY,
) -> dict[str, GroupOffsets]:
    """Return the chosen offsets of each of these groups, in order. A group without any has an empty entry."""
    by_group = {name: GroupOffsets(name) for name in groups}
    for found in read_offsets(options, registry, groups, topics, layout):
        if isinstance(found, CommittedOffset):
            by_group[found.group].offsets[found.at] = found
            continue
        place = place_of(found, layout)
        if place.at is None or isinstance(found, ForbiddenNode):
            by_group[place.group].others.append(found)
        else:
            by_group[place.group].offsets[place.at] = found
    return by_group


def group_exists(registry: Registry, name: str, layout: Layout = LEGACY) -> bool:
    """Return whether a layout has a group."""
    return registry.group(name).exists() if layout == LEGACY else name in registry.groups(layout)


def existing_groups(registry: Registry, groups: Iterable[GroupOffsets], tally: Tally) -> list[GroupOffsets]:
    """Return the groups that exist, and report the others as errors."""
    existing = []
    for each in groups:
        if each.offsets or each.others or registry.group(each.group).exists():
            existing.append(each)
        else:
            tally.failed(GroupNotFoundError(each.group))
    return existing


Marks = Mapping[str, migration_marks.ReadMark]


def marks_of(registry: Registry, groups: Iterable[str], layout: Layout = LEGACY) -> Marks:
    """Return the migration marks of these groups. Groups without a mark are left out."""
    return migration_marks.read(context_of(registry), groups, layout)


def moved_targets(registry: Registry, groups: Iterable[str], layout: Layout = LEGACY) -> dict[str, str]:
    """Return the names on the brokers of those groups that were moved there."""
    marks = marks_of(registry, groups, layout)
    return {group: mark.target for group, mark in marks.items() if isinstance(mark, Mark) and mark.is_moved}


def refuse_marked(group: str, marks: Marks) -> None:
    """Raise `RefusedError` if the group has a mark."""
    mark = marks.get(group)
    if isinstance(mark, UnreadableNode):
        raise migration_marks.migrated(group, mark)
    if mark is not None:
        raise RefusedError(
            f"group {group!r} {mark.shown}: change its offsets on the brokers, or undo the move with "
            "`zkgroups migrate rollback`; --force changes the offsets in ZooKeeper, which the moved group does not use"
        )
