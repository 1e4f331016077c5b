"""The marks of migrations (`core/znodes/migration_mark.py`): read and write them in bulk, and refuse registrations.

ZooKeeper has no request that checks that a node is missing. But a transaction that creates the mark and deletes it
again fails if the group has one, and otherwise leaves no trace. So a registration in the same transaction succeeds only
without a mark. A client without permission to create the mark looks for it after registering. ZooKeeper orders all
writes, so either the migration, which sets the mark and then looks, sees the registration, or the client sees the mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ...core.znodes.group_route import GroupRoute, RouteState, decode_route
from ...core.znodes.migration_mark import Mark, MarkState, decode_mark, encode_mark
from ...core.znodes.paths import GroupPaths, mark_path, route_path
from ...core.znodes.values import ForbiddenNode, UnreadableNode
from ...exceptions import (
    ConflictError,
    GroupMigratedError,
    GroupMovedError,
    GroupNotFoundError,
    NoPermissionError,
    ZkgroupsException,
)
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import Create, Delete, Operation, Set, TransactionFailed
from ..requests.transaction_batches import Batch, in_batches
from ..session.errors import translate
from ..session.registry_context import RegistryContext

ReadMark = Mark | UnreadableNode
Outcomes = dict[str, ZkgroupsException | None]
"""For each group, None if it now has the desired state, or the reason why not."""

Decide = Callable[[str, Node | None], list[Operation]]
"""Returns the operations for the node of a group, carried out together; raises an error to leave it unchanged."""


def read(context: RegistryContext, groups: Iterable[str]) -> dict[str, ReadMark]:
    """Return the marks of these groups. Groups without a mark are left out."""
    nodes = _nodes(context, groups)
    return {group: _found(group, node) for group, node in nodes.items() if node is not None}


def put(
    context: RegistryContext,
    targets: Mapping[str, str],
    *,
    plan: str,
    state: MarkState,
    replace: bool = False,
    unmarked: bool = False,
) -> Outcomes:
    """Mark these groups with their names on the target. Groups with the mark of another plan are refused.

    With `replace`, groups without a mark are refused, too: another run of the plan has removed it. Pass `unmarked` if
    the groups had no mark just now: see `missing` of `change`.
    """
    since_ms = int(time.time() * 1000)

    def decide(group: str, node: Node | None) -> list[Operation]:
        mark = Mark(group, plan, targets[group], state, since_ms)
        if node is None:
            if replace:
                raise ConflictError(f"the mark of group {group!r} was removed meanwhile: run `zkgroups migrate status`")
            return [Create(mark_path(group), encode_mark(mark), acl=context.acls.directories)]
        found = _found(group, node)
        if isinstance(found, UnreadableNode) or found.plan != plan:
            raise migrated(group, found)
        unchanged = (found.target, found.state) == (mark.target, mark.state)
        return [] if unchanged else [Set(node.path, encode_mark(mark), node.version)]

    return change(context, list(targets), mark_path, decide, missing=unmarked)


def remove(
    context: RegistryContext,
    groups: Iterable[str],
    *,
    plan: str | None,
    state: MarkState | None = None,
    force: bool = False,
) -> Outcomes:
    """Delete the marks of this plan, or of any plan if None. Groups with the mark of another plan are refused.

    With a `state`, keep marks in another state. With `force`, delete every mark, also malformed ones.
    """

    def decide(group: str, node: Node | None) -> list[Operation]:
        if node is None:
            return []
        found = _found(group, node)
        if not force and (isinstance(found, UnreadableNode) or plan not in (None, found.plan)):
            raise migrated(group, found)
        if state is not None and isinstance(found, Mark) and found.state is not state:
            return []
        return [Delete(node.path, node.version)]

    return change(context, list(dict.fromkeys(groups)), mark_path, decide)


def migrated(group: str, found: ReadMark) -> GroupMigratedError:
    """Return the error for an instance that may not register because of a mark."""
    if isinstance(found, UnreadableNode):
        what = f"has the mark of a migration that cannot be read, {found.path}: {found.reason} ({found.shown})"
        return GroupMigratedError(group, what)
    return GroupMigratedError(group, found.shown, plan=found.plan, target=found.target)


# For instances that register


def unmarked(paths: GroupPaths, context: RegistryContext) -> list[Operation]:
    """Return operations that make a transaction fail if the group has a mark, and otherwise leave no trace."""
    return [Create(paths.mark, acl=context.acls.directories), Delete(paths.mark)]


def refuse_marked(paths: GroupPaths, context: RegistryContext) -> None:
    """Raise `GroupMigratedError` if the group has a mark; `GroupMovedError` if it is that of a live move."""
    node = context.session.get(paths.mark, deadline=context.deadline())
    if node is None:
        return
    if (route := context.session.get(route_path(paths.group), deadline=context.deadline())) is not None:
        found = decode_route(route.path, route.data)
        on_brokers = isinstance(found, GroupRoute) and found.state is RouteState.KAFKA
        raise GroupMovedError(paths.group, moving=not on_brokers)
    raise migrated(paths.group, _found(paths.group, node))


# In bulk


def _nodes(context: RegistryContext, groups: Iterable[str]) -> dict[str, Node | ForbiddenNode | None]:
    names = list(dict.fromkeys(groups))
    return dict(zip(names, bulk_read.nodes(context, map(mark_path, names)), strict=True))


def _found(group: str, node: Node | ForbiddenNode) -> ReadMark:
    return node if isinstance(node, ForbiddenNode) else decode_mark(node.path, group, node.data, version=node.version)


Units = dict[str, list[Operation]]
"""The operations on the node of each group."""


def change(
    context: RegistryContext,
    groups: list[str],
    where: Callable[[str], str],
    decide: Decide,
    *,
    missing: bool = False,
) -> Outcomes:
    """Decide for each group by its current node, and apply it. If the node changes in between, read it again.

    With `missing`, the nodes probably do not exist, and are not read at first. `decide` creates them, which fails if
    one exists. Then they are read.
    """
    outcomes: Outcomes = {}
    if missing:
        units: Units = {}
        for group in groups:
            outcomes |= _decided(group, None, decide, units)
        outcomes |= _carry_out(context, units, _transact_once)
    while left := [group for group in groups if group not in outcomes]:
        units = {}
        for group, node in zip(left, bulk_read.nodes(context, map(where, left)), strict=True):
            outcomes |= _decided(group, node, decide, units)
        outcomes |= _carry_out(context, units, _transact)
    return {group: outcomes[group] for group in groups}


def _carry_out(context: RegistryContext, units: Units, send: Callable[[RegistryContext, Units], Outcomes]) -> Outcomes:
    outcomes: Outcomes = {}
    groups = {unit[0].path: group for group, unit in units.items()}

    def transact(batch: Batch[Operation]) -> None:
        outcomes.update(send(context, {groups[unit[0].path]: list(unit) for unit in batch}))

    in_batches(context.session, list(units.values()), transact)
    return outcomes


def _decided(group: str, node: Node | ForbiddenNode | None, decide: Decide, units: Units) -> Outcomes:
    if isinstance(node, ForbiddenNode):
        return {group: NoPermissionError(node.path)}
    try:
        unit = decide(group, node)
    except ZkgroupsException as error:
        return {group: error}
    if not unit:
        return {group: None}
    units[group] = unit
    return {}


def _transact_once(context: RegistryContext, units: Units) -> Outcomes:
    """Carry out the operations. If any fails, nothing is changed, and all groups are left out."""
    with suppress(TransactionFailed):
        context.session.transact(list(chain.from_iterable(units.values())), deadline=context.deadline())
        return dict.fromkeys(units)
    return {}


def _transact(context: RegistryContext, units: Units) -> Outcomes:
    """Carry out the operations. Return the error of each group that fails; leave out groups to be read again."""
    left = dict(units)
    groups = {unit[0].path: group for group, unit in units.items()}
    outcomes: Outcomes = {}
    while left:
        try:
            context.session.transact(list(chain.from_iterable(left.values())), deadline=context.deadline())
        except TransactionFailed as failure:
            group = groups[failure.operation.path]
            del left[group]
            if isinstance(failure.error, NoNodeError) and isinstance(failure.operation, Create):
                outcomes[group] = GroupNotFoundError(group)
            elif not isinstance(failure.error, NodeExistsError | BadVersionError | NoNodeError):
                outcomes[group] = translate(failure.error, failure.operation.path)
        else:
            return outcomes | dict.fromkeys(left)
    return outcomes
