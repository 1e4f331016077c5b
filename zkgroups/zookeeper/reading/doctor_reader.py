"""Reading what the checks of `core/doctor/check_table.py` look at: many groups together, each kind of node in one
sweep.

Nodes of one group are not read at one moment, so a member that joins meanwhile may own before it is seen to be
registered. What may be such a sight counts only if a second look still shows it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from kazoo.security import Permissions

from ...core.doctor.check_table import CHECKS, examine
from ...core.doctor.findings import Checkup, Finding
from ...core.doctor.group_nodes import Directory, GroupNodes
from ...core.znodes.group_view import GroupView
from ...core.znodes.paths import BROKER_TOPICS, GroupPaths, Part, join
from ...core.znodes.values import ForbiddenNode
from ...exceptions import NoPermissionError
from ..requests import bulk_read
from ..requests.node import Node
from ..session.registry_context import RegistryContext
from ..session.session import PIPELINE
from . import group_reader

TOGETHER: Final = 64
"""Groups that are in memory at a time."""

_PASSING: Final = frozenset(check.code for check in CHECKS if check.passes)

_CHANGES: Final = Permissions.WRITE | Permissions.CREATE | Permissions.DELETE | Permissions.ADMIN


def check(context: RegistryContext, groups: Iterable[str], *, stale_after: float) -> Iterator[Checkup]:
    """What is wrong in these groups, in their order."""
    look = partial(_look, context, stale_ms=int(stale_after * 1000))
    waiting = iter(groups)
    while some := list(islice(waiting, TOGETHER)):
        found = look(some)
        unsure = [checkup.group for checkup in found if any(map(_passes, checkup.findings))]
        again = {checkup.group: checkup for checkup in look(unsure)}
        yield from (_seen_twice(checkup, again.get(checkup.group)) for checkup in found)


def _passes(finding: Finding) -> bool:
    return finding.code in _PASSING


def _seen_twice(first: Checkup, second: Checkup | None) -> Checkup:
    """What the second look shows, without what may pass and was not there at the first."""
    if second is None:
        return first
    known = {(finding.code, finding.path) for finding in first.findings}
    lasting = (each for each in second.findings if not _passes(each) or (each.code, each.path) in known)
    return Checkup(second.group, second.exists, tuple(lasting))


def _look(context: RegistryContext, groups: Sequence[str], *, stale_ms: int) -> list[Checkup]:
    """Read these groups and examine them."""
    if not groups:
        return []
    views = list(group_reader.read_groups(context, groups))
    there = [found.group for found in views if found.exists]
    directories, open_to_all = _directories(context, there), _open_to_all(context, there)
    nested = _nested(context, views)
    [topics] = bulk_read.children(context, [BROKER_TOPICS])
    nodes = (
        GroupNodes(
            found,
            directories=tuple(directories.get(found.group, ())),
            nested=nested[found.group],
            open_to_all=tuple(open_to_all.get(found.group, ())),
            topics=frozenset(topics) if isinstance(topics, list) else None,
            now_ms=time.time_ns() // 1_000_000,
            stale_ms=stale_ms,
        )
        for found in views
    )
    return [Checkup(each.group, each.view.exists, tuple(examine(each)) if each.view.exists else ()) for each in nodes]


# Directories


def _directories(context: RegistryContext, groups: Iterable[str]) -> dict[str, list[Directory]]:
    """The directories of each group, from its root down to those of topics."""
    roots = _listed(context, [(group, GroupPaths(group).root) for group in groups])
    parts = _listed(context, _below(roots, only=frozenset(Part)))
    ids = {GroupPaths(group).ids for group, _path, _names in roots}
    topics = _listed(context, _below(found for found in parts if found[1] not in ids))
    found: dict[str, list[Directory]] = {}
    listed = [*roots, *parts, *topics]
    for (group, path, names), node in zip(
        listed, bulk_read.nodes(context, (path for _, path, _ in listed)), strict=True
    ):
        if isinstance(node, Node):
            found.setdefault(group, []).append(Directory(path, tuple(sorted(names)), node.data, node.version))
    return found


_Listing = tuple[str, str, list[str]]
"""A group, the path of one of its directories, and the names below that."""


def _listed(context: RegistryContext, directories: Sequence[tuple[str, str]]) -> list[_Listing]:
    """The names below these directories, as far as they are there and may be listed."""
    listings = bulk_read.children(context, (path for _group, path in directories))
    return [
        (group, path, names)
        for (group, path), names in zip(directories, listings, strict=True)
        if isinstance(names, list)
    ]


def _below(listings: Iterable[_Listing], only: frozenset[str] | None = None) -> list[tuple[str, str]]:
    return [
        (group, join(path, name))
        for group, path, names in listings
        for name in sorted(names)
        if only is None or name in only
    ]


# Nodes below those that should have none


def _nested(context: RegistryContext, views: Iterable[GroupView]) -> dict[str, dict[str, tuple[str, ...]]]:
    """For each group, the nodes that others stand below although they are no directories, with the names of these."""
    leaves = [(found.group, path) for found in views for path in _leaves(found)]
    nested: dict[str, dict[str, tuple[str, ...]]] = {found.group: {} for found in views}
    for group, path, names in _listed(context, leaves):
        if names:
            nested[group][path] = tuple(sorted(names))
    return nested


def _leaves(found: GroupView) -> dict[str, None]:
    """The paths of all registrations, owners and offsets, each once, siblings together."""
    paths = GroupPaths(found.group)
    bad = [node for node in found.malformed if not isinstance(node, ForbiddenNode)]
    return dict.fromkeys(
        [
            *(join(paths.ids, instance.id) for instance in found.instances),
            *(owner.path for owner in found.owners),
            *(paths.offset(offset.at) for offset in found.offsets),
            *(node.path for node in bad if node.path.startswith(paths.root + "/")),
        ]
    )


# Access control lists


def _open_to_all(context: RegistryContext, groups: Iterable[str]) -> dict[str, list[str]]:
    """For each group, the directories that everybody may change."""
    directories = [(group, path) for group in groups for path in _upper(GroupPaths(group))]
    found: dict[str, list[str]] = {}
    for (group, path), acl in zip(directories, _acls(context, [path for _, path in directories]), strict=True):
        if any(entry.id.scheme == "world" and entry.perms & _CHANGES for entry in acl):
            found.setdefault(group, []).append(path)
    return found


def _upper(paths: GroupPaths) -> tuple[str, ...]:
    return (paths.root, paths.ids, paths.owners, paths.offsets)


def _acls(context: RegistryContext, paths: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The access control lists of many nodes, many requests under way together; nothing where we may not see one.

    No request reads several of them.
    """
    client = context.session.client
    for start in range(0, len(paths), PIPELINE):
        some = paths[start : start + PIPELINE]
        asked = [client.get_acls_async(path) for path in some]
        yield from (_acl(context, path, answer) for path, answer in zip(some, asked, strict=True))


def _acl(context: RegistryContext, path: str, asked: Any) -> tuple[Any, ...]:
    """The answer to a question that is under way; after a loss of the connection it is asked anew."""
    answers = iter([asked])
    client = context.session.client
    try:
        found = context.session.call(
            lambda: next(answers, None) or client.get_acls_async(path), path, context.deadline()
        )
    except NoPermissionError:
        return ()
    return () if found is None else tuple(found[0])
