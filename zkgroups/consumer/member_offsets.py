"""Where the offsets of a member are committed and read, while its group is in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CurrentOffset
from ..zookeeper.claim import Claims
from ..zookeeper.group import Consumergroup
from .generation import Offsets

Partitions: TypeAlias = frozenset[TopicPartition]
Write: TypeAlias = Callable[[Offsets, Offsets], None]
"""Commits offsets. The second argument has the committed offsets that may go back."""


class MemberOffsets(Protocol):
    """The committed offsets of one member. Called by the member's thread, and writers by all threads that commit."""

    def writer(self, claims: Claims) -> Write:
        """Return a function that commits through these claims, as long as all of them are held."""

    def read(self, partitions: Partitions) -> Mapping[TopicPartition, CurrentOffset]:
        """Read the committed offsets of these partitions, which the member has just claimed, or holds."""

    def look(self) -> None:
        """Do what is due from time to time. Called whenever the member reads its group."""

    def leave(self, partitions: Partitions) -> None:
        """Finish what is under way for these partitions, which are about to be released."""

    def close(self) -> None:
        """Close connections. They are opened again when they are needed."""


class OffsetsInZooKeeper:
    """The offsets in the group's own nodes. Implements `MemberOffsets`."""

    def __init__(self, group: Consumergroup) -> None:
        self._group = group

    def writer(self, claims: Claims) -> Write:
        """Return a function that commits through these claims."""

        def write(offsets: Offsets, back_from: Offsets) -> None:
            claims.commit(offsets, backward=back_from)

        return write

    def read(self, partitions: Partitions) -> Mapping[TopicPartition, CurrentOffset]:
        """Read the committed offsets of these partitions."""
        return self._group.offsets.fetch_many(sorted(partitions))

    def look(self) -> None:
        """Do nothing."""

    def leave(self, partitions: Partitions) -> None:
        """Do nothing: each commit was answered."""

    def close(self) -> None:
        """Do nothing: the registry has the connection."""
