"""Delete an unused group, but only if it is exactly as it was exported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kazoo.exceptions import BadVersionError

from ...core.znodes.migration_mark import Mark, MarkState
from ...core.znodes.paths import GroupPaths, parent
from ...core.znodes.values import CommittedOffset
from ...exceptions import GuardFailedError, OffsetConflictError, ZkgroupsException
from ..reading import group_reader
from ..requests.transaction import Delete, Operation
from ..session.registry_context import RegistryContext
from . import migration_marks
from .delete_group import Deletion
from .transaction_guards import NobodyRegistered


def prune_group(paths: GroupPaths, context: RegistryContext, offsets: Iterable[CommittedOffset]) -> None:
    """Delete a group that has exactly these offsets, unchanged since they were read, and nothing else.

    Raise `OffsetConflictError` if an offset was committed since, `GuardFailedError` if the group has other nodes, and
    otherwise the errors of `Consumergroup.delete`.
    """
    _Pruning(paths, context, offsets).carry_out()


class _Pruning(Deletion):
    """A deletion of known nodes only."""

    def __init__(self, paths: GroupPaths, context: RegistryContext, offsets: Iterable[CommittedOffset]) -> None:
        super().__init__(paths, context)
        self._known = {paths.offset(offset.at): offset for offset in offsets}
        self._parts = (paths.root, paths.ids, paths.owners, paths.offsets, paths.mark)

    def attempt(self) -> bool:
        """Check that the offsets are unchanged, then read the group and delete it."""
        self._check_unchanged()
        return super().attempt()

    def _check_unchanged(self) -> None:
        group = self._paths.group
        moving = migration_marks.read(self._context, [group]).get(group)
        if moving is not None and not (isinstance(moving, Mark) and moving.state is MarkState.MOVED):
            raise migration_marks.migrated(group, moving)
        for found in group_reader.every_offset(self._context, [group]):
            if not isinstance(found, CommittedOffset):
                raise GuardFailedError(f"{found.path} cannot be read ({found.reason}), so the group is not deleted")
            if found != self._known.get(self._paths.offset(found.at)):
                raise OffsetConflictError(found.at, found)

    def _transact(self, operations: Sequence[Operation], guard: NobodyRegistered | None = None) -> bool:
        try:
            return super()._transact([self._checked(operation) for operation in operations], guard)
        except ZkgroupsException as error:
            if isinstance(error.__cause__, BadVersionError):
                self._check_unchanged()  # raises an error that names the offset
            raise

    def _checked(self, operation: Operation) -> Operation:
        """Return the operation, for offsets with the version that was read. Raise an error for unknown nodes."""
        path = operation.path
        if (offset := self._known.get(path)) is not None:
            return Delete(path, offset.version)
        if path in self._parts or parent(path) in (self._paths.owners, self._paths.offsets):
            return operation
        if path == self._paths.details or path.startswith(f"{self._paths.details}/"):  # nothing without the offsets
            return operation
        if self._is_registration(operation):  # a persistent registration: it has no client
            return operation
        raise GuardFailedError(f"node {path} was created after the group was read, so the group is kept: check it")
