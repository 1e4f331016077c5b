"""Write the offsets of one group without a claim: each write replaces the version of the node that was read.

A guard (`admin/transaction_guards.py`) protects the members of the group in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ..core.znodes.commit_details import CommitDetails, encode_details
from ..core.znodes.offset_codec import check_offset, encode_offset
from ..core.znodes.paths import GroupPaths, parent
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..core.znodes.values import CommittedOffset, CurrentOffset, ForbiddenNode, UnreadableNode
from ..exceptions import (
    ConflictError,
    NoPermissionError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    UnavailableError,
    ZkgroupsException,
)
from .admin.transaction_guards import Guard, NobodyRegistered, RewriteRegistrations
from .reading import group_reader
from .requests import bulk_read
from .requests.ensure_paths import ensure_paths
from .requests.node import Node
from .requests.transaction import Create, Delete, Operation, SessionFence, Set, TransactionFailed
from .requests.transaction_batches import Batch, in_batches
from .session.errors import translate
from .session.registry_context import RegistryContext


class OffsetWriter:
    """Reads the offset nodes of one group, and writes them over the versions that were read."""

    def __init__(self, paths: GroupPaths, context: RegistryContext, fence: SessionFence | None = None) -> None:
        self._paths = paths
        self._context = context
        self._session_id = None if fence is None else fence.session_id
        self._checks = () if fence is None else fence.checks

    def read(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Node | ForbiddenNode | None]:
        """Read the offset nodes of these partitions."""
        wanted = [check_at(at) for at in dict.fromkeys(partitions)]
        return dict(zip(wanted, bulk_read.nodes(self._context, map(self._paths.offset, wanted)), strict=True))

    def value(self, at: TopicPartition, node: Node | ForbiddenNode | None) -> CurrentOffset:
        """Return the committed offset that a node contains, or the unreadable node."""
        return group_reader.offset(self._paths.group, at, node) if isinstance(node, Node) else node

    def write(
        self,
        offsets: Mapping[TopicPartition, int],
        expected: Mapping[TopicPartition, CommittedOffset | None],
        *,
        backward: bool,
        guard: Guard | None,
        details: Mapping[TopicPartition, CommitDetails] | None = None,
    ) -> None:
        """Write offsets, some of them with details. Raise if one is not as expected, or would go back."""
        for offset in offsets.values():
            check_offset(offset)
        nodes = {at: _replaceable(node) for at, node in self.read(offsets).items()}
        for at, offset in offsets.items():
            self._check(at, offset, nodes[at], expected, backward=backward)
        units = {at: [self._operation(at, offset, nodes[at])] for at, offset in offsets.items()}
        for at, operation in self._write_details(details or {}, offsets, nodes):
            units[at].append(operation)
        self._transact_in_batches(list(units.values()), guard)

    def _write_details(
        self,
        details: Mapping[TopicPartition, CommitDetails],
        offsets: Mapping[TopicPartition, int],
        nodes: Mapping[TopicPartition, Node | None],
    ) -> Iterator[tuple[TopicPartition, Operation]]:
        found = bulk_read.nodes(self._context, map(self._paths.details_of, details))
        for (at, each), existing in zip(details.items(), found, strict=True):
            current, path = nodes[at], self._paths.details_of(at)
            version = 0 if current is None else current.version + 1
            data = encode_details(each, offset=offsets[at], version=version)
            if (node := _replaceable(existing)) is None:
                yield at, Create(path, data, acl=self._context.acls.offsets)
            else:
                yield at, Set(path, data, node.version)

    def _check(
        self,
        at: TopicPartition,
        offset: int,
        node: Node | None,
        expected: Mapping[TopicPartition, CommittedOffset | None],
        *,
        backward: bool,
    ) -> None:
        found = self.value(at, node)
        if at in expected and not _as_expected(expected[at], found):
            raise OffsetConflictError(at, found)
        if isinstance(found, CommittedOffset) and offset < found.offset and not backward:
            raise OffsetWouldGoBackError(self._paths.group, at, found.offset, offset)

    def delete(self, partitions: Iterable[TopicPartition], guard: Guard) -> None:
        """Delete offsets."""
        nodes = {at: _replaceable(node) for at, node in self.read(partitions).items()}
        units = [[Delete(self._paths.offset(at), node.version)] for at, node in nodes.items() if node is not None]
        self._transact_in_batches(units, guard)

    def _transact_in_batches(self, units: Sequence[Sequence[Operation]], guard: Guard | None) -> None:
        in_batches(
            self._context.session,
            units,
            lambda batch: self.transact([operation for unit in batch for operation in unit], guard),
            overhead=[*(guard.operations() if guard else ()), *self._checks],
        )

    def replace(
        self,
        offsets: Mapping[TopicPartition, int | None],
        expected: Mapping[TopicPartition, CurrentOffset],
        *,
        force: bool,
    ) -> dict[TopicPartition, ZkgroupsException]:
        """Write or delete offsets that are still as expected. See `Offsets.replace`."""
        for offset in offsets.values():
            if offset is not None:
                check_offset(offset)
        nodes = {at: _replaceable(node) for at, node in self.read(offsets).items()}
        unchanged: dict[TopicPartition, ZkgroupsException] = {**self._unexpected(nodes, expected)}
        guard = self._guard(deletes=None in offsets.values(), force=force)
        units = [
            [operation]
            for at, offset in offsets.items()
            if at not in unchanged and (operation := self._replacing(at, offset, nodes[at])) is not None
        ]
        left = [operation for [operation] in units]

        def write(batch: Batch[Operation]) -> None:
            unchanged.update(self._transact_what_fits([operation for [operation] in batch], guard))
            del left[: len(batch)]

        try:
            in_batches(self._context.session, units, write, overhead=guard.operations() if guard else ())
        except UnavailableError:
            raise
        except ZkgroupsException as error:
            if len(left) == len(units):
                raise
            unchanged |= {_at(operation.path): error for operation in left}
        return unchanged

    def _unexpected(
        self, nodes: Mapping[TopicPartition, Node | None], expected: Mapping[TopicPartition, CurrentOffset]
    ) -> dict[TopicPartition, OffsetConflictError]:
        found = {at: self.value(at, node) for at, node in nodes.items()}
        return {at: OffsetConflictError(at, now) for at, now in found.items() if not _as_expected(expected[at], now)}

    def _guard(self, *, deletes: bool, force: bool) -> Guard | None:
        if not force:
            return NobodyRegistered(self._paths, self._context)
        return RewriteRegistrations(self._paths, self._context) if deletes else None

    def _replacing(self, at: TopicPartition, offset: int | None, node: Node | None) -> Operation | None:
        if offset is not None:
            return self._operation(at, offset, node)
        return None if node is None else Delete(self._paths.offset(at), node.version)

    def _transact_what_fits(
        self, operations: Sequence[Operation], guard: Guard | None
    ) -> dict[TopicPartition, OffsetConflictError]:
        """Write the offsets that have not changed since they were read. Return conflicts for the others."""
        conflicts: dict[TopicPartition, OffsetConflictError] = {}
        while left := [each for each in operations if _at(each.path) not in conflicts]:
            try:
                self.transact(left, guard)
                break
            except OffsetConflictError as conflict:
                conflicts[conflict.at] = conflict
        return conflicts

    def _operation(self, at: TopicPartition, offset: int, node: Node | None) -> Operation:
        path, data = self._paths.offset(at), encode_offset(offset)
        if node is None:
            return Create(path, data, acl=self._context.acls.offsets)
        return Set(path, data, node.version)

    def transact(self, operations: Sequence[Operation], guard: Guard | None) -> None:
        """Carry out the operations in one transaction, after those of the guard. Create missing directories."""
        while True:
            guards = guard.operations() if guard else []
            try:
                all_of_them = [*guards, *self._checks, *operations]
                deadline = self._context.deadline()
                self._context.session.transact(all_of_them, session_id=self._session_id, deadline=deadline)
                return
            except TransactionFailed as failure:
                if failure.operation in self._checks:
                    raise ConflictError(f"another client has deleted {failure.operation.path}") from failure.error
                if guard is not None and failure.index < len(guards):
                    guard.handle_failure(failure)
                elif isinstance(failure.error, NoNodeError) and isinstance(failure.operation, Create):
                    self._make_directories(operations)
                    if guard is not None:
                        guard.refresh()  # the group has just been created, so an instance may register now
                else:
                    raise self._conflict(failure) from failure.error

    def _make_directories(self, operations: Sequence[Operation]) -> None:
        ensure_paths(self._context, (parent(operation.path) for operation in operations))

    def _conflict(self, failure: TransactionFailed) -> Exception:
        path = failure.operation.path
        if not isinstance(failure.error, NoNodeError | NodeExistsError | BadVersionError):
            return translate(failure.error, path)
        at = _at(path)
        return OffsetConflictError(at, self.value(at, self.read([at])[at]))


def _at(path: str) -> TopicPartition:
    """Return the partition of an offset node that was named here."""
    topic, name = path.split("/")[-2:]
    return TopicPartition(topic, int(name))


def _as_expected(expected: CurrentOffset, found: CurrentOffset) -> bool:
    """Return whether the node has not been written since the caller read it."""
    if isinstance(expected, UnreadableNode) and not isinstance(expected, ForbiddenNode):
        return expected == found  # they carry their bytes instead of a zxid
    if not isinstance(expected, CommittedOffset) or not isinstance(found, CommittedOffset):
        return expected is found
    return (expected.offset, expected.version, expected.zxid) == (found.offset, found.version, found.zxid)


def _replaceable(found: Node | ForbiddenNode | None) -> Node | None:
    """Return the node to replace. Raise an error if it is forbidden: its version is unknown."""
    if isinstance(found, ForbiddenNode):
        raise NoPermissionError(found.path)
    return found
