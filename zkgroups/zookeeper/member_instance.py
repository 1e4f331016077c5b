"""The instance of a `Member`, with operations that only a member needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from ..core.znodes.commit_details import CommitDetails
from ..core.znodes.registration_codec import encode_registration
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, Owner, Registration, UnreadableNode
from ..exceptions import NoPermissionError, NotClaimedError, NotRegisteredError
from .claim import Claims
from .instance import Instance
from .offsets import Offsets
from .ownership.fenced_commit import fenced_commit
from .ownership.instance_ids_in_use import free_id
from .ownership.owner_node import OwnerNode, locked
from .ownership.register_together import register_together
from .ownership.resume_claims import find_owners, resume_claims
from .requests.transaction import SessionFence
from .session.registry_context import RegistryContext

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
    def streams(self) -> dict[TopicPartition, int] | None:
        """The partitions that this instance owns, with their streams. Sends no request.

        None after a claim or a release with an unknown outcome: then only `find_owners` can tell.
        """
        current = self._ownership.current()
        if self._ownership.fence.leftovers.any or any(node.uncertain for node in current.values()):
            return None
        return {at: self._stream(node.data) for at, node in current.items()}

    def _stream(self, data: bytes) -> int:
        number = data.decode().removeprefix(f"{self.id}-")
        return int(number) if number.isdecimal() and len(number) <= _DIGITS else 0

    def forget_lost_claims(self) -> None:
        """Read the owner nodes, and forget the claims whose nodes other clients have deleted or replaced."""
        self._ownership.forget_lost(list(self._ownership.current().values()))

    def forget_offsets(self, partitions: Collection[TopicPartition]) -> None:
        """Make the next commit read the committed offsets of these partitions again."""
        nodes = [node for at, node in self._ownership.current().items() if at in partitions]
        with locked(nodes):
            for node in nodes:
                node.last_commit = None

    def commit_for_client(
        self, offsets: Mapping[TopicPartition, int], details: Mapping[TopicPartition, CommitDetails]
    ) -> None:
        """Commit offsets for a client that chooses its offsets freely: it may seek back, and commit there.

        An offset goes back only if this client knows it: it has committed that offset itself, or it was committed
        before the claim. An offset that another client has committed since never goes back. Raise `NotClaimedError` if
        a partition is not held.
        """
        current = self._ownership.current()
        if missing := [at for at in offsets if at not in current]:
            raise NotClaimedError(missing[0], also=missing[1:])
        nodes = {current[at]: offset for at, offset in offsets.items()}
        before = {node: node.last_commit for node in nodes}
        try:
            fenced_commit(self._ownership, nodes, backward=self._known_offsets(nodes), details=details)
        except BaseException:
            for node, last in before.items():
                if node.last_commit is not last:  # it was only read, perhaps after another client's commit
                    node.last_commit = None
            raise

    def _known_offsets(self, nodes: Collection[OwnerNode]) -> dict[TopicPartition, int]:
        last = {node.at: node.last_commit for node in nodes}
        known = {at: each.offset for at, each in last.items() if each is not None and each.offset is not None}
        before = {node.at: node.claimed_zxid for node in nodes if node.last_commit is None}
        if before:
            for at, found in Offsets(self._paths, self._context).fetch_many(before).items():
                if isinstance(found, CommittedOffset) and found.zxid <= before[at]:
                    known[at] = found.offset
        return known

    def claims_on(self, partitions: Collection[TopicPartition]) -> Claims:
        """Return the claims on these partitions. Raise `NotClaimedError` if one is not held."""
        current = self._ownership.current()
        for at in partitions:
            if at not in current or current[at].uncertain:
                raise NotClaimedError(at)
        return Claims(self._ownership, [current[at] for at in sorted(partitions)])


def register_all(
    context: RegistryContext, registrations: Mapping[MemberInstance, Registration], fence: SessionFence | None = None
) -> None:
    """Register several instances of one group in one transaction. See `register_together`."""
    contents = {each._ownership: encode_registration(found) for each, found in registrations.items()}
    register_together(context, contents, fence)
