"""The instance of a `Member`, with operations that only a member needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import Owner, UnreadableNode
from ..exceptions import NoPermissionError, NotClaimedError, NotRegisteredError
from .claim import Claims
from .instance import Instance
from .ownership.instance_ids_in_use import free_id
from .ownership.owner_node import locked
from .ownership.resume_claims import find_owners, resume_claims

_DIGITS: Final = 10
"""The most digits of the number of a stream. Other clients can write to an owner node, and Python refuses thousands."""


class MemberInstance(Instance):
    """An instance that shares partitions with other members. For use inside zkgroups only."""

    @property
    def session_alive(self) -> bool:
        """True while the session of the registration is certain to live, and so are the claims."""
        registration = self._ownership.fence.current
        return registration is not None and self._ownership.session.alive(registration.session_id)

    def check_registered(self) -> bool:
        """Read the registration, and return whether it exists. If it was deleted, it can be recreated."""
        fence = self._ownership.fence
        try:
            registration = fence.require()
        except NotRegisteredError:
            return False
        found = fence.read(registration)
        if found.version < 0:
            fence.adopt(found, known=registration)
        return found.version >= 0

    def resume(self) -> bool:
        """Take over the registration of this id in this session, with its claims. Return False if there is none."""
        return resume_claims(self._ownership)

    def free_id(self) -> None:
        """Let other objects of this process use the id."""
        free_id(self._ownership)

    def find_owners(
        self, partitions: Iterable[TopicPartition], ids: Collection[str]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Owner | UnreadableNode]]:
        """Read the owners of these partitions, and of all partitions of this instance.

        Return the partitions of this instance with their streams, and the owners of the others. `ids` are the
        registered ids. Delete what is left of claims with unknown outcomes: other members may want these partitions.
        """
        own, others = find_owners(self._ownership, partitions, ids)
        with suppress(NoPermissionError):
            self._ownership.fence.leftovers.delete_all()
        return {at: self._stream(node.data) for at, node in own.items()}, others

    @property
    def streams(self) -> dict[TopicPartition, int]:
        """The partitions that this instance owns, with their streams. Sends no request."""
        return {at: self._stream(node.data) for at, node in self._ownership.current().items()}

    def _stream(self, data: bytes) -> int:
        number = data.decode().removeprefix(f"{self.id}-")
        return int(number) if number.isdecimal() and len(number) <= _DIGITS else 0

    def forget_offsets(self, partitions: Collection[TopicPartition]) -> None:
        """Make the next commit read the committed offsets of these partitions again."""
        nodes = [node for at, node in self._ownership.current().items() if at in partitions]
        with locked(nodes):
            for node in nodes:
                node.last_commit = None

    def claims_on(self, partitions: Collection[TopicPartition]) -> Claims:
        """Return the claims on these partitions. Raise `NotClaimedError` if one is not held."""
        current = self._ownership.current()
        for at in partitions:
            if at not in current:
                raise NotClaimedError(at)
        return Claims(self._ownership, [current[at] for at in sorted(partitions)])
