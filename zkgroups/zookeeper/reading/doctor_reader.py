"""Read the nodes that the doctor's checks need: many groups together, one bulk read for each kind of node.

The nodes of a group are not read at one moment. A member that joins meanwhile can seem to own partitions without a
registration. So such findings are reported only if a second read confirms them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from kazoo.security import Permissions

from ...core.doctor.all_checks import CHECKS, run_checks
from ...core.doctor.findings import Checkup, Finding
from ...core.doctor.group_nodes import Directory, GroupNodes
from ...core.layouts import legacy
from ...core.layouts.layout import LayoutOffset
from ...core.rebalance.explanation import GroupExplanation, explain
from ...core.rebalance.shared_plan import SharedPlan, decode_plan
from ...core.times import to_ms
from ...core.znodes.group_description import GroupView
from ...core.znodes.paths import BROKER_TOPICS, GroupPaths, Part, join, parent
from ...core.znodes.values import ForbiddenNode
from ...exceptions import GroupNotFoundError, NoPermissionError, NotRegisteredError
from ..registry import Registry
from ..requests import bulk_read
from ..requests.node import Node
from ..session.session import RegistryContext, context_of
from . import group_reader, layouts

GROUPS_AT_ONCE: Final = 64
"""How many groups to keep in memory at a time."""

_TRANSIENT: Final = frozenset(check.code for check in CHECKS if check.is_transient)
"""Findings that can disappear by themselves."""

_CHANGES: Final = Permissions.WRITE | Permissions.CREATE | Permissions.DELETE | Permissions.ADMIN


def check(context: RegistryContext, groups: Iterable[str], *, stale_after: float) -> Iterator[Checkup]:
    """Examine these groups, in order."""
    read_and_examine = partial(_read_and_examine, context, stale_ms=int(stale_after * 1000))
    remaining = iter(groups)
    while batch := list(islice(remaining, GROUPS_AT_ONCE)):
        checkups = read_and_examine(batch)
        uncertain = [checkup.group for checkup in checkups if any(map(_is_transient, checkup.findings))]
        second = {checkup.group: checkup for checkup in read_and_examine(uncertain)}
        yield from (_confirmed(checkup, second.get(checkup.group)) for checkup in checkups)


def _is_transient(finding: Finding) -> bool:
    return finding.code in _TRANSIENT


def _confirmed(first: Checkup, second: Checkup | None) -> Checkup:
    """Return the findings of the second read, without transient ones that the first read did not show."""
    if second is None:
        return first
    known = {(finding.code, finding.path) for finding in first.findings}
    confirmed = (each for each in second.findings if not _is_transient(each) or (each.code, each.path) in known)
    return Checkup(second.group, second.exists, tuple(confirmed))


def _read_and_examine(context: RegistryContext, groups: Sequence[str], *, stale_ms: int) -> list[Checkup]:
    """Read these groups and examine them."""
    if not groups:
        return []
    views = list(group_reader.read_groups(context, groups))
    existing = [view.group for view in views if view.exists]
    directories, open_to_all = _directories(context, existing), _open_to_all(context, existing)
    singular = _singular(context, directories)
    nested = _nested(context, views)
    topics = group_reader.topic_names(context)
    unreadable = {node.path for view in views for node in view.unreadable}
    now_ms = _now_ms(views)
    nodes = (
        GroupNodes(
            view,
            directories=tuple(directories.get(view.group, ())),
            nested=nested[view.group],
            open_to_all=tuple(open_to_all.get(view.group, ())),
            topics=frozenset(topics) | _topics_among(unreadable) if isinstance(topics, list) else None,
            singular=singular.get(view.group, ()),
            now_ms=now_ms,
            stale_ms=stale_ms,
        )
        for view in views
    )
    return [
        Checkup(each.group, each.view.exists, tuple(run_checks(each)) if each.view.exists else ()) for each in nodes
    ]


def _topics_among(paths: Iterable[str]) -> frozenset[str]:
    """Return the topics whose nodes are among the paths."""
    return frozenset(path.rpartition("/")[2] for path in paths if parent(path) == BROKER_TOPICS)


def _now_ms(views: Iterable[GroupView]) -> int:
    """Return the time of this machine, or of the last commit if the clock of this machine is behind that."""
    committed = (to_ms(offset.committed_at) for view in views for offset in view.offsets)
    return max(time.time_ns() // 1_000_000, max(committed, default=0))


# Directories


def _directories(context: RegistryContext, groups: Iterable[str]) -> dict[str, list[Directory]]:
    """Read the directories of each group, from its root to those of its topics."""
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


def _singular(
    context: RegistryContext, directories: Mapping[str, Sequence[Directory]]
) -> dict[str, tuple[LayoutOffset, ...]]:
    """Read the offsets that Kafka 1.1.0 has committed, of groups with its directory. Hardly any group has it."""
    roots = {group: found[0] for group, found in directories.items()}
    groups = [group for group, root in roots.items() if legacy.DIRECTORY in root.names]
    read = layouts.read_offsets(context, legacy.KAFKA_1_1_0, groups)
    return {group: tuple(offsets) for group, offsets in read}


_Listing = tuple[str, str, list[str]]
"""A group, the path of one of its directories, and the names below that."""


def _listed(context: RegistryContext, directories: Sequence[tuple[str, str]]) -> list[_Listing]:
    """Return the names of the children of these directories. Missing and forbidden ones are left out."""
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


# Nodes below leaves


def _nested(context: RegistryContext, views: Iterable[GroupView]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the leaves of each group that have children, with the names of the children."""
    leaves = [(found.group, path) for found in views for path in _leaves(found)]
    nested: dict[str, dict[str, tuple[str, ...]]] = {found.group: {} for found in views}
    for group, path, names in _listed(context, leaves):
        if names:
            nested[group][path] = tuple(sorted(names))
    return nested


