"""Release a partition on behalf of its owner, and make the members rebalance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kazoo.exceptions import BadVersionError, NoNodeError

from ...core.znodes.group_view import RegisteredInstance
from ...core.znodes.paths import GroupPaths
from ...core.znodes.values import ForbiddenNode, Owner
from ...exceptions import GroupNotFoundError, GuardFailedError, NoPermissionError
from ..requests.transaction import Create, Delete, Set, TransactionFailed
from ..session.errors import translate
from ..session.registry_context import RegistryContext
from .transaction_guards import RewriteRegistrations

_NOBODY: Final = "zkgroups-rebalance"
"""The name of a registration that is created and deleted in one transaction, so no client ever sees it."""

_CHECK: Final = "; nothing was released: check the owner, and try again"


def force_release(
    paths: GroupPaths,
    context: RegistryContext,
    owner: Owner,
    instances: Iterable[RegisteredInstance],
    *,
    expected_owner: str,
    expected_session: int | None,
) -> None:
    """Delete an owner node, and rewrite all registrations, so that the next commit of its owner fails.

    Raise `GuardFailedError` if the partition has another owner than expected.
    """
    instance = _owning_instance(owner, instances)
    if expected_owner not in (owner.id, instance.id if instance else None):
        raise GuardFailedError(f"{owner.at} is claimed by {owner.holder}, not by {expected_owner!r}{_CHECK}")
    if expected_session not in (None, owner.session):
        raise GuardFailedError(f"{owner.at} is claimed by {owner.holder}, not by session {expected_session:#x}{_CHECK}")
    _delete_owner(paths, context, owner, instance)


def _owning_instance(owner: Owner, instances: Iterable[RegisteredInstance]) -> RegisteredInstance | None:
    """Return the instance whose registration must be rewritten. Its registration may be forbidden."""
    candidates = {
        instance.id: instance
        for instance in instances
        if instance.session == owner.session or isinstance(instance.registration, ForbiddenNode)
    }
    id = owner.instance(candidates)
    return None if id is None else candidates[id]


def _delete_owner(
    paths: GroupPaths, context: RegistryContext, owner: Owner, instance: RegisteredInstance | None
) -> None:
    registrations = RewriteRegistrations(paths, context)
    while True:
        rewrites = registrations.operations()
        if instance is not None and paths.instance(instance.id) not in {operation.path for operation in rewrites}:
            if isinstance(instance.registration, ForbiddenNode):
                raise NoPermissionError(instance.registration.path)
            reason = "which has just left the group; nothing was released: read the owner again"
            raise GuardFailedError(f"{owner.at} was claimed by {owner.holder}, {reason}")
        try:
            operations = [*rewrites, Delete(owner.path, owner.version)]
            context.session.transact(operations, deadline=context.deadline())
            return
        except TransactionFailed as failure:
            if isinstance(failure.operation, Set):
                registrations.handle_failure(failure)
            elif isinstance(failure.error, NoNodeError | BadVersionError):
                message = f"the owner of {owner.at} has changed since it was read; nothing was released: try again"
                raise GuardFailedError(message) from failure.error
            else:
                raise translate(failure.error, failure.operation.path) from failure.error


def trigger_rebalance(paths: GroupPaths, context: RegistryContext) -> None:
    """Notify all clients that watch the registrations of the group. No registration changes."""
    node = paths.instance(_NOBODY)
    try:
        context.session.transact([Create(node), Delete(node)], deadline=context.deadline())
    except TransactionFailed as failure:
        if isinstance(failure.error, NoNodeError):
            raise GroupNotFoundError(paths.group) from failure.error
        raise translate(failure.error, node) from failure.error
