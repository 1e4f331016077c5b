"""The routes of groups (`core/znodes/group_route.py`): read one, and change it together with its mark.

Each change also writes the directory of all routes, so that a gateway has to watch only this one node.
"""

from __future__ import annotations

from dataclasses import dataclass

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from ...core.znodes.group_route import GroupRoute, RouteState, decode_route, encode_route
from ...core.znodes.migration_mark import Mark, decode_mark, encode_mark
from ...core.znodes.offset_sides import Side
from ...core.znodes.paths import ROUTES, join, mark_path, parent, route_path
from ...core.znodes.values import ForbiddenNode, MalformedNode
from ...exceptions import ConflictError, GroupNotFoundError, MalformedNodeError, NoPermissionError
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import Check, Create, Delete, Operation, Set, TransactionFailed
from ..session.errors import translate
from ..session.registry_context import RegistryContext


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
