"""Claims on partitions: a `Claim` on one, `Claims` on several that are committed and released together.

A commit is a transaction in the session of the claim, or several if it exceeds the server's size limit. Each checks the
registration and the owner nodes, and writes the offsets. If the session has expired or a claim is lost, it fails and
changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset
from ..exceptions import NotClaimedError, ZkgroupsException
from .offsets import Offsets
from .ownership.claims import release_partitions
from .ownership.commits import fenced_check, fenced_commit
from .ownership.ownership import OwnerNode, Ownership


class Claim:
    """One partition, owned by an instance until `release()` or the end of the `with` block.

    >>> with instance.claim(TopicPartition("orders", 0)) as claim:  # doctest: +SKIP
    ...     claim.commit(100)

    A claim is lost if the session expires, or if an administrator takes it away. Then `held` is False, and `commit`
    raises `SessionLostError` or `NotClaimedError`, and changes nothing. Work on the partition only while it is `held`.
    """

    def __init__(self, ownership: Ownership, node: OwnerNode) -> None:
        self._ownership = ownership
        self._node = node

    @property
    def at(self) -> TopicPartition:
        """The partition."""
        return self._node.at

    @property
    def session_id(self) -> int:
        """The id of the session that the owner node belongs to."""
        return self._node.session_id

    @property
    def held(self) -> bool:
        """True while the claim is known to be held. Does not contact the server; see `verify`."""
        return self._ownership.holds(self._node)

    def verify(self) -> bool:
        """Read the owner node, and return whether it carries the id and the session of this instance."""
        return self._ownership.verify([self._node]) == [self._node]

    def fetch(self) -> CommittedOffset | None:
        """Read the committed offset of the partition. None if there is none.

        Raise `MalformedNodeError` or `NoPermissionError` if it is unreadable.
        """
        return Offsets(self._ownership.paths, self._ownership.context).fetch(self.at)

    def commit(self, offset: int, *, backward: bool = False) -> None:
        """Commit `offset`, the next message to read.

        If it is lower than the committed offset, raise `OffsetWouldGoBackError`, unless `backward` is true.
        """
        fenced_commit(self._ownership, {self._node: offset}, backward=backward)

    def release(self) -> None:
        """Release the partition. Does nothing if the claim is lost."""
        release_partitions(self._ownership, [self._node])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _release_at_exit(self.release, error)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Claim) and other._node is self._node

    def __hash__(self) -> int:
        return hash(self._node)

    def __repr__(self) -> str:
        return f"<Claim of {self.at} by {self._ownership.id!r}, {'held' if self.held else 'not held'}>"


class Claims(Mapping[TopicPartition, Claim]):
    """Claims on several partitions. Made by `instance.claim_many()`.

    It is a mapping: `claims[at]` is the `Claim` on the partition `at`. The end of its `with` block releases all.

    >>> orders = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    >>> with instance.claim_many(orders) as claims:  # doctest: +SKIP
    ...     claims.commit({at: 100 for at in claims})
    """

    def __init__(self, ownership: Ownership, nodes: Sequence[OwnerNode]) -> None:
        self._ownership = ownership
        self._nodes = {node.at: node for node in nodes}

    def __getitem__(self, at: TopicPartition) -> Claim:
        return Claim(self._ownership, self._nodes[at])

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def held(self) -> bool:
        """True while all claims are known to be held. Does not contact the server; see `verify`."""
        return all(map(self._ownership.holds, self._nodes.values()))

    @property
    def certain_until(self) -> float:
        """Until when the session, and with it the claims, certainly live if no server answers from now on.

        It is on the clock of `zkgroups.deadline.uptime()`, in seconds, and moves on while servers answer.
        """
        session_ids = {node.session_id for node in self._nodes.values()}
        return min(map(self._ownership.session.certain_until, session_ids), default=-math.inf)

    def verify(self) -> list[TopicPartition]:
        """Read the owner nodes, and return the partitions that the instance still owns."""
        return [node.at for node in self._ownership.verify(list(self._nodes.values()))]

    def check(self) -> None:
        """Raise an error unless the instance owns all of these partitions now, as a commit would. Writes nothing.

        Unlike `verify`, it asks the leader, so the answer also proves the session. Use it right before you commit the
        offsets elsewhere.
        """
        fenced_check(self._ownership, list(self._nodes.values()))

    def commit(
        self, offsets: Mapping[TopicPartition, int], *, backward: bool | Mapping[TopicPartition, int] = False
    ) -> None:
        """Commit the next message to read of any of these partitions.

        All of them are committed in one transaction, or several if it would exceed the size that the server accepts.
        With `backward=True`, offsets may go back. With a mapping, an offset may go back only if the committed offset is
        the one in the mapping. Otherwise like `Claim.commit`.
        """
        unknown = [at for at in offsets if at not in self._nodes]
        if unknown:
            raise NotClaimedError(unknown[0])
        fenced_commit(self._ownership, {self._nodes[at]: offset for at, offset in offsets.items()}, backward=backward)

    def release(self) -> None:
        """Release all of these partitions."""
        release_partitions(self._ownership, list(self._nodes.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _release_at_exit(self.release, error)

    def __repr__(self) -> str:
        return f"<Claims of {len(self)} partitions by {self._ownership.id!r}>"


def _release_at_exit(release: Callable[[], None], error: BaseException | None) -> None:
    """Release at the end of a `with` block without hiding the error that ended it."""
    try:
        release()
    except ZkgroupsException as failure:
        if error is None:
            raise
        error.add_note(f"releasing failed too: {failure}")
