"""The routes of groups (`core/znodes/group_route.py`), as a gateway uses them: read all, and permits to forward.

A permit is the ephemeral node of a gateway below a route. It is created for one version of the route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ...core.znodes.group_route import GroupRoute, decode_route
from ...core.znodes.names import check_group
from ...core.znodes.paths import ROUTES, join, route_path
from ...core.znodes.values import UnreadableNode
from ...exceptions import InvalidNameError, SessionLostError
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import Check, Create, Delete, Operation, TransactionFailed
from ..session.errors import translate
from ..session.registry_context import RegistryContext


def version_of_routes(context: RegistryContext, watch: Callable[[Any], object]) -> tuple[int, int] | None:
    """Return a value that changes with each change of a route, and watch for the next change. None without routes."""
    client = context.session.client
    stat = context.session.call(lambda: client.exists_async(ROUTES, watch=watch), ROUTES, context.deadline())
    return None if stat is None else (stat.czxid, stat.version)


def read_routes(context: RegistryContext) -> dict[str, tuple[GroupRoute | UnreadableNode, int]]:
    """Return all routes by group, each with the version of its node."""
    names = context.session.children(ROUTES, deadline=context.deadline()) or []
    groups = [*_valid(names)]
    found = zip(groups, bulk_read.nodes(context, map(route_path, groups)), strict=True)
    return {
        group: (decode_route(node.path, node.data) if isinstance(node, Node) else node, node.version)
        for group, node in found
        if node is not None
    }


def create_permit(
    context: RegistryContext, group: str, name: str, data: bytes, *, session_id: int, version: int
) -> bool:
    """Create the permit of a gateway in this session. Return False if the route has another version."""
    session, route = context.session, route_path(group)
    create = Create(join(route, name), data, True, context.acls.ephemerals)
    operations: list[Operation] = [Check(route, version), create]
    try:
        session.transact(operations, session_id=session_id, deadline=context.deadline())
    except TransactionFailed as failure:
        if isinstance(failure.error, BadVersionError | NoNodeError):
            return False
        found = session.get(create.path, deadline=context.deadline())
        if not isinstance(failure.error, NodeExistsError) or found is None or found.session != session_id:
            raise translate(failure.error, create.path) from failure.error
    # The reply may have been lost. Then only reads have shown the node, and they prove no session.
    session.prove(session_id, deadline=context.deadline())
    return True


def delete_permit(context: RegistryContext, group: str, name: str, session_id: int) -> None:
    """Delete the permit that this session has created, unless it does not exist any more."""
    delete = Delete(join(route_path(group), name))
    try:
        context.session.transact([delete], session_id=session_id, deadline=context.deadline())
    except SessionLostError:
        return  # ZooKeeper has deleted it
    except TransactionFailed as failure:
        if not isinstance(failure.error, NoNodeError):
            raise translate(failure.error, delete.path) from failure.error


def permits_of(context: RegistryContext, group: str, session_id: int) -> list[str]:
    """Return the names of the permits for a group that belong to this session."""
    route = route_path(group)
    names = context.session.children(route, deadline=context.deadline()) or []
    nodes = bulk_read.nodes(context, [join(route, name) for name in names])
    return [
        name for name, node in zip(names, nodes, strict=True) if isinstance(node, Node) and node.session == session_id
    ]


def _valid(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        try:
            yield check_group(name)
        except InvalidNameError:
            continue
