"""Delete, prune and copy whole groups. A group is never deleted while an instance is registered."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kazoo.exceptions import BadVersionError, NoChildrenForEphemeralsError, NodeExistsError, NoNodeError, NotEmptyError

from ...core.times import to_ms
from ...core.znodes.codecs import encode_offset
from ...core.znodes.own_nodes import Mark, MarkState
from ...core.znodes.paths import GroupPaths, join, parent
from ...core.znodes.values import CommittedOffset, ForbiddenNode, UnreadableNode
from ...exceptions import (
    ConflictError,
    GroupExistsError,
    GroupInUseError,
    GroupNotFoundError,
    GuardFailedError,
    InterruptedDeleteError,
    NoPermissionError,
    OffsetConflictError,
    TooLargeError,
    ZkgroupsException,
)
from ..reading import group_reader
from ..requests import bulk_read
from ..requests.run_transaction import in_batches
from ..requests.transaction import Create, Delete, Operation, TransactionFailed, batches, fits
from ..session.errors import translate
from ..session.session import RegistryContext
from . import migration_marks
from .transaction_guards import NobodyRegistered, server_time_ms

# Delete a whole group, but never while an instance is registered.
#
# If the group fits into one transaction, it is deleted at once. The transaction deletes `ids` first, so it fails and
# changes nothing if an instance has registered. A larger group is deleted topic by topic, so that an interruption
# leaves whole topics. Each of these transactions checks again that no instance is registered. Only a topic that is
# larger than one request, with more than ten thousand partitions, is split.


ATTEMPTS: Final = 5
"""How often to start again if the group changes while it is being deleted."""


_REPLACED: Final = (BadVersionError, NoChildrenForEphemeralsError)
"""Errors that show that a persistent registration was replaced by another node."""


def delete_group(paths: GroupPaths, context: RegistryContext) -> None:
    """Delete the group. Raise `InterruptedDeleteError` with the remaining topics if only a part could be deleted."""
    Deletion(paths, context).carry_out()


class Deletion:
    """The deletion of one group, in one or more attempts."""

    def __init__(self, paths: GroupPaths, context: RegistryContext) -> None:
        self._paths = paths
        self._context = context
        self._unlisted: set[str] = set()
        """The nodes whose children cannot be listed without permission."""
        self.begun = False
        self.left: list[str] = []

    def carry_out(self) -> None:
        """Delete the group. Once a part is deleted, all errors become `InterruptedDeleteError`."""
        try:
            for _ in range(ATTEMPTS):
                if self._attempt_what_fits():
                    return
            raise ConflictError(
                f"group {self._paths.group!r} keeps changing while it is being deleted: stop its clients, and try again"
            )
        except ZkgroupsException as error:
            if not self.begun:
                raise
            raise InterruptedDeleteError(self._paths.group, self.left, str(error)) from error

    def _attempt_what_fits(self) -> bool:
        """Try smaller transactions until the server accepts them."""
        while True:
            limit = self._limit
            try:
                return self.attempt()
            except TooLargeError:
                if self._limit >= limit:
                    raise

    @property
    def _limit(self) -> int:
        session = self._context.session
        return session.limit.most(session.id)

    def attempt(self) -> bool:
        """Read the group and delete it. Return False if it has changed since it was read."""
        paths, context = self._paths, self._context
        if not context.session.exists(paths.root, deadline=context.deadline()):
            raise GroupNotFoundError(paths.group)
        guard = NobodyRegistered(paths, context)
        _refuse_living_owners(paths, context)
        topics = self._topics()
        rest = [*guard.removals, *_deletes(self._rest()), Delete(paths.root)]
        whole = [*(operation for unit in topics.values() for operation in unit), *rest]
        if fits(whole, chroot=context.session.chroot, limit=self._limit):
            return self._transact(whole)
        self.left = list(topics)
        return all(self._delete_topic(topic, unit, guard) for topic, unit in topics.items()) and self._transact(rest)

    def _delete_topic(self, topic: str, unit: Sequence[Operation], guard: NobodyRegistered) -> bool:
        chroot = self._context.session.chroot
        pieces = [unit]
        if not fits([*guard.operations(), *unit], chroot=chroot, limit=self._limit):
            singles = [[operation] for operation in unit]
            limit = self._context.session.request_limit
            grouped = batches(singles, overhead=guard.operations(), chroot=chroot, limit=limit)
            pieces = [[operation for [operation] in piece] for piece in grouped]
        for piece in pieces:
            if not self._transact(piece, guard):
                return False
            self.begun = True
        self.left.remove(topic)
        return True

    def _transact(self, operations: Sequence[Operation], guard: NobodyRegistered | None = None) -> bool:
        """Carry out the operations. Return False if the group has changed since it was read."""
        guards = guard.operations() if guard else []
        try:
            self._context.session.transact([*guards, *operations], deadline=self._context.deadline())
        except TransactionFailed as failure:
            if guard is not None and failure.index < len(guards):
                guard.handle_failure(failure)
            elif self._is_registration(failure.operation) and isinstance(failure.error, _REPLACED):
                return False
            elif isinstance(failure.error, NotEmptyError) and failure.operation.path in self._unlisted:
                raise NoPermissionError(failure.operation.path) from failure.error
            elif not isinstance(failure.error, NotEmptyError | NoNodeError):
                raise translate(failure.error, failure.operation.path) from failure.error
            return False
        return True

    def _is_registration(self, operation: Operation) -> bool:
        return operation.path.startswith(f"{self._paths.ids}/")

    def _topics(self) -> dict[str, list[Operation]]:
        """Return the operations that delete the offsets and the owners of each topic."""
        offsets = self._below(self._paths.offsets)
        owners = self._below(self._paths.owners)
        return {
            topic: _deletes([*offsets.get(topic, ()), *owners.get(topic, ())])
            for topic in sorted(offsets.keys() | owners.keys())
        }

    def _below(self, directory: str) -> dict[str, list[str]]:
        """Return the subtrees below a directory by name, each with the deepest nodes first."""
        names = self._context.session.children(directory, deadline=self._context.deadline()) or []
        found: dict[str, list[str]] = {name: [] for name in names}
        for path in self._tree([join(directory, name) for name in names]):
            name = path.removeprefix(f"{directory}/").partition("/")[0]
            found[name].append(path)
        return found

    def _rest(self) -> list[str]:
        """Return all other nodes of the group, also unknown ones: `ids` first, and the deepest nodes first."""
        paths, context = self._paths, self._context
        names = context.session.children(paths.root, deadline=context.deadline()) or []
        known = [path for path in (paths.ids, paths.owners, paths.offsets) if path.rpartition("/")[2] in names]
        other = [join(paths.root, name) for name in names if join(paths.root, name) not in known]
        return [*known, *self._tree(other)]

    def _tree(self, roots: Iterable[str]) -> list[str]:
        """Return the nodes of these subtrees, deepest first."""
        level = list(roots)
        found: list[str] = []
        while level:
            found += level
            listed = zip(level, bulk_read.children(self._context, level), strict=True)
            level = [join(path, name) for path, names in listed for name in self._names(names)]
        return found[::-1]

    def _names(self, found: list[str] | ForbiddenNode | None) -> list[str]:
        """Return the listed names. Without permission to list them, the deletion fails if there are any."""
        if isinstance(found, ForbiddenNode):
            self._unlisted.add(found.path)
            return []
        return found or []


def _refuse_living_owners(paths: GroupPaths, context: RegistryContext) -> None:
    """Raise `GroupInUseError` if an owner node belongs to a session, even without a registration (rule 2)."""
    owners = [owner for _group, owner in group_reader.read_owners(context, [paths.group])]
    living = []
    for owner in owners:
        if isinstance(owner, ForbiddenNode):
            raise NoPermissionError(owner.path)  # it may belong to a live session
        if owner.session:
            living.append(owner.holder)
    if living:
        raise GroupInUseError(paths.group, living)


def _deletes(paths: Iterable[str]) -> list[Operation]:
    return [Delete(path) for path in paths]


# Delete a group, but only if its offsets are as they were read, for example into a file.


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


# Delete an unused group, but only if it is exactly as it was exported.


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


# Copy the offsets of a group to a new group.
#
# A group that fits into one transaction is copied at once. A larger group gets its directory `ids` last. So a member
# that joins earlier creates `ids` itself, and the copy detects it: this member would start without some offsets.


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of `Consumergroup.copy`: the number of `offsets` written, and the nodes `left_out` as malformed."""

    offsets: int
    left_out: tuple[UnreadableNode, ...]


