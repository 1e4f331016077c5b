"""Decide whether a group is in use, from its description."""

from __future__ import annotations

from ..znodes.group_description import GroupDescription
from ..znodes.paths import GroupPaths
from ..znodes.states import InstanceState
from ..znodes.values import UnreadableNode


def in_use(group: GroupDescription) -> bool:
    """True if a registered instance may be alive, or if the group has any owner node."""
    alive = any(instance.state is not InstanceState.DEAD for instance in group.instances)
    return alive or any(partition.owners for partition in group.partitions)


def unreadable_nodes(group: GroupDescription) -> tuple[UnreadableNode, ...]:
    """Return the nodes below the group that cannot be read, and so cannot be exported."""
    root = GroupPaths(group.group).root
    return tuple(node for node in group.unreadable if f"{node.path}/".startswith(f"{root}/"))
