"""Checks of the group as a whole: forbidden nodes, empty groups, nested nodes and open ACLs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ..znodes.paths import join
from ..znodes.values import (
    ForbiddenNode,
)
from .advice import (
    repair_group,
)
from .findings import Problem, Remove, Repair
from .group_nodes import GroupNodes


def forbidden_nodes(nodes: GroupNodes) -> Iterator[Problem]:
    """Find forbidden nodes. They may have problems of their own, and hide others."""
    for node in (*nodes.view.unreadable, *(each.found for each in nodes.singular)):
        if isinstance(node, ForbiddenNode):
            yield Problem(
                node.path,
                "no permission to read it, so it was not checked",
                "run the doctor with credentials that may read it",
            )


def empty_groups(nodes: GroupNodes) -> Iterator[Problem]:
    """Find groups that consist of empty directories."""
    if nodes.has_only_directories:
        what = "the group has no registrations, owners or offsets, only empty directories"
        yield Problem(nodes.paths.root, what, repair_group(nodes), _remove_all(nodes))


def _remove_all(nodes: GroupNodes) -> Repair | None:
    """Delete all directories, if every child is a known directory and none has data."""
    seen = {directory.path: directory for directory in nodes.directories}
    below = {join(path, name) for path, directory in seen.items() for name in directory.names}
    if nodes.paths.root not in seen or below | {nodes.paths.root} != seen.keys():
        return None
    if any(directory.data for directory in seen.values()):
        return None
    deepest_first = sorted(seen.values(), key=lambda directory: (-directory.path.count("/"), directory.path))
    steps = tuple(Remove(directory.path, directory.version) for directory in deepest_first)
    return Repair("delete the group's empty directories", steps)


def nested_nodes(nodes: GroupNodes) -> Iterator[Problem]:
    """Find nodes below leaves. Names with a slash create them; no client reads them, and the leaf cannot be deleted."""
    for path, names in nodes.nested.items():
        shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        what = f"it has unexpected child nodes: {shown}"
        yield Problem(path, what, f"if they are not needed: zkCli.sh deleteall {shlex.quote(path)}")


def open_directories(nodes: GroupNodes) -> Iterator[Problem]:
    """Find directories that every client may change. Old clients create them like that."""
    if nodes.open_to_all:
        names = ", ".join(
            "the group" if path == nodes.paths.root else path.rpartition("/")[2] for path in nodes.open_to_all
        )
        what = f"every client may change {names}"
        yield Problem(nodes.paths.root, what, f"to restrict it: zkCli.sh setAcl -R {shlex.quote(nodes.paths.root)} ACL")
