"""Delete a group, but only if its offsets are as they were read, for example into a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kazoo.exceptions import BadVersionError

from ...core.znodes.paths import GroupPaths, parent
from ...core.znodes.values import CommittedOffset, UnreadableNode
from ...exceptions import GuardFailedError, OffsetConflictError, ZkgroupsException
from ..reading import group_reader
from ..requests.transaction import Delete, Operation
from ..session.registry_context import RegistryContext
from .delete_group import Deletion
from .transaction_guards import NobodyRegistered


def delete_unchanged(
    paths: GroupPaths, context: RegistryContext, offsets: Iterable[CommittedOffset | UnreadableNode]
) -> None:
    """Delete a group that has exactly these offsets. See `Consumergroup.delete`."""
    UnchangedDeletion(paths, context, offsets).carry_out()


class UnchangedDeletion(Deletion):
    """A deletion of exactly these offsets. Each is deleted with the version that was read."""

    def __init__(
        self, paths: GroupPaths, context: RegistryContext, offsets: Iterable[CommittedOffset | UnreadableNode]
    ) -> None:
        super().__init__(paths, context)
        self._known = {self._path(offset): offset for offset in offsets}

    def _path(self, offset: CommittedOffset | UnreadableNode) -> str:
        return self._paths.offset(offset.at) if isinstance(offset, CommittedOffset) else offset.path

    def attempt(self) -> bool:
        """Check that the offsets are unchanged, then read the group and delete it."""
        self._check_unchanged()
        return super().attempt()

    def _check_unchanged(self) -> None:
        for found in group_reader.every_offset(self._context, [self._paths.group]):
            self._check(found)

    def _check(self, found: CommittedOffset | UnreadableNode) -> None:
        if found == self._known.get(self._path(found)):
            return
        if isinstance(found, CommittedOffset):
            raise OffsetConflictError(found.at, found)
        raise GuardFailedError(f"{found.path} has changed since it was read, so the group is not deleted")

    def _transact(self, operations: Sequence[Operation], guard: NobodyRegistered | None = None) -> bool:
        try:
            return super()._transact([self._checked(operation) for operation in operations], guard)
        except ZkgroupsException as error:
            if isinstance(error.__cause__, BadVersionError):
                self._check_unchanged()  # raises an error that names the offset
            raise

    def _checked(self, operation: Operation) -> Operation:
        """Return the operation, for offsets with the version that was read. Raise an error for other offsets."""
        path = operation.path
        if (offset := self._known.get(path)) is not None:
            return Delete(path, offset.version)
        if parent(parent(path)) == self._paths.offsets:
            raise self._created_meanwhile(path)
        return operation

    def _created_meanwhile(self, path: str) -> GuardFailedError:
        return GuardFailedError(f"node {path} was created after the group was read, so the group is kept: check it")
