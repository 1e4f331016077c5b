"""The registration of one instance: create, change and delete its node, and fence everything written under it.

An instance writes only in the session in which it registered, and in transactions that check its registration at the
known version. Such a transaction fails and changes nothing if the session has expired, if the registration was deleted,
or if an administrator took a claim away. For that reason, taking a claim away rewrites the registration, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError

from ...core.znodes.paths import GroupPaths
from ...core.znodes.session_ids import session_hex
from ...deadline import Deadline
from ...exceptions import (
    AlreadyRegisteredError,
    NotRegisteredError,
    OutcomeUnknownError,
    SessionLostError,
    ZkgroupsException,
)
from ..admin.migration_marks import refuse_marked, unmarked
from ..requests.transaction import Check, Create, Delete, Operation, Set, TransactionFailed
from ..session import credentials
from ..session.credentials import SessionCredentials
from ..session.errors import EXPIRED, translate
from ..session.registry_context import RegistryContext
from .leftover_nodes import LeftoverNodes

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
        if self._is_registered():
            raise AlreadyRegisteredError(self._paths.group, self._id, self._session.id or 0)
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
            credentials.end_session(self._session.client, past_session, self._context.timeout)
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
