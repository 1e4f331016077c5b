"""Act on behalf of a client that is stuck: remove its instance from the group, or release a partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kazoo.exceptions import BadVersionError, NoNodeError

from ...core.session_lifetime import session_hex
from ...core.znodes.group_description import RegisteredInstance
from ...core.znodes.paths import GroupPaths
from ...core.znodes.values import ForbiddenNode, Owner
from ...exceptions import GroupNotFoundError, GuardFailedError, NoPermissionError, NotRegisteredError
from ..reading import group_reader
from ..requests.transaction import Create, Delete, Set, TransactionFailed
from ..session.errors import translate
from ..session.session import RegistryContext
from .transaction_guards import RewriteRegistrations

# Release a partition on behalf of its owner, and make the members rebalance.


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


# Remove an instance from its group on behalf of its client, which is stuck.


_RETRY: Final = "nothing was changed: look at the member, and try again"


def evict(
    paths: GroupPaths, context: RegistryContext, id: str, *, expected_session: int | None, execute: bool
) -> tuple[Owner, ...]:
    """Delete the registration and the owner nodes of an instance, in one transaction. Return the deleted owners.

    A client that is not stuck may claim partitions at the same time, if it does not check its own registration. These
    owner nodes are deleted after the transaction.
    """
    target = _read(paths, context, id)
    if target.registration is None and not target.owners:
        raise NotRegisteredError(paths.group, id)
    if expected_session is not None and target.sessions != {expected_session}:
        sessions = ", ".join(map(session_hex, sorted(target.sessions)))
        raise GuardFailedError(f"{id!r} has session {sessions}, not {session_hex(expected_session)}; {_RETRY}")
    if not execute:
        return target.owners
    _transact(context, id, _deletes(paths, target))
    left = _read(paths, context, id)
    late = tuple(owner for owner in left.owners if owner.session in target.sessions)
    if late and left.registration is None:
        _transact(context, id, _deletes(paths, _Target(None, late)))
    return (*target.owners, *late)


@dataclass(frozen=True, slots=True)
class _Target:
    """What belongs to an instance: its registration, and the owner nodes with its id and its session."""

    registration: RegisteredInstance | None
    owners: tuple[Owner, ...]

    @property
    def sessions(self) -> set[int]:
        """Without a registration, the owner nodes may belong to several sessions."""
        return {owner.session for owner in self.owners} if self.registration is None else {self.registration.session}


def _read(paths: GroupPaths, context: RegistryContext, id: str) -> _Target:
    instances: dict[str, RegisteredInstance] = {}
    for _group, each in group_reader.read_instances(context, [paths.group]):
        if not isinstance(each, RegisteredInstance):
            raise NoPermissionError(each.path)
        instances[each.id] = each
    registration = instances.get(id)
    if registration is not None and isinstance(registration.registration, ForbiddenNode):
        raise NoPermissionError(registration.registration.path)
    ids = {*instances, id}
    owners: list[Owner] = []
    for _group, owner in group_reader.read_owners(context, [paths.group]):
        if isinstance(owner, ForbiddenNode):
            raise NoPermissionError(owner.path)
        is_expected = registration is None or owner.session == registration.session
        if is_expected and isinstance(owner, Owner) and owner.instance(ids) == id:
            owners.append(owner)
    return _Target(registration, tuple(owners))


def _transact(context: RegistryContext, id: str, deletes: Sequence[Delete]) -> None:
    try:
        context.session.transact(deletes, deadline=context.deadline())
    except TransactionFailed as failure:
        if isinstance(failure.error, NoNodeError | BadVersionError):
            raise GuardFailedError(f"{failure.operation.path} of {id!r} has just changed; {_RETRY}") from failure.error
        raise translate(failure.error, failure.operation.path) from failure.error


def _deletes(paths: GroupPaths, target: _Target) -> list[Delete]:
    """Delete the registration first: then no later write of the instance is accepted, if it uses zkgroups."""
    owners = [Delete(owner.path, owner.version) for owner in target.owners]
    found = target.registration
    return owners if found is None else [Delete(paths.instance(found.id), found.version), *owners]
