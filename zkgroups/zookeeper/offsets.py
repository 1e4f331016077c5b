"""The committed offsets of one group: read them, and change them without a claim.

A member commits with `claim.commit`, which is fenced. The writes here are not. They are for administrators, and for
consumers that keep offsets without registering. Each write replaces the version of the node that was read, so it never
overwrites a newer commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ..core.kafka_values import OffsetRange
from ..core.znodes.paths import GroupPaths
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, CurrentOffset, ForbiddenNode, MalformedNode, UnreadableNode
from ..exceptions import MalformedNodeError, NoPermissionError, OffsetOutOfRangeError, ZkgroupsException
from .admin.transaction_guards import NobodyRegistered, RewriteRegistrations
from .offset_writer import OffsetWriter
from .reading import group_reader
from .session.registry_context import RegistryContext


class _Unspecified:
    """The type of `_UNSPECIFIED`."""


_UNSPECIFIED: Final = _Unspecified()
"""Any offset is expected. None means that no offset is expected."""


class Offsets:
    """The offsets of a group: `group.offsets`. Iterating reads all of them in bulk, unreadable nodes included."""

    def __init__(self, paths: GroupPaths, context: RegistryContext) -> None:
        self._paths = paths
        self._context = context
        self._writer = OffsetWriter(paths, context)

    # Reading

    def fetch(self, at: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset of one partition. None if there is none."""
        found = self.fetch_many([at])[at]
        if isinstance(found, ForbiddenNode):
            raise NoPermissionError(found.path)
        if isinstance(found, MalformedNode):
            raise MalformedNodeError(found)
        return found

    def fetch_many(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CurrentOffset]:
        """Return the committed offset of each partition, None if there is none, or the unreadable node."""
        return {at: self._writer.value(at, node) for at, node in self._writer.read(partitions).items()}

    def fetch_all(self) -> Iterator[CommittedOffset | UnreadableNode]:
        """Yield every offset of the group, sorted by topic and partition, in constant memory."""
        return group_reader.every_offset(self._context, [self._paths.group])

    __iter__ = fetch_all

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
        self._writer.write(offsets, expected or {}, backward=backward, guard=None)

    def reset(self, offsets: Mapping[TopicPartition, int], *, force: bool = False) -> None:
        """Set offsets, forward or backward. Raise `GroupInUseError` if an instance is registered, unless `force`.

        A registered member would overwrite the offsets with its next commit.
        """
        guard = None if force else NobodyRegistered(self._paths, self._context)
        self._writer.write(offsets, {}, backward=True, guard=guard)

    def delete(self, partitions: Iterable[TopicPartition], *, force: bool = False) -> None:
        """Delete offsets, so that consumers start where their own settings say. Refused like `reset`.

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
        """Set offsets, forward or backward, or delete them where the new offset is None.

        Each partition must still have its `expected` offset or malformed node. Partitions that do not are left
        unchanged, and returned with their errors. Refused like `reset`, and with `force` like `delete`: such an error
        is raised if nothing was written yet. Otherwise it is returned for each partition that was left unchanged.
        """
        return self._writer.replace(offsets, expected, force=force)
