"""The committed offsets of one group: read them, and change them without a claim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ..core.kafka_values import OffsetRange
from ..core.layouts.layout import LayoutOffset, OneOffsetPerNode
from ..core.znodes.codecs import DecodingError, check_offset, encode_offset
from ..core.znodes.own_nodes import CommitDetails, encode_details
from ..core.znodes.paths import GroupPaths, parent
from ..core.znodes.topic_partition import TopicPartition, check_at, known_partition
from ..core.znodes.values import CommittedOffset, CurrentOffset, ForbiddenNode, MalformedNode, UnreadableNode
from ..exceptions import (
    ConflictError,
    MalformedNodeError,
    NoPermissionError,
    NotFoundError,
    OffsetConflictError,
    OffsetOutOfRangeError,
    OffsetWouldGoBackError,
    RefusedError,
    UnavailableError,
    ZkgroupsException,
)
from .admin.transaction_guards import Guard, NobodyRegistered, RewriteRegistrations
from .reading import group_reader, layouts
from .requests import bulk_read
from .requests.node import Node
from .requests.run_transaction import Batch, ensure_paths, in_batches
from .requests.transaction import Create, Delete, Operation, SessionFence, Set, TransactionFailed
from .session.errors import translate
from .session.session import RegistryContext

# Write the offsets of one group without a claim: each write replaces the version of the node that was read.
#
# A guard (`admin/transaction_guards.py`) protects the members of the group in the same transaction.


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


# The committed offsets of one group: read them, and change them without a claim.
#
# A member commits with `claim.commit`, which is fenced. The writes here are not. They are for administrators, and for
# consumers that keep offsets without registering. Each write replaces the version of the node that was read, so it
# never overwrites a newer commit.


class _Unspecified:
    """The type of `_UNSPECIFIED`."""

    def __repr__(self) -> str:
        return "any"


_UNSPECIFIED: Final = _Unspecified()
"""Any offset is expected. None means that no offset is expected."""


class Offsets:
    """The committed offsets of a group: `group.offsets`.

    >>> for found in group.offsets:  # doctest: +SKIP
    ...     if isinstance(found, CommittedOffset):  # otherwise a MalformedNode or a ForbiddenNode, with a reason
    ...         print(found.at, found.offset, found.committed_at)

    A member commits with its `Generation` or `Claim`, which is fenced. The writes here are not. Choose one of them:

    - `set`, `set_many`: for a consumer without a registration. Offsets go back only with `backward`.
    - `reset`: for a stopped group, to any offset. Refused while an instance is registered.
    - `replace`: for a stopped group, but only where the offset has not changed since you have read it.
    - `delete`: for a stopped group; its consumers then start where their own settings say.

    Each write replaces the version that was read, so it never overwrites a newer commit: it raises
    `OffsetConflictError` instead. An offset is the next message to read. Nothing here asks the brokers; see `validate`.
    """

    def __init__(self, paths: GroupPaths, context: RegistryContext) -> None:
        self._paths = paths
        self._context = context
        self._writer = OffsetWriter(paths, context)

    def fetch(self, at: TopicPartition) -> CommittedOffset | None:
        """Read the committed offset of one partition. None if there is none.

        Raise `MalformedNodeError` or `NoPermissionError` if it is unreadable.
        """
        found = self.fetch_many([at])[at]
        if isinstance(found, ForbiddenNode):
            raise NoPermissionError(found.path)
        if isinstance(found, MalformedNode):
            raise MalformedNodeError(found)
        return found

    def fetch_many(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CurrentOffset]:
        """Read the committed offsets of these partitions in bulk.

        The result has for each partition a `CommittedOffset`, None if there is none, or the unreadable node: a
        `MalformedNode` or a `ForbiddenNode`.
        """
        return {at: self._writer.value(at, node) for at, node in self._writer.read(partitions).items()}

    def fetch_all(self) -> Iterator[CommittedOffset | UnreadableNode]:
        """Yield every offset of the group, sorted by topic and partition, and each unreadable node, in constant memory.

        Iterating over `group.offsets` does the same.
        """
        return group_reader.every_offset(self._context, [self._paths.group])

    __iter__ = fetch_all

    def validate(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, Exception]:
        """Compare the committed offsets with these ranges, and return an error for each that is outside or unreadable.

        Partitions whose offset is in range, and those without an offset, are left out. `zkgroups.kafka.Brokers.ranges`
        returns the ranges of the logs.
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

    def set(
        self,
        at: TopicPartition,
        offset: int,
        *,
        expected: CommittedOffset | _Unspecified | None = _UNSPECIFIED,
        backward: bool = False,
    ) -> None:
        """Set the offset of one partition, whether instances are registered or not.

        If it is lower than the committed offset, raise `OffsetWouldGoBackError`, unless `backward` is true. With
        `expected`, the `CommittedOffset` that you have read, or None if there was none, raise `OffsetConflictError` if
        another client has changed it since. By default, any offset is expected.
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
        """Set several offsets, in one transaction, or several if it would exceed the size that the server accepts.

        All offsets are checked before the first transaction. Each transaction writes all of its offsets or none.
        `expected` may leave out partitions. Otherwise like `set`.
        """
        self._writer.write(offsets, expected or {}, backward=backward, guard=None)

    def reset(self, offsets: Mapping[TopicPartition, int], *, force: bool = False) -> None:
        """Set offsets of a stopped group, forward or backward. Raise `GroupInUseError` if an instance is registered.

        Such an instance would overwrite the offsets with its next commit. The error has the ids in `instances`. With
        `force`, the offsets are written nevertheless. Other partitions are left unchanged.
        """
        guard = None if force else NobodyRegistered(self._paths, self._context)
        self._writer.write(offsets, {}, backward=True, guard=guard)

    def delete(self, partitions: Iterable[TopicPartition], *, force: bool = False) -> None:
        """Delete offsets, so that consumers start where their own settings say. Refused like `reset`, unless `force`.

        With `force`, all registrations are rewritten, so that zkgroups members read the offsets again: a recreated node
        has the version of the deleted one.
        """
        guard = (RewriteRegistrations if force else NobodyRegistered)(self._paths, self._context)
        self._writer.delete(partitions, guard)

    def replace(
        self,
        offsets: Mapping[TopicPartition, int | None],
        *,
        expected: Mapping[TopicPartition, CurrentOffset],
        force: bool = False,
    ) -> dict[TopicPartition, ZkgroupsException]:
        """Set offsets of a stopped group, forward or backward, or delete them where the new offset is None.

        `expected` has for each partition what was read: the `CommittedOffset`, the `MalformedNode`, or None if it had
        no offset. A partition that has changed since is left unchanged. The result has the error of each partition that
        was left unchanged: it is empty if all were written.

        Raise `GroupInUseError` like `reset` if an instance is registered, unless `force`. If it registers only after
        the first of several transactions, the error is in the result, for each partition that was left unchanged. If
        `force` is given and offsets are deleted, all registrations are rewritten as in `delete`.
        """
        return self._writer.replace(offsets, expected, force=force)


# Write offsets back to the nodes of another layout: forward only, and only to nodes that exist.
#
# zkgroups never creates such a node, because it does not know what else belongs to it. Each write replaces the
# version that was read, so it never overwrites a newer commit.


Errors = dict[TopicPartition, ZkgroupsException | None]
"""For each partition, None if its node now has the offset or a higher one; otherwise why not."""


def advance_offsets(
    context: RegistryContext, layout: OneOffsetPerNode, group: str, offsets: Mapping[TopicPartition, int]
) -> Errors:
    """Write these offsets where the nodes have lower ones. Raise `GroupInUseError` if an instance is registered."""
    return _Advance(context, layout, group).run(offsets)


class _Advance:
    """One call of `advance_offsets`."""

    def __init__(self, context: RegistryContext, layout: OneOffsetPerNode, group: str) -> None:
        self._context = context
        self._layout = layout
        self._group = group
        self._guard = NobodyRegistered(GroupPaths(group), context) if layout.has_registrations else None
        self._errors: Errors = {}
        self._partitions: dict[str, TopicPartition] = {}
        """The partition of each node to write."""

    def run(self, offsets: Mapping[TopicPartition, int]) -> Errors:
        """Read the nodes, and write them in batches."""
        [(_name, found)] = layouts.read_offsets(self._context, self._layout, [self._group])
        nodes = {known_partition(each.topic, each.partition): each for each in found}
        units = []
        for at, offset in offsets.items():
            self._errors[at] = None
            try:
                if (write := self._write(at, nodes.get(at), offset)) is not None:
                    self._partitions[write.path] = at
                    units.append([write])
            except ZkgroupsException as error:
                self._errors[at] = error
        in_batches(self._context.session, units, self._send, overhead=self._guard.operations() if self._guard else ())
        return self._errors

    def _write(self, at: TopicPartition, found: LayoutOffset | None, offset: int) -> Set | None:
        """Return the write of a node; None if it has the offset, or a higher one."""
        if found is None:
            raise NotFoundError(f"group {self._group!r} has no node for {at} in the layout {self._layout.location}")
        if isinstance(found.found, MalformedNode):
            raise MalformedNodeError(found.found)
        if isinstance(found.found, ForbiddenNode) or found.node is None:
            raise NoPermissionError(found.found.path if isinstance(found.found, ForbiddenNode) else str(at))
        if found.found.offset >= offset:
            return None
        try:
            return Set(found.node.path, self._layout.rewritten(found.node.data, offset), found.node.version)
        except DecodingError as reason:
            raise RefusedError(f"{found.node.path} cannot hold offset {offset}: {reason}") from reason

    def _send(self, batch: Batch[Set]) -> None:
        """Write the nodes that have not changed since they were read."""
        left = [write for [write] in batch]
        while left:
            guards = self._guard.operations() if self._guard else []
            try:
                self._context.session.transact([*guards, *left], deadline=self._context.deadline())
                return
            except TransactionFailed as failure:
                if self._guard is not None and failure.index < len(guards):
                    self._guard.handle_failure(failure)
                elif isinstance(failure.error, NoNodeError | BadVersionError):
                    at = self._partitions[failure.operation.path]
                    self._errors[at] = ConflictError(
                        f"{failure.operation.path} was changed by another client meanwhile"
                    )
                    left = [write for write in left if write.path != failure.operation.path]
                else:
                    raise translate(failure.error, failure.operation.path) from failure.error
