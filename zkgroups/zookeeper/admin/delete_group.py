"""Delete a whole group, but never while an instance is registered.

If the group fits into one transaction, it is deleted at once. The transaction deletes `ids` first, so it fails and
changes nothing if an instance has registered. A larger group is deleted topic by topic, so that an interruption leaves
whole topics. Each of these transactions checks again that no instance is registered. Only a topic that is larger than
one request, with more than ten thousand partitions, is split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kazoo.exceptions import BadVersionError, NoChildrenForEphemeralsError, NoNodeError, NotEmptyError

from ...core.znodes.paths import GroupPaths, join
from ...core.znodes.values import ForbiddenNode
from ...exceptions import (
    ConflictError,
    GroupInUseError,
    GroupNotFoundError,
    InterruptedDeleteError,
    NoPermissionError,
    TooLargeError,
    ZkgroupsException,
)
from ..reading import group_reader
from ..requests import bulk_read
from ..requests.request_size import batches, fits
from ..requests.transaction import Delete, Operation, TransactionFailed
from ..session.errors import translate
from ..session.registry_context import RegistryContext
from .transaction_guards import NobodyRegistered

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
