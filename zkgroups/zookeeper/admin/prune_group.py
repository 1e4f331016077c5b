"""Delete an unused group, but only if it is exactly as it was exported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kazoo.exceptions import BadVersionError

from ...core.times import to_ms
from ...core.znodes.migration_mark import Mark, MarkState
from ...core.znodes.paths import GroupPaths, parent
from ...core.znodes.values import CommittedOffset
from ...exceptions import GroupNotFoundError, GuardFailedError, OffsetConflictError, ZkgroupsException
from ..reading import group_reader
from ..requests.transaction import Delete, Operation
from ..session.registry_context import RegistryContext
from . import migration_marks
from .delete_group import Deletion
from .server_clock import server_time_ms
from .transaction_guards import NobodyRegistered


def prune_group(
    paths: GroupPaths, context: RegistryContext, offsets: Iterable[CommittedOffset], *, unused_for: float = 0.0
) -> None:
    """Delete a group that has exactly these offsets, unchanged since they were read, and nothing else.

    See `Consumergroup.prune`.
    """
    known = list(offsets)
    if unused_for:
        _check_age(paths, context, known, unused_for)
    _Pruning(paths, context, known).carry_out()


def _check_age(
    paths: GroupPaths, context: RegistryContext, offsets: Iterable[CommittedOffset], unused_for: float
) -> None:
    """Raise an error if the last commit, or the creation of a group without offsets, is too recent.

    Only the server's clock counts: it has set the times of the nodes.
    """
    root = context.session.get(paths.root, deadline=context.deadline())
    if root is None:
        raise GroupNotFoundError(paths.group)
    used_ms = max((to_ms(offset.committed_at) for offset in offsets), default=root.created_ms)
    seconds = (server_time_ms(context, paths.root) - used_ms) / 1000
    if seconds < unused_for:
        raise GuardFailedError(
            f"group {paths.group!r} was used {seconds:.0f} s ago by the server's clock, so it is not deleted: check "
            "the clock of this machine"
        )


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
