"""Carry out the repairs of `core/doctor/all_checks.py`. Each is one transaction over the nodes that were read.

A version alone is not a guard, because a recreated node has version 0 again. So a node to delete must have no children;
a directory in use has some. A node that should belong to no session must prove it: the transaction creates a node below
it, which ZooKeeper refuses below an ephemeral node. So the new claim of a member is never deleted. A node to rewrite is
read again just before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

from ...core.doctor.findings import Finding, Repair, RepairStep, Rewrite
from ...core.znodes.paths import GroupPaths
from ...exceptions import ConflictError, GroupInUseError, GroupNotFoundError, RefusedError
from ..requests.transaction import Create, Delete, Operation, Set, TransactionFailed
from ..session.errors import translate
from ..session.session import RegistryContext
from .transaction_guards import NobodyRegistered, remove_persistent

_CHANGED: Final = (BadVersionError, NoChildrenForEphemeralsError, NoNodeError, NotEmptyError)

ATTEMPTS: Final = 5


def repair(finding: Finding, context: RegistryContext) -> None:
    """Repair a finding. Raise an error if an instance has registered or a node has changed since the check."""
    if finding.repair is None:
        raise RefusedError(f"{finding.path} is not repaired: {finding.not_repaired}")
    paths = GroupPaths(finding.group)
    if not context.session.exists(paths.root, deadline=context.deadline()):
        raise GroupNotFoundError(finding.group)
    for step in finding.repair.steps:
        if isinstance(step, Rewrite):
            _compare(step, context)
    _carry_out(finding, _guard(finding.repair, paths, context), context)


def _guard(planned: Repair, paths: GroupPaths, context: RegistryContext) -> NobodyRegistered | _IdsNotRegistered | None:
    if planned.is_always_safe:
        return None
    return _IdsNotRegistered(paths, context, planned.unless) if planned.unless else NobodyRegistered(paths, context)


def _compare(step: Rewrite, context: RegistryContext) -> None:
    node = context.session.get(step.path, deadline=context.deadline())
    if node is None or (node.data, node.version) != (step.before, step.version):
        raise _changed(step.path)


def _carry_out(finding: Finding, guard: NobodyRegistered | _IdsNotRegistered | None, context: RegistryContext) -> None:
    steps = finding.repair.steps if finding.repair else ()
    operations = [operation for step in steps for operation in _operations(step)]
    for _ in range(ATTEMPTS):
        guards = _needed_guards(guard.operations(), operations) if guard else []
        try:
            context.session.transact([*guards, *operations], deadline=context.deadline())
            return
        except TransactionFailed as failure:
            if guard and failure.index < len(guards):
                guard.handle_failure(failure)
            elif isinstance(failure.error, _CHANGED):
                raise _changed(failure.operation.path) from failure.error
            else:
                raise translate(failure.error, failure.operation.path) from failure.error
    raise ConflictError(f"group {finding.group!r} keeps changing while it is being repaired: try again later")


def _needed_guards(guards: Sequence[Operation], operations: Sequence[Operation]) -> Sequence[Operation]:
    """Leave out the guard if the repair deletes `ids`: that fails too if an instance is registered."""
    deleted = {operation.path for operation in operations if isinstance(operation, Delete)}
    return [] if any(operation.path in deleted for operation in guards) else guards


def _operations(step: RepairStep) -> list[Operation]:
    if isinstance(step, Rewrite):
        return [Set(step.path, step.data, step.version)]
    return remove_persistent(step.path, step.version) if step.persistent else [Delete(step.path, step.version)]


def _changed(path: str) -> ConflictError:
    return ConflictError(f"{path} has changed since the check; nothing was repaired: check the group again")


class _IdsNotRegistered:
    """Makes a transaction fail while one of these ids is registered, by creating and deleting their nodes.

    Members watch `ids`. So they read the group afterwards, and find the released partition.
    """

    def __init__(self, paths: GroupPaths, context: RegistryContext, names: Sequence[str]) -> None:
        self._paths = paths
        self._context = context
        self._names = names

    def operations(self) -> list[Operation]:
        """Return the operations for the start of a transaction. Without `ids`, no instance is registered."""
        if not self._context.session.exists(self._paths.ids, deadline=self._context.deadline()):
            return [Create(self._paths.ids), Delete(self._paths.ids)]
        nodes = [self._paths.instance(name) for name in self._names]
        return [operation for node in nodes for operation in (Create(node), Delete(node))]

    def handle_failure(self, failure: TransactionFailed) -> None:
        """Raise `GroupInUseError` if an instance has registered. If `ids` was created or deleted, allow a retry."""
        path = failure.operation.path
        if isinstance(failure.error, NodeExistsError) and path != self._paths.ids:
            raise GroupInUseError(self._paths.group, [path.rpartition("/")[2]]) from failure.error
        if not isinstance(failure.error, NodeExistsError | NoNodeError):
            raise translate(failure.error, path) from failure.error
