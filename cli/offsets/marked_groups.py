"""Groups with a migration mark: their consumers use the offsets on the brokers, so changes in ZooKeeper are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zkgroups import Registry
from zkgroups.core.layouts.layout import Layout
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.znodes.own_nodes import Mark
from zkgroups.core.znodes.values import UnreadableNode
from zkgroups.exceptions import RefusedError
from zkgroups.zookeeper.admin import migration_marks
from zkgroups.zookeeper.session.session import context_of

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
