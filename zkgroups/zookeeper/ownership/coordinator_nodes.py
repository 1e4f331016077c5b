"""The nodes of the gateways that coordinate groups (`core/znodes/coordinator_node.py`): create, delete and read them.

A node is an ephemeral node of the session of its gateway. It is never written again, so its version stays 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ...core.znodes.paths import COORDINATORS, coordinator
from ...exceptions import SessionLostError
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import Check, Create, Delete, Operation, TransactionFailed
from ..session.errors import translate
from ..session.registry_context import RegistryContext

_VERSION = 0


def check_coordinator(group: str) -> Check:
    """Return the operation that makes a transaction fail if the group has no coordinator.

    The transaction must be pinned to the session of the gateway: a node of another session would have the same version.
    """
    return Check(coordinator(group), _VERSION)


def create_coordinator(context: RegistryContext, group: str, data: bytes, session_id: int) -> Node | None:
    """Create the node of a group. If another gateway has created it, return its node.

    A node without a session has no gateway, and is replaced.
    """
    path, session = coordinator(group), context.session
    create = Create(path, data, True, context.acls.ephemerals)
    before: Sequence[Operation] = ()
    while True:
        try:
            session.transact([*before, create], session_id=session_id, deadline=context.deadline())
            return None
        except TransactionFailed as failure:
            if isinstance(failure.error, NoNodeError) and isinstance(failure.operation, Create):
                acl, deadline = context.acls.directories, context.deadline()
                session.ensure_path(COORDINATORS, acl=acl, session_id=session_id, deadline=deadline)
            elif not isinstance(failure.error, NodeExistsError | NoNodeError | BadVersionError):
                raise translate(failure.error, path) from failure.error
        found = session.get(path, deadline=context.deadline())
        if found is not None and found.session:
            return None if (found.session, found.data) == (session_id, data) else found
        before = () if found is None else (Delete(path, found.version),)


def delete_coordinator(context: RegistryContext, group: str, data: bytes, session_id: int) -> None:
    """Delete the node that this session has created with these data, unless it does not exist any more.

    An earlier attempt may have deleted it, although its outcome is unknown. Then the node belongs to another gateway.
    """
    session, delete = context.session, Delete(coordinator(group), _VERSION)
    try:
        session.catch_up(deadline=context.deadline())
        found = session.get(delete.path, deadline=context.deadline())
        if found is not None and (found.session, found.data) == (session_id, data):
            session.transact([delete], session_id=session_id, deadline=context.deadline())
    except SessionLostError:
        return  # ZooKeeper has deleted it
    except TransactionFailed as failure:
        if not isinstance(failure.error, NoNodeError | BadVersionError):
            raise translate(failure.error, delete.path) from failure.error


def read_coordinators(context: RegistryContext, groups: Iterable[str]) -> dict[str, Node]:
    """Return the nodes of these groups. Groups without a coordinator are left out."""
    names = list(groups)
    found = zip(names, bulk_read.nodes(context, map(coordinator, names)), strict=True)
    return {name: node for name, node in found if isinstance(node, Node) and node.session}
