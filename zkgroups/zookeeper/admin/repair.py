"""Carrying out the repairs of `core/doctor/check_table.py`: all of one or nothing, and only over what was seen.

A version alone is no guard: a node that was deleted and recreated has version 0 again. So a node that is deleted must
still be without children, which a directory that is in use is not; and one that should be no session's is made to prove
it, because ZooKeeper lets no node stand below an ephemeral one: a member's claim made meanwhile is never deleted. What
is rewritten is read once more just before.
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
from ..session.registry_context import RegistryContext
from .guards import NobodyRegistered, remove_persistent

_CHANGED: Final = (BadVersionError, NoChildrenForEphemeralsError, NoNodeError, NotEmptyError)

ATTEMPTS: Final = 5


def repair(finding: Finding, context: RegistryContext) -> None:
    """Repair what was found; refused where somebody has come or something has changed meanwhile."""
    if finding.repair is None:
        raise RefusedError(f"{finding.path} is not repaired: {finding.not_repaired}")
    paths = GroupPaths(finding.group)
    if not context.session.exists(paths.root, deadline=context.deadline()):
        raise GroupNotFoundError(finding.group)
    for step in finding.repair.steps:
        if isinstance(step, Rewrite):
            _compare(step, context)
    _carry_out(finding, _guard(finding.repair, paths, context), context)


def _guard(planned: Repair, paths: GroupPaths, context: RegistryContext) -> NobodyRegistered | _NobodyNamed | None:
    if planned.is_always_safe:
        return None
    return _NobodyNamed(paths, context, planned.unless) if planned.unless else NobodyRegistered(paths, context)


def _compare(step: Rewrite, context: RegistryContext) -> None:
    node = context.session.get(step.path, deadline=context.deadline())
    if node is None or (node.data, node.version) != (step.before, step.version):
        raise _changed(step.path)


def _carry_out(finding: Finding, guard: NobodyRegistered | _NobodyNamed | None, context: RegistryContext) -> None:
    steps = finding.repair.steps if finding.repair else ()
    operations = [operation for step in steps for operation in _operations(step)]
    for _ in range(ATTEMPTS):
        guards = _not_in_the_way(guard.operations(), operations) if guard else []
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
    raise ConflictError(f"group {finding.group!r} keeps changing while it is being repaired")


def _not_in_the_way(guards: Sequence[Operation], operations: Sequence[Operation]) -> Sequence[Operation]:
    """Where `ids` itself is deleted, that asserts by itself that nobody is registered; recreated, it has version 0."""
    deleted = {operation.path for operation in operations if isinstance(operation, Delete)}
    return [] if any(operation.path in deleted for operation in guards) else guards


def _operations(step: RepairStep) -> list[Operation]:
    if isinstance(step, Rewrite):
        return [Set(step.path, step.data, step.version)]
    return remove_persistent(step.path, step.version) if step.persistent else [Delete(step.path, step.version)]


def _changed(path: str) -> ConflictError:
    return ConflictError(f"{path} was changed meanwhile, nothing was repaired")


class _NobodyNamed:
    """The guard that nobody is registered by some names: nodes of these names are made and deleted again.

    Members that watch `ids` look again after that, and find the partition free.
    """

    def __init__(self, paths: GroupPaths, context: RegistryContext, names: Sequence[str]) -> None:
        self._paths = paths
        self._context = context
        self._names = names

    def operations(self) -> list[Operation]:
        """What to put at the start of a transaction; without `ids` there is nobody at all."""
        if not self._context.session.exists(self._paths.ids, deadline=self._context.deadline()):
            return [Create(self._paths.ids), Delete(self._paths.ids)]
        nodes = [self._paths.instance(name) for name in self._names]
        return [operation for node in nodes for operation in (Create(node), Delete(node))]

    def handle_failure(self, failure: TransactionFailed) -> None:
        """One of the operations above has failed: somebody has registered, or `ids` has come or gone meanwhile."""
        path = failure.operation.path
        if isinstance(failure.error, NodeExistsError) and path != self._paths.ids:
            raise GroupInUseError(self._paths.group, [path.rpartition("/")[2]]) from failure.error
        if not isinstance(failure.error, NodeExistsError | NoNodeError):
            raise translate(failure.error, path) from failure.error