def _leaves(found: GroupView) -> dict[str, None]:
    """Return the paths of all registrations, owners and offsets, without duplicates, siblings together."""
    paths = GroupPaths(found.group)
    bad = [node for node in found.unreadable if not isinstance(node, ForbiddenNode)]
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
    """Return the directories of each group that all clients may change."""
    directories = [(group, path) for group in groups for path in _upper(GroupPaths(group))]
    found: dict[str, list[str]] = {}
    for (group, path), acl in zip(directories, _acls(context, [path for _, path in directories]), strict=True):
        if any(entry.id.scheme == "world" and entry.perms & _CHANGES for entry in acl):
            found.setdefault(group, []).append(path)
    return found


def _upper(paths: GroupPaths) -> tuple[str, ...]:
    return (paths.root, paths.ids, paths.owners, paths.offsets)


def _acls(context: RegistryContext, paths: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the access control lists of many nodes. A forbidden one is empty. No request reads several lists."""
    client = context.session.client
    for found in context.session.call_all(client.get_acls_async, paths, context.deadline):
        yield () if found is None or isinstance(found, NoPermissionError) else tuple(found[0])


# Read the nodes of a group that explain where its partitions are.


def explain_group(
    registry: Registry, group: str, *, without: Collection[str] = (), foreign: str | None = None
) -> GroupExplanation:
    """Explain a group. Raise an error for a missing group, a forbidden node, and an unknown instance in `without`."""
    [view] = group_reader.read_groups(context_of(registry), [group], with_offsets=False)
    if not view.exists:
        raise GroupNotFoundError(group)
    if view.hidden:
        raise NoPermissionError(view.hidden[0].path)  # a plan without it would be wrong
    registered = {each.id for each in view.instances}
    for id in without:
        if id not in registered:
            raise NotRegisteredError(group, id)
    plan, ids_zxid = _written_plan(registry, GroupPaths(group))
    return explain(view, written=plan, ids_zxid=ids_zxid, without=without, foreign=foreign)


def _written_plan(registry: Registry, paths: GroupPaths) -> tuple[SharedPlan | None, int]:
    """Return the shared plan, and when an instance last registered or left: the plan is only for these instances."""
    context, client = context_of(registry), registry.client
    node = context.session.get(paths.owners, deadline=context.deadline())
    stat = context.session.call(lambda: client.exists_async(paths.ids), paths.ids, context.deadline())
    return None if node is None else decode_plan(node.data), 0 if stat is None else int(stat.pzxid)