def copy_group(source: GroupPaths, target: GroupPaths, context: RegistryContext) -> Copied:
    """Copy the offsets to a new group. Copy nothing if the target exists, or if an offset node is forbidden."""
    if not context.session.exists(source.root, deadline=context.deadline()):
        raise GroupNotFoundError(source.group)
    found = list(group_reader.every_offset(context, [source.group]))
    for node in found:
        if isinstance(node, ForbiddenNode):
            raise NoPermissionError(node.path)
    offsets = [offset for offset in found if isinstance(offset, CommittedOffset)]
    directories = context.acls.directories
    topics = dict.fromkeys(offset.at.topic for offset in offsets)
    new = [target.root, target.offsets, *map(target.offset_topic, topics)]
    units: list[list[Operation]] = [[Create(path, acl=directories)] for path in new]
    units += [
        [Create(target.offset(offset.at), encode_offset(offset.offset), acl=context.acls.offsets)] for offset in offsets
    ]
    units += [[Create(path, acl=directories) for path in (target.ids, target.owners)]]
    in_batches(
        context.session, units, lambda batch: _create(target, [each for unit in batch for each in unit], context)
    )
    return Copied(len(offsets), tuple(node for node in found if isinstance(node, UnreadableNode)))


def _create(target: GroupPaths, operations: Sequence[Operation], context: RegistryContext) -> None:
    try:
        context.session.transact(operations, deadline=context.deadline())
    except TransactionFailed as failure:
        path = failure.operation.path
        if not isinstance(failure.error, NodeExistsError):
            raise translate(failure.error, path) from failure.error
        if path == target.root:
            raise GroupExistsError(target.group) from failure.error
        raise ConflictError(
            f"an instance joined group {target.group!r} before all offsets were copied: stop it, delete the group with "
            f"`zkgroups groups delete {shlex.quote(target.group)}`, and copy again"
        ) from failure.error
