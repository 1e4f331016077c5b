"""The partitions that one instance owns, and the registration under which it owns them.

`claims.py` adds and deletes owner nodes, and `commits.py` commits offsets through them. When the check of the
registration fails, each of them calls `refresh`, which finds out what the instance still owns, and tries again.

The fence has one gap: a user or another client deletes an owner node without writing the registration, and a third
client then recreates the node.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from kazoo.exceptions import BadVersionError, NoAuthError, NodeExistsError, NoNodeError

from ...core.znodes.paths import GroupPaths
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import ForbiddenNode
from ...exceptions import AlreadyRegisteredError, ConflictError, NotClaimedError, OutcomeUnknownError, SessionLostError
from ..admin.migration_marks import refuse_marked, unmarked
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.run_transaction import Batch, in_batches
from ..requests.transaction import Check, Create, Operation, SessionFence, TransactionFailed
from ..session.errors import EXPIRED, not_held, translate
from ..session.session import RegistryContext, Session
from .registration import UNKNOWN, RegistrationFence, RegistrationVersion

# The owner nodes that an instance has created, each with the state that its claim and its commits need.


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The offset node of a partition when it was last read or written through a claim."""

    version: int | None
    """The version to write over. None if the node does not exist."""
    offset: int | None
    """The committed offset. None if there is none, or if it cannot be read."""
    registration_version: int
    """The version of the registration at that time."""
    czxid: int | None = None
    """The zxid that created the node, or None if unknown: a recreated node may have the same version."""
    replaced_version: int | None = None
    """The version of an ephemeral offset node of another client, which the next commit replaces."""

    def is_unchanged_since(self, known: LastCommit) -> bool:
        """Return whether the node is the known one, and was not written since. A zxid may be unknown."""
        known = replace(known, registration_version=self.registration_version)
        return self == (known if known.czxid is not None else replace(known, czxid=self.czxid))


class OwnerNode:
    """An owner node of this session: the claim on one partition."""

    def __init__(self, at: TopicPartition, session_id: int, data: bytes, *, version: int = 0) -> None:
        self.at = at
        self.session_id = session_id
        self.data = data
        self.version = version
        self.claimed_zxid = 0
        """The last transaction that the client had seen when the claim was confirmed; 0 for a resumed claim."""
        self.last_commit: LastCommit | None = None
        self.details_version: int | None = None
        """The version of the node with the details of the last commit: -1 if it does not exist, None if unknown."""
        self.uncertain = False
        """True during a release, and after a release whose outcome is unknown: then it can only be released again."""
        self.resumed = False
        """True if an earlier process of this session created it, until `claim` returns it."""
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def lock(self) -> Any:
        """Return the lock to hold during commits and releases. Raise `ReentrantCallError` if this thread holds it."""
        if self._pid != os.getpid():  # in a fork, the thread that holds the lock may not exist
            self._lock, self._pid = threading.RLock(), os.getpid()
        return not_held(self._lock, f"the claim on {self.at}")


def locked(nodes: Collection[OwnerNode]) -> ExitStack:
    """Lock these owner nodes, always in the same order: otherwise two batches could wait for each other."""
    locks = [node.lock() for node in sorted(set(nodes), key=lambda node: node.at)]
    with ExitStack() as stack:  # Ctrl-C may end the wait for a lock: then the others must not stay locked
        for lock in locks:
            stack.enter_context(lock)
        return stack.pop_all()


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


# The instance ids that objects of this process use.
#
# A session that is resumed by another process brings its registrations along, and an instance with the same id takes
# its registration over. So two instances of one session must never use one id.


_LOCK = threading.RLock()
_USERS: WeakKeyDictionary[Session, WeakValueDictionary[str, Ownership]] = WeakKeyDictionary()
"""By session and by the path of the registration."""


def is_in_use(session: Session, path: str) -> bool:
    """Return whether an object of this process uses the registration at this path, in this session."""
    with _LOCK:
        return path in _USERS.get(session, {})


def is_used_by_another(ownership: Ownership) -> bool:
    """Return whether another object of this process uses the id, in this session. Then the registration is its own."""
    with _LOCK:
        users = _USERS.get(ownership.session, WeakValueDictionary())
        user = users.get(ownership.fence.path, ownership)
        return user is not ownership and not _has_expired(user)


def take_id(ownership: Ownership, *, force: bool = False) -> bool:
    """Use the id in this session. Return False if another object uses it; with `force`, replace that one."""
    path = ownership.fence.path
    with _LOCK:
        users = _USERS.setdefault(ownership.session, WeakValueDictionary())
        if force or _has_expired(users.get(path, ownership)):
            users[path] = ownership
        return users.setdefault(path, ownership) is ownership


