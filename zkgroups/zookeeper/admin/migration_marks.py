"""The marks, locks and routes of groups that are being moved to the brokers or back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final
from weakref import WeakKeyDictionary

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from ...core.layouts.layout import Layout
from ...core.layouts.legacy import LEGACY
from ...core.znodes.own_nodes import (
    GroupRoute,
    Mark,
    MarkState,
    RouteState,
    decode_mark,
    decode_route,
    encode_mark,
    encode_route,
)
from ...core.znodes.paths import (
    ROUTES,
    TARGETS,
    GroupPaths,
    join,
    layout_mark_path,
    mark_path,
    parent,
    route_path,
    target_lock,
)
from ...core.znodes.values import ForbiddenNode, MalformedNode, Side, UnreadableNode
from ...exceptions import (
    ConflictError,
    GroupMigratedError,
    GroupMovedError,
    GroupNotFoundError,
    InvalidNameError,
    MalformedNodeError,
    NoPermissionError,
    ZkgroupsException,
)
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.run_transaction import Batch, ensure_paths, in_batches
from ..requests.transaction import Check, Create, Delete, Operation, Set, TransactionFailed
from ..session.errors import translate
from ..session.session import RegistryContext, Session

# The marks of migrations (`core/znodes/own_nodes.py`): read and write them in bulk, and refuse registrations.
#
# ZooKeeper has no request that checks that a node is missing. But a transaction that creates the mark and deletes it
# again fails if the group has one, and otherwise leaves no trace. So a registration in the same transaction succeeds
# only without a mark. A client without permission to create the mark looks for it after registering. ZooKeeper orders
# all writes, so either the migration, which sets the mark and then looks, sees the registration, or the client sees
# the mark.


ReadMark = Mark | UnreadableNode
Outcomes = dict[str, ZkgroupsException | None]
"""For each group, None if it now has the desired state, or the reason why not."""

Decide = Callable[[str, Node | None], list[Operation]]
"""Returns the operations for the node of a group, carried out together; raises an error to leave it unchanged."""


def read(context: RegistryContext, groups: Iterable[str], layout: Layout = LEGACY) -> dict[str, ReadMark]:
    """Return the marks of these groups. Groups without a mark are left out."""
    names = list(dict.fromkeys(groups))
    nodes = zip(names, bulk_read.nodes(context, map(_places(layout), names)), strict=True)
    return {group: _found(group, node) for group, node in nodes if node is not None}


def _places(layout: Layout) -> Callable[[str], str]:
    """Return the function for the paths of marks.

    A group without registrations has its mark elsewhere: a group of the same name below `/consumers` may be another.
    """
    return mark_path if layout.has_registrations else partial(layout_mark_path, layout.location)


def put(
    context: RegistryContext,
    targets: Mapping[str, str],
    *,
    plan: str,
    state: MarkState,
    replace: bool = False,
    unmarked: bool = False,
    layout: Layout = LEGACY,
) -> Outcomes:
    """Mark these groups with their names on the target. Groups with the mark of another plan are refused.

    With `replace`, groups without a mark are refused, too: another run of the plan has removed it. Pass `unmarked` if
    the groups had no mark just now: see `missing` of `change`.
    """
    since_ms = int(time.time() * 1000)
    where = _places(layout)
    if not layout.has_registrations:
        ensure_paths(context, {parent(where(group)) for group in targets})

    def decide(group: str, node: Node | None) -> list[Operation]:
        mark = Mark(group, plan, targets[group], state, since_ms)
        if node is None:
            if replace:
                raise ConflictError(f"the mark of group {group!r} was removed meanwhile: run `zkgroups migrate status`")
            return [Create(where(group), encode_mark(mark), acl=context.acls.directories)]
        found = _found(group, node)
        if isinstance(found, UnreadableNode) or found.plan != plan:
            raise migrated(group, found, layout)
        unchanged = (found.target, found.state) == (mark.target, mark.state)
        return [] if unchanged else [Set(node.path, encode_mark(mark), node.version)]

    return change(context, list(targets), where, decide, missing=unmarked)


def remove(
    context: RegistryContext,
    groups: Iterable[str],
    *,
    plan: str | None,
    state: MarkState | None = None,
    force: bool = False,
    layout: Layout = LEGACY,
) -> Outcomes:
    """Delete the marks of this plan, or of any plan if None. Groups with the mark of another plan are refused.

    With a `state`, keep marks in another state. With `force`, delete every mark, also malformed ones.
    """

    def decide(group: str, node: Node | None) -> list[Operation]:
        if node is None:
            return []
        found = _found(group, node)
        if not force and (isinstance(found, UnreadableNode) or plan not in (None, found.plan)):
            raise migrated(group, found, layout)
        if state is not None and isinstance(found, Mark) and found.state is not state:
            return []
        return [Delete(node.path, node.version)]

    return change(context, list(dict.fromkeys(groups)), _places(layout), decide)


def migrated(group: str, found: ReadMark, layout: Layout = LEGACY) -> GroupMigratedError:
    """Return the error for an instance or a plan that a mark refuses."""
    where = None if layout.has_registrations else layout.text
    if isinstance(found, UnreadableNode):
        what = f"has the mark of a migration that cannot be read, {found.path}: {found.reason} ({found.shown})"
        return GroupMigratedError(group, what, layout=where)
    return GroupMigratedError(group, found.shown, plan=found.plan, target=found.target, layout=where)


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


# Locks on the targets of migrations, so that two plans never write to one target at the same time.
#
#     /zkgroups/targets/<cluster>:<target>    ephemeral    the id of the plan that is writing there; in a rollback with
#                                                          " (rollback)" at the end
#
# The mark of a migration belongs to a source group, so it does not stop two plans that move
# different groups to one target. A lock ends with the session of the process that holds it. The same plan may take it
# again, because a killed Spark task may be retried before its session has expired. Then the new session replaces the
# node with its own, and the old session has lost the lock. A node without a session has no holder, and any plan
# replaces it.
#
# A rollback and another step of its plan do not take each other's locks: they write different offsets. If each took
# the lock of the other, a target could keep only a part of its offsets.
#
# If the connection is lost, a run may end without deleting its locks. They are noted with the session, and the next
# run in this session may take them.
#
# A process that was paused for longer than its session loses its locks without noticing. So it must look at them
# right before and right after it writes (`MigrationTargetLocks.lost`): no broker refuses the write.
#
# The locks are in the ZooKeeper of the source, under its chroot. Plans with another ZooKeeper or chroot do not see
# them.


_log: Final = logging.getLogger("zkgroups.migration")

LOST: Final = "the lock of this target was lost, and another run may have written to it: run migrate verify"
"""For targets that were written without a lock."""


_LEFT_BEHIND: Final[WeakKeyDictionary[Session, set[tuple[str, bytes]]]] = WeakKeyDictionary()
"""The locks that may exist although their runs have ended, by session: their paths and contents."""


class MigrationTargetLocks:
    """The locks that one plan, or its rollback, takes in one session, on targets in one Kafka cluster."""

    def __init__(self, context: RegistryContext, *, cluster: str | None, plan: str, rollback: bool = False) -> None:
        self._context = context
        self._cluster = cluster
        self._holder = f"{plan} (rollback)".encode() if rollback else plan.encode()
        self._taken: dict[str, int | None] = {}
        """The taken locks by target, with the zxid that created each. None if it was lost at once."""

    def take(self, targets: Iterable[str]) -> Outcomes:
        """Lock these targets. For each, return None, or an error that names the plan that holds it."""
        names = list(dict.fromkeys(targets))
        acl = self._context.acls.directories
        try:
            self._context.session.ensure_path(TARGETS, acl=acl, deadline=self._context.deadline())
        except NoPermissionError as error:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            _log.warning("targets %s are not locked (%s): run no other plan that writes to them", shown, error)
            return dict.fromkeys(names)
        bad: Outcomes = {target: reason for target in names if (reason := self._bad_name(target)) is not None}
        good = [target for target in names if target not in bad]
        with self._left_behind_after_an_error(good):
            outcomes: Outcomes = bad | change(self._context, good, self._path, self._to_take, missing=True)
            taken = [target for target, error in outcomes.items() if error is None]
            self._taken |= self._own_locks(taken)
        return outcomes

    def _to_take(self, target: str, node: Node | None) -> list[Operation]:
        own = Create(self._path(target), self._holder, ephemeral=True, acl=self._context.acls.ephemerals)
        if node is None:
            return [own]
        if node.session and node.data != self._holder and not self._is_left_behind(node):
            raise ConflictError(f"plan {node.data.decode(errors='replace')} is writing to {target!r}: try again later")
        return [] if self._is_own(node) else [Delete(node.path, node.version), own]

    def lost(self, targets: Iterable[str]) -> list[str]:
        """Return the targets whose locks were taken and have been lost since."""
        names = [target for target in dict.fromkeys(targets) if target in self._taken]
        if not names:
            return []
        self._context.session.sync(deadline=self._context.deadline())
        now = self._own_locks(names)
        return [target for target in names if now[target] is None or now[target] != self._taken[target]]

    def release(self, targets: Iterable[str]) -> None:
        """Unlock these targets, if this session has locked them for this plan."""

        def decide(_target: str, node: Node | None) -> list[Operation]:
            return [Delete(node.path, node.version)] if node is not None and self._is_own(node) else []

        names = list(dict.fromkeys(targets))
        with self._left_behind_after_an_error(names):
            change(self._context, names, self._path, decide)

    @contextmanager
    def _left_behind_after_an_error(self, targets: Iterable[str]) -> Iterator[None]:
        """Note these locks if they cannot be taken or released: some may exist for as long as the session."""
        left = _LEFT_BEHIND.setdefault(self._context.session, set())
        locks = {(self._path(target), self._holder) for target in targets}
        try:
            yield
        except BaseException:
            left |= locks
            raise
        left -= locks

    def _is_left_behind(self, node: Node) -> bool:
        """Return whether an earlier run in this session, of any plan, could not delete this lock."""
        left = _LEFT_BEHIND.get(self._context.session, ())
        return node.session == self._context.session.id and (node.path, node.data) in left

    def _own_locks(self, targets: list[str]) -> dict[str, int | None]:
        """Return the zxid that created each lock, or None if this session does not hold it for this plan."""
        nodes = bulk_read.nodes(self._context, map(self._path, targets))
        return {
            target: node.czxid if isinstance(node, Node) and self._is_own(node) else None
            for target, node in zip(targets, nodes, strict=True)
        }

    def _is_own(self, node: Node) -> bool:
        return node.data == self._holder and node.session == self._context.session.id

    def _bad_name(self, target: str) -> InvalidNameError | None:
        try:
            self._path(target)
        except InvalidNameError as error:
            return error
        return None

    def _path(self, target: str) -> str:
        return target_lock(self._cluster, target)


# The routes of groups (`core/znodes/own_nodes.py`): read one, and change it together with its mark.
#
# Each change also writes the directory of all routes, so that a gateway has to watch only this one node.


@dataclass(frozen=True, slots=True)
class FoundRoute:
    """The route of a group, and its mark, as they were read. None where there is none."""

    group: str
    route: GroupRoute | None = None
    version: int = 0
    mark: Mark | MalformedNode | None = None
    mark_version: int = 0

    @property
    def state(self) -> RouteState | None:
        """The state of the route. None: the group is in ZooKeeper."""
        return None if self.route is None else self.route.state


def read_route(context: RegistryContext, group: str) -> FoundRoute:
    """Read the route and the mark of a group, as the leader of ZooKeeper has them now."""
    context.session.sync(deadline=context.deadline())
    nodes = list(bulk_read.nodes(context, [route_path(group), mark_path(group)]))
    for node in nodes:
        if isinstance(node, ForbiddenNode):
            raise NoPermissionError(node.path)
    route, mark = (node if isinstance(node, Node) else None for node in nodes)
    found = None if route is None else decode_route(route.path, route.data)
    if isinstance(found, MalformedNode):
        raise MalformedNodeError(
            found, cure="delete this node, and then remove the mark with `zkgroups migrate unmark`"
        )
    return FoundRoute(
        group,
        found,
        0 if route is None else route.version,
        None if mark is None else decode_mark(mark.path, group, mark.data, version=mark.version),
        0 if mark is None else mark.version,
    )


def change_route(
    context: RegistryContext,
    found: FoundRoute,
    state: RouteState | None,
    *,
    plan: str,
    since_ms: int,
    truth: Side = Side.ZOOKEEPER,
) -> None:
    """Bring the route that was read into another state, and the mark with it. None: the group is in ZooKeeper again.

    `plan`, `since_ms` and `truth` are those of the new route, see `GroupRoute`. Raise `ConflictError` if the route or
    the mark has changed since, or if gateways or consumers still use the brokers for the group.
    """
    acl = context.acls.directories
    context.session.ensure_path(ROUTES, acl=acl, deadline=context.deadline())
    if found.route is not None:  # the group may have been deleted since
        context.session.ensure_path(parent(mark_path(found.group)), acl=acl, deadline=context.deadline())
    route = None if state is None else GroupRoute(plan, state, since_ms, truth)
    operations = [_to_mark(context, found, route), _to_route(context, found, route), Set(ROUTES, b"", -1)]
    try:
        context.session.transact([each for each in operations if each is not None], deadline=context.deadline())
    except TransactionFailed as failure:
        raise _error(found.group, failure) from failure.error


def permit_holders(context: RegistryContext, group: str) -> list[str]:
    """Return who may use the brokers for a group now: gateways, and consumers that have moved there."""
    path = route_path(group)
    names = context.session.children(path, deadline=context.deadline()) or []
    nodes = bulk_read.nodes(context, [join(path, name) for name in names])
    return sorted(node.data.decode(errors="replace") or "?" for node in nodes if isinstance(node, Node))


def _to_mark(context: RegistryContext, found: FoundRoute, route: GroupRoute | None) -> Operation | None:
    path, mark = mark_path(found.group), found.mark
    if route is None:
        return None if mark is None else Delete(path, found.mark_version)
    new = Mark(found.group, route.plan, found.group, route.state.mark, route.since_ms)
    if mark is None:
        return Create(path, encode_mark(new), acl=context.acls.directories)
    if isinstance(mark, Mark) and mark.state is new.state:
        return Check(path, found.mark_version)
    return Set(path, encode_mark(new), found.mark_version)


def _to_route(context: RegistryContext, found: FoundRoute, route: GroupRoute | None) -> Operation | None:
    path = route_path(found.group)
    if route is None:
        return None if found.route is None else Delete(path, found.version)
    if found.route is None:
        return Create(path, encode_route(route), acl=context.acls.directories)
    return Set(path, encode_route(route), found.version)


def _error(group: str, failure: TransactionFailed) -> Exception:
    path = failure.operation.path
    if isinstance(failure.error, NoNodeError) and isinstance(failure.operation, Create) and parent(path) != ROUTES:
        return GroupNotFoundError(group)
    if isinstance(failure.error, NotEmptyError):
        return ConflictError(f"gateways or consumers still use the brokers for group {group!r}: run the command again")
    if isinstance(failure.error, NodeExistsError | BadVersionError | NoNodeError):
        return ConflictError(f"the route or the mark of group {group!r} was changed meanwhile: run the command again")
    return translate(failure.error, path)
