"""The registration of an instance: create, change and delete its node, and fence everything written under it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kazoo.exceptions import BadVersionError, NoAuthError, NodeExistsError, NoNodeError

from ...core.session_lifetime import session_hex
from ...core.znodes.paths import GroupPaths
from ...core.znodes.values import ForbiddenNode
from ...deadline import Deadline
from ...exceptions import (
    AlreadyRegisteredError,
    NoPermissionError,
    NotRegisteredError,
    OutcomeUnknownError,
    SessionLostError,
    ZkgroupsException,
)
from ..admin.migration_marks import refuse_marked, unmarked
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.run_transaction import first_batch, try_batch
from ..requests.transaction import Check, Create, Delete, Operation, Set, TransactionFailed
from ..session import security
from ..session.errors import EXPIRED, translate
from ..session.security import SessionCredentials
from ..session.session import RegistryContext

# Nodes of this session that are not in use: the reply was lost, they could not be deleted, or were overwritten.
#
# They are ephemeral nodes under the id of an instance. Left alone, they would block a partition or the id for as long
# as the session lives. So the instance remembers their paths and contents, and deletes them with its next request
# that finds one in its way, with `release_all()` or with `deregister()`.
#
# An overwritten node has contents that another client chose, but a higher version than the instance knows. Another
# instance of this session never has such a node at the same path: its own nodes are new, and have version 0.


class LeftoverNodes:
    """The nodes that one instance may have left behind, by path, with the contents it wrote, and in which session.

    `registration` is the path of its registration.
    """

    def __init__(self, context: RegistryContext, registration: str) -> None:
        self._context = context
        self._registration = registration
        self._lock = threading.RLock()  # guards the fields below, and is never held during a call
        self._contents: dict[str, set[tuple[int, bytes]]] = {}
        self._versions: dict[str, tuple[int, int]] = {}  # of overwritten nodes, before that

    def after_fork(self) -> None:
        """Replace the lock in a fork: the thread that holds it may not exist there."""
        self._lock = threading.RLock()

    @property
    def any(self) -> bool:
        """True if there may be leftover nodes."""
        return bool(self._contents or self._versions)

    def remember(self, contents: Mapping[str, bytes], session_id: int) -> None:
        """Add nodes of this session, by path."""
        with self._lock:
            for path, data in contents.items():
                self._contents.setdefault(path, set()).add((session_id, data))

    def remember_overwritten(self, path: str, version: int, session_id: int) -> None:
        """Add a node of this session that another client has overwritten since it had this version."""
        with self._lock:
            self._versions[path] = session_id, version

    def discard(self, paths: Iterable[str]) -> None:
        """Remove nodes that are in use or deleted."""
        with self._lock:
            for path in paths:
                self._contents.pop(path, None)
                self._versions.pop(path, None)

    def discard_contents(self, path: str, data: bytes) -> None:
        """Remove the nodes at this path with these contents, because such a node is in use."""
        with self._lock:
            others = {left for left in self._contents.pop(path, ()) if left[1] != data}
            if others:
                self._contents[path] = others

    def clear(self) -> None:
        """Remove all nodes."""
        with self._lock:
            self._contents.clear()
            self._versions.clear()

    def is_overwritten(self, node: Node) -> bool:
        """Return whether another client has overwritten this node."""
        known = self._versions.get(node.path)
        return known is not None and node.session == known[0] and node.version > known[1]

    def _includes(self, node: Node) -> bool:
        return (node.session, node.data) in self._contents.get(node.path, ()) or self.is_overwritten(node)

    def delete_if_any_is(self, node: Node, session_id: int) -> bool:
        """Delete all leftover nodes of this session if this node is one of them. Return whether it is."""
        if node.session != session_id or not self._includes(node):
            return False
        self._delete_all(session_id)
        return True

    def delete_all(self) -> None:
        """Delete all leftover nodes. Without any of the current session, no request is sent."""
        session_id = self._context.session.id
        if session_id is not None and self._paths(session_id):
            self._delete_all(session_id)

    def _paths(self, session_id: int) -> list[str]:
        """Return the paths of nodes of this session, and forget those of other sessions, which have expired."""
        with self._lock:
            for path, known in list(self._contents.items()):
                self._contents[path] = {left for left in known if left[0] == session_id}
            self._contents = {path: known for path, known in self._contents.items() if known}
            self._versions = {path: known for path, known in self._versions.items() if known[0] == session_id}
            return list({**self._contents, **self._versions})

    def _delete_all(self, session_id: int) -> None:
        while paths := self._paths(session_id):
            # An earlier attempt to delete them may have succeeded, and another client may have claimed a partition.
            self._context.session.catch_up(deadline=self._context.deadline())
            # The registration is read first. An administrator who deletes an owner node rewrites it, so the check of
            # this version fails if another client may have created the owner node again.
            registration, *found = bulk_read.nodes(self._context, [self._registration, *paths])
            own = registration if isinstance(registration, Node) and registration.session == session_id else None
            check = [] if own is None else [Check(own.path, own.version)]
            if not self._delete([n for n in found if isinstance(n, Node) and self._includes(n)], session_id, check):
                continue
            forbidden = [node.path for node in found if isinstance(node, ForbiddenNode)]
            self.discard(set(paths) - set(forbidden))
            if forbidden:
                raise NoPermissionError(forbidden[0])
            return

    def _delete(self, nodes: list[Node], session_id: int, check: Sequence[Check]) -> bool:
        """Delete these nodes in as few requests as possible. Return False if a node has changed."""
        session, context = self._context.session, self._context
        while nodes:
            batch = first_batch(session, ([Delete(node.path, node.version)] for node in nodes), overhead=check)
            deletes: list[Operation] = [*check, *(delete for [delete] in batch)]
            transact = partial(session.transact, deletes, session_id=session_id, deadline=context.deadline())
            try:
                if try_batch(transact, batch):
                    del nodes[: len(batch)]
            except TransactionFailed as failure:
                if not isinstance(failure.error, BadVersionError | NoNodeError):
                    raise translate(failure.error, failure.operation.path) from failure.error
                return False
        return True


# The registration of one instance: create, change and delete its node, and fence everything written under it.
#
# An instance writes only in the session in which it registered, and in transactions that check its registration at
# the known version. Such a transaction fails and changes nothing if the session has expired, if the registration was
# deleted, or if an administrator took a claim away. For that reason, taking a claim away rewrites the registration,
# too.


MISSING: Final = -1
"""The version of a registration that is missing or belongs to another session."""
UNKNOWN: Final = -2
"""A version that no node has. It makes the next check fail, so that the registration and the claims are read again."""


@dataclass(frozen=True, slots=True)
class RegistrationVersion:
    """A registration of this instance: its session, and the last known version of its node."""

    session_id: int
    version: int = 0


class RegistrationFence:
    """The registration of one instance. `Ownership` decides the effect of a failed check on the claims."""

    def __init__(self, paths: GroupPaths, context: RegistryContext, id: str) -> None:
        self._paths = paths
        self._context = context
        self._session = context.session
        self._id = id
        self._lock = threading.RLock()  # guards the field below, and is never held during a call
        self._current: RegistrationVersion | None = None
        self.path = paths.instance(id)
        self.leftovers = LeftoverNodes(context, self.path)

    def after_fork(self) -> None:
        """Replace the locks in a fork: the threads that hold them may not exist there."""
        self._lock = threading.RLock()
        self.leftovers.after_fork()

    @property
    def current(self) -> RegistrationVersion | None:
        """The last known registration, even if its session has expired. None before `register`, and after `forget`."""
        return self._current

    def require(self) -> RegistrationVersion:
        """Return the registration, or raise an error if its session has expired or it is missing."""
        registration = self._current
        if registration is None:
            raise NotRegisteredError(self._paths.group, self._id)
        if self._session.id != registration.session_id:
            session = session_hex(registration.session_id)
            raise SessionLostError(f"session {session} of instance {self._id!r} {EXPIRED}")
        if registration.version == MISSING:
            raise NotRegisteredError(self._paths.group, self._id)
        return registration

    # Create, change and delete the registration

    def register(self, data: bytes) -> RegistrationVersion:
        """Create the registration. Raise `GroupMigratedError` if a migration has marked the group.

        The returned version is `UNKNOWN`, so nothing can be written under the fence yet. The caller first checks which
        claims it still holds, and then passes version 0 to `adopt`.
        """
        known = self._current
        if known is not None and self._is_registered():
            found = self.read(known)
            if found.version != MISSING:
                raise AlreadyRegisteredError(self._paths.group, self._id, known.session_id)
            self.adopt(found, known=known)  # an administrator has evicted the instance
        registration = RegistrationVersion(self._session.require_id(self._context.deadline()), UNKNOWN)
        self._create(data, registration)
        # The reply may have been lost. Then only reads have shown the node, and they prove no session.
        self._session.prove(registration.session_id, deadline=self._context.deadline())
        return registration

    def _is_registered(self) -> bool:
        registration = self._current
        return registration is not None and registration.version >= 0 and registration.session_id == self._session.id

    def resume(self) -> bool:
        """Take over a registration that this session already has. Return False if it has none.

        A known registration was then deleted, perhaps while disconnected. It counts as missing, and can be recreated.
        """
        session_id, known = self._session.require_id(self._context.deadline()), self._current
        node = self._session.get(self.path, deadline=self._context.deadline())
        if node is not None and node.session == session_id:  # a request whose reply was lost may have deleted it
            self._session.catch_up(deadline=self._context.deadline())
            node = self._session.get(self.path, deadline=self._context.deadline())
        if node is None or node.session != session_id:
            if known is not None:
                self.adopt(RegistrationVersion(session_id, MISSING), known=known)
            return False
        self._session.prove(session_id, deadline=self._context.deadline())
        self.begin(RegistrationVersion(session_id, node.version))
        return True

    def begin(self, registration: RegistrationVersion) -> None:
        """Use this registration, which exists, and keep proving its session."""
        with self._lock:
            self._current = registration
        self.leftovers.discard([self.path])
        self._session.start_proofs(self, registration.session_id)

    def _create(self, data: bytes, registration: RegistrationVersion) -> None:
        create = Create(self.path, data, True, self._context.acls.ephemerals)
        unless_marked = unmarked(self._paths, self._context)
        while True:
            try:
                self.transact([*unless_marked, create], registration, then=lambda: self.begin(registration))
                break
            except TransactionFailed as failure:
                if isinstance(failure.error, NoNodeError):
                    self.ensure_path(self._paths.ids, registration)
                    continue
                if failure.operation in unless_marked and isinstance(failure.error, NoAuthError):
                    unless_marked = []  # no permission for this check: look for a mark afterwards
                    continue
                if not isinstance(failure.error, NodeExistsError):
                    raise translate(failure.error, failure.operation.path) from failure.error
                if failure.operation in unless_marked:
                    refuse_marked(self._paths, self._context)
                    continue
            found = self._session.get(self.path, deadline=self._context.deadline())
            # An earlier process of a resumed session may have written the same bytes: then its claims are taken over.
            resumed = self._session.resumed == registration.session_id
            if found is not None and (resumed or not self.leftovers.delete_if_any_is(found, registration.session_id)):
                raise AlreadyRegisteredError(self._paths.group, self._id, found.session)
        if not unless_marked:
            self._deregister_if_marked(registration)

    def _deregister_if_marked(self, registration: RegistrationVersion) -> None:
        """Look for a mark after registering. A migration that sets one later sees this registration.

        Deregister also if the mark cannot be read.
        """
        try:
            refuse_marked(self._paths, self._context)
        except ZkgroupsException:
            with contextlib.suppress(ZkgroupsException):
                while (found := self.read(registration)).version != MISSING:
                    with contextlib.suppress(TransactionFailed):  # an administrator has rewritten it
                        self.delete(found)
                        break
            raise

    def wait_until_deleted(
        self, taken: AlreadyRegisteredError, deadline: Deadline, past_session: SessionCredentials | None
    ) -> None:
        """Close the past session if it has the registration, or wait for the deletion. Otherwise raise `taken`."""
        if self._is_registered():
            raise taken
        if past_session is not None and past_session.session_id == taken.session != self._session.id:
            security.end_session(self._session.client, past_session, self._context.timeout)
            return
        timeout = self._context.timeout
        if not taken.session or deadline.passed:
            raise taken
        if not self._session.wait_deleted(self.path, deadline=deadline, timeout=timeout):
            raise taken

    def rewrite(self, data: bytes, registration: RegistrationVersion) -> None:
        """Replace the data of the registration. Raise `TransactionFailed` if its version is not the known one."""
        if self.transact([Set(self.path, data, registration.version)], registration):
            self.adopt(RegistrationVersion(registration.session_id, registration.version + 1), known=registration)
        # Without results, the outcome was found by reading the node, and an administrator may have written the same
        # bytes. So keep the known version: if it is wrong, the next check fails.

    def delete(self, registration: RegistrationVersion) -> None:
        """Delete the registration. Raise `TransactionFailed` if its version is not the known one (rule 2)."""
        if registration.version == MISSING:
            return
        missing = RegistrationVersion(registration.session_id, MISSING)
        unknown = RegistrationVersion(registration.session_id, UNKNOWN)
        delete = Delete(self.path, registration.version)
        try:
            self.transact([delete], registration, then=lambda: self.adopt(missing, known=registration))
        except TransactionFailed:
            raise
        except BaseException:  # the next node at this path may belong to another client and have the same version
            self.adopt(unknown, known=registration)
            raise

    def forget(self) -> None:
        """Forget the registration and the leftover nodes."""
        with self._lock:
            self._current = None
        self.leftovers.clear()
        self._session.stop_proofs(self)

    # Write under the fence

    def check(self, registration: RegistrationVersion) -> list[Check]:
        """Return the check for the start of a transaction; empty if the registration is missing."""
        return [] if registration.version == MISSING else [Check(self.path, registration.version)]

    def transact(
        self,
        operations: Sequence[Operation],
        registration: RegistrationVersion,
        *,
        then: Callable[[], object] = lambda: None,
    ) -> list[Any]:
        """Carry out the operations in the session of the registration, or none of them. Then call `then`.

        Ephemeral nodes count as leftovers if the outcome is unknown, or if Ctrl-C came before the end of `then`.
        """
        creates = {op.path: op.data for op in operations if isinstance(op, Create) and op.ephemeral}
        session_id, deadline = registration.session_id, self._context.deadline()
        try:
            results = self._session.transact(operations, session_id=session_id, deadline=deadline)
            then()
            self.leftovers.discard(creates)
        except (ZkgroupsException, TransactionFailed) as error:
            if isinstance(error, OutcomeUnknownError):
                self.leftovers.remember(creates, session_id)
            raise
        except BaseException:
            self.leftovers.remember(creates, session_id)
            raise
        return results

    def ensure_path(self, directory: str, registration: RegistrationVersion) -> None:
        """Create a directory if it is missing, in the session of the registration."""
        self._session.ensure_path(
            directory,
            acl=self._context.acls.directories,
            session_id=registration.session_id,
            deadline=self._context.deadline(),
        )

    def read(self, registration: RegistrationVersion) -> RegistrationVersion:
        """Read the current version of the registration: `MISSING` if it does not belong to this session."""
        node = self._session.get(self.path, deadline=self._context.deadline())
        own = node is not None and node.session == registration.session_id
        return RegistrationVersion(registration.session_id, node.version if node is not None and own else MISSING)

    def adopt(self, found: RegistrationVersion, *, known: RegistrationVersion | None = None) -> None:
        """Use this version from now on, unless the instance has registered again, or the version is not `known`."""
        with self._lock:
            current = self._current
            if current is None or current.session_id != found.session_id or (known or current) is not current:
                return
            self._current = found
        if found.version >= 0:
            self.leftovers.discard([self.path])