def _has_expired(user: Ownership) -> bool:
    """Return whether the registration of an object is known to have expired: a later one is not its own."""
    registration = user.fence.current
    return registration is not None and user.session.id not in (None, registration.session_id)


def free_id(ownership: Ownership) -> None:
    """Let other objects of this process use the id."""
    with _LOCK:
        users = _USERS.get(ownership.session, WeakValueDictionary())
        if users.get(ownership.fence.path) is ownership:
            del users[ownership.fence.path]


def _forget_ids_after_fork() -> None:
    """Replace the lock in a fork: the thread that holds it may not exist there."""
    global _LOCK
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_forget_ids_after_fork)


# Register several instances of one group in one transaction, so that the other members rebalance once.


def register_together(
    context: RegistryContext, contents: Mapping[Ownership, bytes], fence: SessionFence | None = None
) -> None:
    """Create the registrations of these instances with these contents. None of them may be registered.

    After an error, call it again with the instances that are still not registered. It finds registrations that an
    earlier call created with an unknown outcome. Raise `GroupMigratedError` if a migration has marked the group,
    `ConflictError` if a check of the fence fails, and `SessionLostError` if its session has expired.
    """
    if contents:
        _Registering(context, dict(contents), fence).carry_out()


class _Registering:
    def __init__(self, context: RegistryContext, left: dict[Ownership, bytes], fence: SessionFence | None) -> None:
        self._context = context
        self._left = left
        first = next(iter(left))
        self._paths = first.paths
        self._guard = unmarked(first.paths, context)
        if fence is None:
            self._session_id = context.session.require_id(context.deadline())
        else:
            self._session_id = fence.session_id
            self._guard = [*fence.checks, *self._guard]

    def carry_out(self) -> None:
        while self._left:
            units = [[self._create(ownership, data)] for ownership, data in self._left.items()]
            try:
                in_batches(self._context.session, units, self._register, overhead=self._guard)
            except TransactionFailed as failure:
                self._handle_failure(failure)
        # If a reply was lost, only reads have shown that the nodes exist, and reads do not prove a session.
        self._context.session.prove(self._session_id, deadline=self._context.deadline())

    def _create(self, ownership: Ownership, data: bytes) -> Create:
        return Create(ownership.fence.path, data, True, self._context.acls.ephemerals)

    def _register(self, batch: Batch[Create]) -> None:
        registered = list(self._left)[: len(batch)]
        operations: list[Operation] = [*self._guard, *(create for [create] in batch)]
        session_id, deadline = self._session_id, self._context.deadline()
        try:
            self._context.session.transact(operations, session_id=session_id, deadline=deadline)
        except OutcomeUnknownError:
            for ownership in registered:
                ownership.fence.leftovers.remember({ownership.fence.path: self._left[ownership]}, session_id)
            raise
        for ownership in registered:
            self._adopt(ownership, version=0)

    def _adopt(self, ownership: Ownership, *, version: int) -> None:
        """Use the registration. First check which claims still exist: without a registration nothing fenced them."""
        unknown = RegistrationVersion(self._session_id, UNKNOWN)
        ownership.fence.begin(unknown)
        take_id(ownership, force=True)
        if ownership.nodes():
            ownership.forget_other_sessions(self._session_id)
        ownership.fence.adopt(RegistrationVersion(self._session_id, version), known=unknown)
        del self._left[ownership]

    def _handle_failure(self, failure: TransactionFailed) -> None:
        """Remove the cause of the failure so that the caller can retry, or raise it."""
        if isinstance(failure.operation, Check):
            raise ConflictError(f"another client has deleted {failure.operation.path}") from failure.error
        if isinstance(failure.error, NoNodeError):
            directories, deadline = self._context.acls.directories, self._context.deadline()
            self._context.session.ensure_path(
                self._paths.ids, acl=directories, session_id=self._session_id, deadline=deadline
            )
        elif failure.operation in self._guard and isinstance(failure.error, NoAuthError | NodeExistsError):
            refuse_marked(self._paths, self._context)
            if isinstance(failure.error, NoAuthError):
                raise translate(failure.error, failure.operation.path) from failure.error
        elif isinstance(failure.error, NodeExistsError):
            self._adopt_existing()
        else:
            raise translate(failure.error, failure.operation.path) from failure.error

    def _adopt_existing(self) -> None:
        """Adopt the registrations that an earlier attempt has created. Raise if another session has the id."""
        wanted = list(self._left.items())
        nodes = bulk_read.nodes(self._context, [ownership.fence.path for ownership, _data in wanted])
        for (ownership, data), node in zip(wanted, nodes, strict=True):
            if not isinstance(node, Node):
                continue
            if node.session != self._session_id:
                raise AlreadyRegisteredError(self._paths.group, ownership.id, node.session)
            self._adopt(ownership, version=node.version)
            if node.data != data:
                ownership.fence.rewrite(data, ownership.fence.require())
