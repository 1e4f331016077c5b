"""The committed offsets of one group: read one, some or all, and changed from outside, without a claim.

What is written here is compared and set: over the version that was read, never over something newer. It is not fenced
by a claim, so it is for those who administer a group, and for consumers that keep offsets without registering. A member
commits through its claims (`claim.commit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

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
from .admin.guards import Guard, NobodyRegistered, RewriteRegistrations
from .reading import group_reader
from .requests import bulk_read
from .requests.batching import Batch, in_batches
from .requests.directories import ensure_paths
from .requests.node import Node
from .requests.transaction import Create, Delete, Operation, Set, TransactionFailed
from .session.errors import translate
from .session.registry_context import RegistryContext

Found = CommittedOffset | UnreadableNode | None
"""What is there: an offset, something that is none, or nothing."""


class _Anything:
    """Strictly private: no expectation, which is not the same as expecting nothing."""


ANYTHING: Final = _Anything()


@dataclass(frozen=True, slots=True)
class _Write:
    """One offset to write, over what was found."""

    at: TopicPartition
    data: bytes
    node: Node | None


class Offsets:
    """The offsets of a group, e.g. `group.offsets`. Iterating reads all of them, in bulk, malformed ones included."""

    def __init__(self, paths: GroupPaths, context: RegistryContext) -> None:
        self._paths = paths
        self._context = context

    # Reading

    def fetch(self, at: TopicPartition) -> CommittedOffset | None:
        """The committed offset of one partition, None (and never 0) where there is none."""
        found = self.fetch_many([at])[at]
        if isinstance(found, ForbiddenNode):
            raise NoPermissionError(found.path)
        if isinstance(found, MalformedNode):
            raise MalformedNodeError(found)
        return found

    def fetch_many(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Found]:
        """What is committed for each of the partitions."""
        return {at: self._read_as(at, node) for at, node in self._nodes(partitions).items()}

    def fetch_all(self) -> Iterator[CommittedOffset | UnreadableNode]:
        """Every offset of the group, topic by topic, in the order of the partitions; memory does not grow with them."""
        return group_reader.every_offset(self._context, [self._paths.group])

    __iter__ = fetch_all

    def _nodes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Node | ForbiddenNode | None]:
        wanted = [check_at(at) for at in dict.fromkeys(partitions)]
        return dict(zip(wanted, bulk_read.nodes(self._context, map(self._paths.offset, wanted)), strict=True))

    def _read_as(self, at: TopicPartition, node: Node | ForbiddenNode | None) -> Found:
        return group_reader.offset(self._paths.group, at, node) if isinstance(node, Node) else node

    # Checking

    def validate(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, Exception]:
        """What is wrong with the committed offsets, measured against the offsets that each partition has.

        A partition that is fine, or where nothing was committed, is left out.
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
        expected: CommittedOffset | _Anything | None = ANYTHING,
        backward: bool = False,
    ) -> None:
        """Write the next message to read. Lower than what is committed only with `backward` (rule 5).

        `expected` is the offset that the caller has read, or None: if it is another by now, `OffsetConflictError`.
        """
        expectations = {} if isinstance(expected, _Anything) else {at: expected}
        self.set_many({at: offset}, expected=expectations, backward=backward)

    def set_many(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        expected: Mapping[TopicPartition, CommittedOffset | None] | None = None,
        backward: bool = False,
    ) -> None:
        """Write several offsets, in as few transactions as the server's limit allows; each is all or none.

        All are checked before the first is written.
        """
        self._write(offsets, expected or {}, backward=backward, guard=None)

    def reset(self, offsets: Mapping[TopicPartition, int], *, force: bool = False) -> None:
        """Set offsets, forward or backward, while nobody is registered; `force` does it all the same.

        A registered member has its own idea of where it is, and its next commit would undo this.
        """
        guard = None if force else NobodyRegistered(self._paths, self._context)
        self._write(offsets, {}, backward=True, guard=guard)

    def delete(self, partitions: Iterable[TopicPartition], *, force: bool = False) -> None:
        """Forget offsets, so that a consumer begins where its own policy says; refused as `reset` is.

        With `force`, members of ours are made to look again: a recreated node has the version of the one they knew.
        """
        guard = (RewriteRegistrations if force else NobodyRegistered)(self._paths, self._context)
        nodes = {at: _readable(node) for at, node in self._nodes(partitions).items()}
        units = [[Delete(self._paths.offset(at), node.version)] for at, node in nodes.items() if node is not None]
        self._transact_in_batches(units, guard)

    def replace(
        self,
        offsets: Mapping[TopicPartition, int | None],
        *,
        expected: Mapping[TopicPartition, Found],
        force: bool = False,
    ) -> dict[TopicPartition, ZkgroupsException]:
        """Write offsets, or forget those that are None, over what the caller has read and shown to somebody.

        What is there must be what was `expected`, malformed nodes included. A partition where it is not is left alone
        and returned, and does not stop the others. Forward or backward, refused and forced as `reset` and `delete` are:
        raised where nothing was written yet, and after that returned for each partition that was left alone.
        """
        for offset in offsets.values():
            if offset is not None:
                check_offset(offset)
        nodes = {at: _readable(node) for at, node in self._nodes(offsets).items()}
        left_alone: dict[TopicPartition, ZkgroupsException] = {**self._unexpected(nodes, expected)}
        guard = self._guard(forgets=None in offsets.values(), force=force)
        units = [
            [operation]
            for at, offset in offsets.items()
            if at not in left_alone and (operation := self._replacing(at, offset, nodes[at])) is not None
        ]
        left = [operation for [operation] in units]

        def carry_out(batch: Batch[Operation]) -> None:
            left_alone.update(self._transact_what_fits([operation for [operation] in batch], guard))
            del left[: len(batch)]

        try:
            in_batches(self._context.session, units, carry_out, overhead=guard.operations() if guard else ())
        except UnavailableError:
            raise
        except ZkgroupsException as error:
            if len(left) == len(units):
                raise
            left_alone |= {_at(operation.path): error for operation in left}
        return left_alone

    def _unexpected(
        self, nodes: Mapping[TopicPartition, Node | None], expected: Mapping[TopicPartition, Found]
    ) -> dict[TopicPartition, OffsetConflictError]:
        found = {at: self._read_as(at, node) for at, node in nodes.items()}
        return {at: OffsetConflictError(at, now) for at, now in found.items() if not _as_expected(expected[at], now)}

    def _guard(self, *, forgets: bool, force: bool) -> Guard | None:
        if not force:
            return NobodyRegistered(self._paths, self._context)
        return RewriteRegistrations(self._paths, self._context) if forgets else None

    def _replacing(self, at: TopicPartition, offset: int | None, node: Node | None) -> Operation | None:
        if offset is not None:
            return self._operation(_Write(at, encode_offset(offset), node))
        return None if node is None else Delete(self._paths.offset(at), node.version)

    def _transact_what_fits(
        self, operations: Sequence[Operation], guard: Guard | None
    ) -> dict[TopicPartition, OffsetConflictError]:
        """Carry out those that nobody has come in between of; the others are returned."""
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
        nodes = {at: _readable(node) for at, node in self._nodes(offsets).items()}
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
                        guard.refresh()  # where there was no group before, there was nothing to guard
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
    """The partition of an offset node that we have named ourselves."""
    topic, name = path.split("/")[-2:]
    return TopicPartition(topic, int(name))


def _as_expected(expected: Found, found: Found) -> bool:
    """Whether what is there is what the caller has read: the same node, not written since."""
    if isinstance(expected, UnreadableNode) and not isinstance(expected, ForbiddenNode):
        return expected == found  # these carry no zxid, but their bytes
    if not isinstance(expected, CommittedOffset) or not isinstance(found, CommittedOffset):
        return expected is found
    return (expected.offset, expected.version, expected.zxid) == (found.offset, found.version, found.zxid)


def _readable(found: Node | ForbiddenNode | None) -> Node | None:
    """The node to write over."""
    if isinstance(found, ForbiddenNode):
        raise NoPermissionError(found.path)  # there is no version to write over
    return found
