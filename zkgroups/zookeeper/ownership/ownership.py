"""The partitions that one instance owns, and the registration under which it owns them.

`claim_partitions.py` adds owner nodes, `release_partitions.py` deletes them, and `fenced_commit.py` commits offsets
through them. When the check of the registration fails, each of them calls `refresh`, which finds out what the instance
still owns, and tries again.

The fence has one gap: a user or another client deletes an owner node without writing the registration, and a third
client then recreates the node.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from weakref import WeakSet

from kazoo.exceptions import BadVersionError, NoNodeError

from ...core.znodes.paths import GroupPaths
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import ForbiddenNode
from ...exceptions import NotClaimedError, SessionLostError
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import TransactionFailed
from ..session.errors import EXPIRED, translate
from ..session.reentrant_locks import not_held
from ..session.registry_context import RegistryContext
from .owner_node import OwnerNode
from .registration_fence import UNKNOWN, RegistrationFence, RegistrationVersion


class Ownership:
    """The owner nodes of one instance."""

    def __init__(self, paths: GroupPaths, context: RegistryContext, id: str) -> None:
        self.id = id
        self.paths = paths
        self.context = context
        self.session = context.session
        self.fence = RegistrationFence(paths, context, id)
        self._registration_lock = threading.RLock()
        self._lock = threading.RLock()  # guards the field below, and is never held during a call
        self._nodes: dict[TopicPartition, OwnerNode] = {}
        _ALL.add(self)

    def after_fork(self) -> None:
        """Replace the locks in a fork: the threads that hold them may not exist there."""
        self._lock, self._registration_lock = threading.RLock(), threading.RLock()
        self.fence.after_fork()

    def registration_lock(self) -> Any:
        """Return the lock that is held while claiming or deregistering, so that no claim outlives the registration."""
        return not_held(self._registration_lock, f"instance {self.id!r}")

    # The owner nodes

    def nodes(self) -> dict[TopicPartition, OwnerNode]:
        """All known owner nodes, including those of an expired session."""
        with self._lock:
            return dict(self._nodes)

    def current(self) -> dict[TopicPartition, OwnerNode]:
        """The owner nodes of the current session."""
        with self._lock:
            return {at: node for at, node in self._nodes.items() if self.is_current(node)}

    def known_at(self, partitions: Iterable[TopicPartition]) -> list[OwnerNode]:
        """The known owner nodes for these partitions, including those of an expired session."""
        with self._lock:
            return [node for at in partitions if (node := self._nodes.get(at))]

    def current_at(self, partitions: Iterable[TopicPartition]) -> list[OwnerNode]:
        """The owner nodes of the current session for these partitions."""
        with self._lock:
            return [node for at in partitions if (node := self._nodes.get(at)) and self.is_current(node)]

    def current_among(self, nodes: Iterable[OwnerNode]) -> list[OwnerNode]:
        """Return those of these nodes that are known and belong to the current session."""
        with self._lock:
            return [node for node in nodes if self.is_current(node)]

    def is_current(self, node: OwnerNode) -> bool:
        """Return whether the node is known, and its session is the current one and that of the registration."""
        registration = self.fence.current
        return (
            registration is not None
            and node.session_id == registration.session_id == self.session.id
            and self._nodes.get(node.at) is node
        )

    def holds(self, node: OwnerNode) -> bool:
        """Return whether the instance certainly owns the partition. Sends no request."""
        with self._lock:
            current = self.is_current(node) and not node.uncertain
        return current and self.session.alive(node.session_id)

    def add(self, nodes: Sequence[OwnerNode], registration: RegistrationVersion) -> None:
        """Add owner nodes that were created under this version of the registration.

        If another thread has found another version since, an administrator may have deleted them before that. So their
        next check fails, and they are read again.
        """
        with self._lock:
            if self.fence.current is not registration:
                for node in nodes:
                    node.version = UNKNOWN
            self._nodes.update((node.at, node) for node in nodes)

    def forget(self, nodes: Iterable[OwnerNode]) -> None:
        """Remove owner nodes that were deleted, unless the partition has been claimed again."""
        with self._lock:
            for node in nodes:
                if self._nodes.get(node.at) is node:
                    del self._nodes[node.at]

    def forget_other_sessions(self, session_id: int) -> None:
        """Remove the owner nodes of expired sessions, and check which of the others still exist."""
        with self._lock:
            self._nodes = {at: node for at, node in self._nodes.items() if node.session_id == session_id}
            nodes = list(self._nodes.values())
        self.forget_lost(nodes)

    def replace(self, known: dict[TopicPartition, OwnerNode], found: dict[TopicPartition, OwnerNode]) -> None:
        """Replace the known owner nodes by the found ones, unless they have changed since."""
        with self._lock:
            for at in {**known, **found}:
                if self._nodes.get(at) is not known.get(at):
                    continue
                if at in found:
                    self._nodes[at] = found[at]
                else:
                    self._nodes.pop(at, None)

    # Check with the server

    def verify(self, nodes: Sequence[OwnerNode]) -> list[OwnerNode]:
        """Read these owner nodes. Leave out nodes without this id and this session (rule 1)."""
        if any(node.uncertain for node in nodes):
            self.session.catch_up(deadline=self.context.deadline())
        return self._read(nodes)[0]

    def _read(self, nodes: Sequence[OwnerNode]) -> tuple[list[OwnerNode], set[OwnerNode]]:
        """Return the nodes that the instance still owns, and the forbidden nodes."""
        paths = [self.paths.owner(node.at) for node in nodes]
        own: list[OwnerNode] = []
        forbidden: set[OwnerNode] = set()
        for node, found in zip(nodes, bulk_read.nodes(self.context, paths), strict=True):
            if isinstance(found, ForbiddenNode):
                forbidden.add(node)
            elif found is not None and found.session == node.session_id and found.data == node.data:
                node.version = found.version
                own.append(node)
            elif found is not None:
                self.is_overwritten(found, node)
        with self._lock:
            return self.current_among(own), set(self.current_among(forbidden))

    def is_overwritten(self, found: Node, known: OwnerNode | None) -> bool:
        """Return whether another client has overwritten an owner node. Then it is not a claim, and can be deleted.

        If another instance of this session has recreated the node instead, its version is not higher.
        """
        leftovers = self.fence.leftovers
        if known is not None and found.session == known.session_id and found.version > known.version != UNKNOWN:
            leftovers.remember_overwritten(found.path, known.version, known.session_id)
        return leftovers.is_overwritten(found)

    def forget_lost(self, nodes: Collection[OwnerNode]) -> set[OwnerNode]:
        """Read these nodes and forget those of other owners. Return the forbidden ones, which can only be released."""
        own, forbidden = self._read(list(nodes))
        for node in forbidden:
            node.uncertain = True
        self.forget(set(nodes) - set(own) - forbidden)
        return forbidden

    def forget_uncertain(self, nodes: Collection[OwnerNode]) -> set[OwnerNode]:
        """Like `forget_lost`, for nodes that may have been deleted by a request whose reply was lost."""
        if nodes:
            self.session.catch_up(deadline=self.context.deadline())
        return self.forget_lost(nodes)

    def registration_of(self, nodes: Iterable[OwnerNode]) -> RegistrationVersion:
        """Return the registration under which the instance owns all these nodes. Raise an error if it does not."""
        for node in nodes:
            if self.session.id != node.session_id:
                raise SessionLostError(f"the session of the claim on {node.at} {EXPIRED}")
        registration = self.fence.require()
        with self._lock:
            lost = [node.at for node in nodes if node.uncertain or not self.is_current(node)]
        if lost:
            raise NotClaimedError(lost[0], also=lost[1:])
        return registration

    def refresh(self, registration: RegistrationVersion, failure: TransactionFailed) -> set[OwnerNode]:
        """After a failed check, read the registration and the owner nodes. Return the forbidden owner nodes.

        The registration is read first. An administrator who takes a claim away rewrites the registration in the same
        transaction. So the owner nodes found here belong to the instance as long as the registration has that version.
        """
        if not isinstance(failure.error, NoNodeError | BadVersionError):
            raise translate(failure.error, failure.operation.path) from failure.error
        found = self.fence.read(registration)
        read: set[OwnerNode] = set()
        forbidden: set[OwnerNode] = set()
        while True:
            with self._lock:  # another thread may have added owner nodes since
                unread = set(self._nodes.values()) - read
                if not unread:
                    self.fence.adopt(found, known=registration)
                    return forbidden
            forbidden |= self.forget_lost(unread)
            read |= unread


_ALL: WeakSet[Ownership] = WeakSet()


def _after_fork() -> None:
    for ownership in list(_ALL):
        ownership.after_fork()


os.register_at_fork(after_in_child=_after_fork)
