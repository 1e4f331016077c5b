"""Deleting groups that nobody uses any more, as they were shown and exported, or not at all."""

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
from .guards import NobodyRegistered


def prune_group(paths: GroupPaths, context: RegistryContext, offsets: Iterable[CommittedOffset]) -> None:
    """Delete a group that has these offsets and nothing else, each as it was read.

    `OffsetConflictError` where one was committed since, `GuardFailedError` where there is something else; and whatever
    `Consumergroup.delete` raises.
    """
    _Pruning(paths, context, offsets).carry_out()


class _Pruning(Deletion):
    """A deletion that knows what it may delete."""

    def __init__(self, paths: GroupPaths, context: RegistryContext, offsets: Iterable[CommittedOffset]) -> None:
        super().__init__(paths, context)
        self._known = {paths.offset(offset.at): offset for offset in offsets}
        self._parts = (paths.root, paths.ids, paths.owners, paths.offsets, paths.mark)

    def attempt(self) -> bool:
        """As every deletion; but what was committed meanwhile is told before anything is done."""
        self._look()
        return super().attempt()

    def _look(self) -> None:
        group = self._paths.group
        moving = migration_marks.read(self._context, [group]).get(group)
        if moving is not None and not (isinstance(moving, Mark) and moving.state is MarkState.MOVED):
            raise migration_marks.migrated(group, moving)
        for found in group_reader.every_offset(self._context, [group]):
            if not isinstance(found, CommittedOffset):
                raise GuardFailedError(f"{found.path} cannot be read: {found.reason}")
            if found != self._known.get(self._paths.offset(found.at)):
                raise OffsetConflictError(found.at, found)

    def _transact(self, operations: Sequence[Operation], guard: NobodyRegistered | None = None) -> bool:
        try:
            return super()._transact([self._as_known(operation) for operation in operations], guard)
        except ZkgroupsException as error:
            if isinstance(error.__cause__, BadVersionError):
                self._look()  # it says which
            raise

    def _as_known(self, operation: Operation) -> Operation:
        """The same, of an offset in the version that was read; of what nobody knows, nothing."""
        path = operation.path
        if (offset := self._known.get(path)) is not None:
            return Delete(path, offset.version)
        if path in self._parts or parent(path) in (self._paths.owners, self._paths.offsets):
            return operation
        if self._is_registration(operation):  # a persistent registration, which has no client
            return operation
        raise GuardFailedError(f"{path} is there, too, and it is no offset that was read before")
