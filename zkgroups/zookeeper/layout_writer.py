"""Write offsets back to the nodes of another layout: forward only, and only to nodes that exist.

zkgroups never creates such a node, because it does not know what else belongs to it. Each write replaces the version
that was read, so it never overwrites a newer commit.
"""

from __future__ import annotations

from collections.abc import Mapping

from kazoo.exceptions import BadVersionError, NoNodeError

from ..core.layouts.layout import LayoutOffset, OneOffsetPerNode
from ..core.znodes.decoding import DecodingError
from ..core.znodes.paths import GroupPaths
from ..core.znodes.topic_partition import TopicPartition, known_partition
from ..core.znodes.values import ForbiddenNode, MalformedNode
from ..exceptions import (
    ConflictError,
    MalformedNodeError,
    NoPermissionError,
    NotFoundError,
    RefusedError,
    ZkgroupsException,
)
from .admin.transaction_guards import NobodyRegistered
from .reading import layout_reader
from .requests.transaction import Set, TransactionFailed
from .requests.transaction_batches import Batch, in_batches
from .session.errors import translate
from .session.registry_context import RegistryContext

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
        [(_name, found)] = layout_reader.read_offsets(self._context, self._layout, [self._group])
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
