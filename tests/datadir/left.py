"""What a server has left and what it says, both node by node."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zkgroups import Registry
from zkgroups.core.model import DeniedNode
from zkgroups.core.paths import Part
from zkgroups.datadir.data_dir import DataDir
from zkgroups.zookeeper import walk
from zkgroups.zookeeper.bulk import Block
from zkgroups.zookeeper.node import Node
from zkgroups.zookeeper.walk import Place

Tree = dict[tuple[Place, str], Node | DeniedNode]


def left(folder: Path, zxid: int | None = None, *, chroot: str = "") -> Tree:
    """All nodes of all groups, out of the files."""
    data = DataDir(str(folder), chroot=chroot)
    return tree_of(data.groups(data.state(zxid), set(Part)).blocks())


def walked(hosts: str) -> Tree:
    """The same, out of the server."""
    with Registry.connect(hosts) as registry:
        groups, handle = registry.groups(), registry.handle
        found = tree_of(walk.registrations(handle, groups))
        for part in (Part.OWNERS, Part.OFFSETS):
            found |= tree_of(walk.leaves(handle, groups, part))
        return found


def tree_of(blocks: Iterable[Block[Place]]) -> Tree:
    """By place and name; none comes twice."""
    found: Tree = {}
    for place, name, node in walk.nodes(blocks):
        assert (place, name) not in found
        found[place, name] = node
    return found
