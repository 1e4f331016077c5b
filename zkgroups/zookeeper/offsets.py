"""The committed offsets of one group: read them, and change them without a claim.

A member commits with `claim.commit`, which is fenced. The writes here are not. They are for administrators, and for
consumers that keep offsets without registering. Each write replaces the version of the node that was read, so it never
overwrites a newer commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ..core.kafka_values import OffsetRange
from ..core.znodes.offset_codec import check_offset, encode_offset
from ..core.znodes.paths import GroupPaths, parent
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..core.znodes.values import CommittedOffset, ForbiddenNode, MalformedNode, UnreadableNode
from ..exceptions import (
    MalformedNodeError,
    NoPermissionError,
    OffsetConflictError,
    OffsetOutOfRangeError,
    OffsetWouldGoBackError,
    UnavailableError,
    ZkgroupsException,
)
from .admin.transaction_guards import Guard, NobodyRegistered, RewriteRegistrations
from .reading import group_reader
from .requests import bulk_read
from .requests.ensure_paths import ensure_paths
from .requests.node import Node
from .requests.transaction import Create, Delete, Operation, Set, TransactionFailed
from .requests.transaction_batches import Batch, in_batches
from .session.errors import translate
from .session.registry_context import RegistryContext

ReadOffset: TypeAlias = CommittedOffset | UnreadableNode | None
"""The result of reading an offset node: None if it is missing."""


class _Unspecified:
    """The type of `_UNSPECIFIED`."""


_UNSPECIFIED: Final = _Unspecified()
"""Any offset is expected. None means that no offset is expected."""


@dataclass(frozen=True, slots=True)
class _Write:
    """One offset to write, and the node to replace, if any."""

    at: TopicPartition
    data: bytes
    node: Node | None


class Offsets:
    """The offsets of a group: `group.offsets`. Iterating reads all of them in bulk, unreadable nodes included."""

    def __init__(self, paths: GroupPaths, context: RegistryContext) -> None:
        self._paths = paths
        self._context = context

    # Reading

    def fetch(self, at: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset of one partition. None if there is none."""
        found = self.fetch_many([at])[at]
        if isinstance(found, ForbiddenNode):
            raise NoPermissionError(found.path)
        if isinstance(found, MalformedNode):
            raise MalformedNodeError(found)
        return found

    def fetch_many(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ReadOffset]:
        """Return the committed offset of each partition, None if there is none, or the unreadable node."""
        return {at: self._read_as(at, node) for at, node in self._nodes(partitions).items()}

    def fetch_all(self) -> Iterator[CommittedOffset | UnreadableNode]:
        """Yield every offset of the group, sorted by topic and partition, in constant memory."""
        return group_reader.every_offset(self._context, [self._paths.group])

    __iter__ = fetch_all

    def _nodes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Node | ForbiddenNode | None]:
        wanted = [check_at(at) for at in dict.fromkeys(partitions)]
        return dict(zip(wanted, bulk_read.nodes(self._context, map(self._paths.offset, wanted)), strict=True))

    def _read_as(self, at: TopicPartition, node: Node | ForbiddenNode | None) -> ReadOffset:
        return group_reader.offset(self._paths.group, at, node) if isinstance(node, Node) else node

    # Checking

    def validate(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, Exception]:
        """Compare the committed offsets with these ranges, and return an error for each that is outside or unreadable.

        Partitions whose offset is in range, and those without an offset, are left out.
        """
        problems: dict[TopicPartition, Exception] = {}
        for at, found in self.fetch_many(ranges).items():
            if isinstance(found, ForbiddenNode):
                problems[at] = NoPermissionError(found.path)
            elif isinstance(found, MalformedNode):
                problems[at] = MalformedNodeError(found)
            elif found is not None and found.offset not in ranges[at]:
                problems[at] = OffsetOutOfRangeError(at, found.offset, ranges[at].start, ranges[at].end)
        return problems

    # Writing

    def set(
        self,
        at: TopicPartition,
        offset: int,
        *,
        expected: CommittedOffset | _Unspecified | None = _UNSPECIFIED,
        backward: bool = False,
    ) -> None:
        """Set the next message to read, without the fence of `claim.commit`. It goes back only with `backward`.

        `expected` is the offset that the caller has read, or None if it found none. If that has changed, raise
        `OffsetConflictError`.
        """
        expectations = {} if isinstance(expected, _Unspecified) else {at: expected}
        self.set_many({at: offset}, expected=expectations, backward=backward)

    def set_many(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        expected: Mapping[TopicPartition, CommittedOffset | None] | None = None,
        backward: bool = False,
    ) -> None:
        """Set several offsets, in as few transactions as the limit of the server allows. Otherwise like `set`.

        All offsets are checked before the first transaction. Each transaction writes all of its offsets or none.
        """
        self._write(offsets, expected or {}, backward=backward, guard=None)

    def reset(self, offsets: Mapping[TopicPartition, int], *, force: bool = False) -> None:
        """Set offsets, forward or backward. Raise `GroupInUseError` if an instance is registered, unless `force`.

        A registered member would overwrite the offsets with its next commit.
        """
        guard = None if force else NobodyRegistered(self._paths, self._context)
        self._write(offsets, {}, backward=True, guard=guard)

    def delete(self, partitions: Iterable[TopicPartition], *, force: bool = False) -> None:
        """Delete offsets, so that consumers start where their own settings say. Refused like `reset`.

        With `force`, all registrations are rewritten, so that zkgroups members read the offsets again: a recreated node
        has the version of the deleted one.
        """
        guard = (RewriteRegistrations if force else NobodyRegistered)(self._paths, self._context)
        nodes = {at: _replaceable(node) for at, node in self._nodes(partitions).items()}
        units = [[Delete(self._paths.offset(at), node.version)] for at, node in nodes.items() if node is not None]
        self._transact_in_batches(units, guard)

    def replace(
        self,
        offsets: Mapping[TopicPartition, int | None],
        *,
        expected: Mapping[TopicPartition, ReadOffset],
        force: bool = False,
    ) -> dict[TopicPartition, ZkgroupsException]:
        """Set offsets, forward or backward, or delete them where the new offset is None.

        Each partition must still have its `expected` offset or malformed node. Partitions that do not are left
        unchanged, and returned with their errors. Refused like `reset`, and with `force` like `delete`: such an error
        is raised if nothing was written yet. Otherwise it is returned for each partition that was left unchanged.
        """
        for offset in offsets.values():
            if offset is not None:
                check_offset(offset)
        nodes = {at: _replaceable(node) for at, node in self._nodes(offsets).items()}
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
        self, nodes: Mapping[TopicPartition, Node | None], expected: Mapping[TopicPartition, ReadOffset]
    ) -> dict[TopicPartition, OffsetConflictError]:
        found = {at: self._read_as(at, node) for at, node in nodes.items()}
        return {at: OffsetConflictError(at, now) for at, now in found.items() if not _as_expected(expected[at], now)}

    def _guard(self, *, deletes: bool, force: bool) -> Guard | None:
        if not force:
            return NobodyRegistered(self._paths, self._context)
        return RewriteRegistrations(self._paths, self._context) if deletes else None

    def _replacing(self, at: TopicPartition, offset: int | None, node: Node | None) -> Operation | None:
        if offset is not None:
            return self._operation(_Write(at, encode_offset(offset), node))
        return None if node is None else Delete(self._paths.offset(at), node.version)

    def _transact_what_fits(
        self, operations: Sequence[Operation], guard: Guard | None
    ) -> dict[TopicPartition, OffsetConflictError]:
        """Write the offsets that have not changed since they were read. Return conflicts for the others."""
        conflicts: dict[TopicPartition, OffsetConflictError] = {}
        while left := [each for each in operations if _at(each.path) not in conflicts]:
            try:
                self._transact(left, guard)
                break
            except OffsetConflictError as conflict:
                conflicts[conflict.at] = conflict
        return conflicts

    def _write(
        self,
        offsets: Mapping[TopicPartition, int],
        expected: Mapping[TopicPartition, CommittedOffset | None],
        *,
        backward: bool,
        guard: Guard | None,
    ) -> None:
        for offset in offsets.values():
            check_offset(offset)
        nodes = {at: _replaceable(node) for at, node in self._nodes(offsets).items()}
        for at, offset in offsets.items():
            self._check(at, offset, nodes[at], expected, backward=backward)
        writes = [_Write(at, encode_offset(offset), nodes[at]) for at, offset in offsets.items()]
        units = [[self._operation(write)] for write in writes]
        self._transact_in_batches(units, guard)

    def _transact_in_batches(self, units: Sequence[Sequence[Operation]], guard: Guard | None) -> None:
        in_batches(
            self._context.session,
            units,
            lambda batch: self._transact([operation for unit in batch for operation in unit], guard),
            overhead=guard.operations() if guard else (),
        )

    def _check(
        self,
        at: TopicPartition,
        offset: int,
        node: Node | None,
        expected: Mapping[TopicPartition, CommittedOffset | None],
        *,
        backward: bool,
    ) -> None:
        found = self._read_as(at, node)
        if at in expected and not _as_expected(expected[at], found):
            raise OffsetConflictError(at, found)
        if isinstance(found, CommittedOffset) and offset < found.offset and not backward:
            raise OffsetWouldGoBackError(self._paths.group, at, found.offset, offset)

    def _operation(self, write: _Write) -> Operation:
        path = self._paths.offset(write.at)
        if write.node is None:
            return Create(path, write.data, acl=self._context.acls.offsets)
        return Set(path, write.data, write.node.version)

    def _transact(self, operations: Sequence[Operation], guard: Guard | None) -> None:
        while True:
            guards = guard.operations() if guard else []
            try:
                self._context.session.transact([*guards, *operations], deadline=self._context.deadline())
                return
            except TransactionFailed as failure:
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
        return OffsetConflictError(at, self.fetch_many([at])[at])


def _at(path: str) -> TopicPartition:
    """Return the partition of an offset node that was named here."""
    topic, name = path.split("/")[-2:]
    return TopicPartition(topic, int(name))


def _as_expected(expected: ReadOffset, found: ReadOffset) -> bool:
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
