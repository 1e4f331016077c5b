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

    # Reading

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

    # Checking

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

    # Writing

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
