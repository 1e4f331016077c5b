"""Compare the files of a server with its answers, node by node."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zkgroups import Registry
from zkgroups.core.znodes.paths import Part
from zkgroups.core.znodes.values import ForbiddenNode
from zkgroups.datadir.data_dir import DataDir
from zkgroups.zookeeper.reading import tree_walk
from zkgroups.zookeeper.reading.tree_walk import PartDirectory
from zkgroups.zookeeper.requests.bulk_read import Block
from zkgroups.zookeeper.requests.node import Node

Tree = dict[tuple[PartDirectory, str], Node | ForbiddenNode]


def tree_in_files(folder: Path, zxid: int | None = None, *, chroot: str = "") -> Tree:
    """Read all nodes of all groups from the files."""
    data = DataDir(str(folder), chroot=chroot)
    return tree_of(data.groups(data.state(zxid), set(Part)).blocks())


def tree_on_server(hosts: str) -> Tree:
    """Read all nodes of all groups from the server."""
    with Registry.connect(hosts) as registry:
        groups, context = registry.groups(), registry._context
        found = tree_of(tree_walk.registrations(context, groups))
        for part in (Part.OWNERS, Part.OFFSETS):
            found |= tree_of(tree_walk.leaves(context, groups, part))
        return found


def tree_of(blocks: Iterable[Block[PartDirectory]]) -> Tree:
    """Index by place and name, without duplicates."""
    found: Tree = {}
    for place, name, node in tree_walk.nodes(blocks):
        assert (place, name) not in found
        found[place, name] = node
    return found
