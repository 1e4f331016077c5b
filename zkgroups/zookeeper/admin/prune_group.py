"""Delete an unused group, but only if it is exactly as it was exported."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.times import to_ms
from ...core.znodes.migration_mark import Mark, MarkState
from ...core.znodes.paths import GroupPaths, parent
from ...core.znodes.values import CommittedOffset, UnreadableNode
from ...exceptions import GroupNotFoundError, GuardFailedError
from ..requests.transaction import Operation
from ..session.registry_context import RegistryContext
from . import migration_marks
from .delete_unchanged import UnchangedDeletion
from .server_clock import server_time_ms


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


class _Pruning(UnchangedDeletion):
    """A deletion of known nodes only."""

    def _check_unchanged(self) -> None:
        group = self._paths.group
        moving = migration_marks.read(self._context, [group]).get(group)
        if moving is not None and not (isinstance(moving, Mark) and moving.state is MarkState.MOVED):
            raise migration_marks.migrated(group, moving)
        super()._check_unchanged()

    def _check(self, found: CommittedOffset | UnreadableNode) -> None:
        if not isinstance(found, CommittedOffset):
            raise GuardFailedError(f"{found.path} cannot be read ({found.reason}), so the group is not deleted")
        super()._check(found)

    def _checked(self, operation: Operation) -> Operation:
        """Return the operation, for offsets with the version that was read. Raise an error for unknown nodes."""
        path, paths = operation.path, self._paths
        parts = (paths.root, paths.ids, paths.owners, paths.offsets, paths.mark)
        if path in self._known:
            return super()._checked(operation)
        if path in parts or parent(path) in (paths.owners, paths.offsets):
            return operation
        if path == paths.details or path.startswith(f"{paths.details}/"):  # nothing without the offsets
            return operation
        if self._is_registration(operation):  # a persistent registration: it has no client
            return operation
        raise self._created_meanwhile(path)
