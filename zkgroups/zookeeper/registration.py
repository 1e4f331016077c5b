"""The registration of one instance: how it is made, known, and taken away again, and the fence it is for what is done
under it.

Everything an instance writes goes in one session, the one it registered in, and in transactions that check the
registration at the version known. So it fails, and changes nothing, once the session has ended, once the registration
is gone, and once an administrator has taken a claim away (who, for that purpose, writes the registration anew with the
same bytes in the same transaction).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError

from ..core.znodes.paths import GroupPaths
from ..core.znodes.session_ids import session_hex
from ..core.znodes.values import ForbiddenNode
from ..deadline import Deadline
from ..exceptions import (
    AlreadyRegisteredError,
    NoPermissionError,
    NotRegisteredError,
    OutcomeUnknownError,
    SessionLostError,
    ZkgroupsException,
)
from .admin.migration_marks import refuse_marked, unmarked
from .requests import bulk_read
from .requests.batching import first_batch, try_batch
from .requests.node import Node
from .requests.transaction import Check, Create, Delete, Operation, Set, TransactionFailed
from .session import credentials
from .session.credentials import SessionCredentials
from .session.errors import translate
from .session.registry_context import RegistryContext

GONE: Final = -1
"""The version of a registration that was found missing, or found to be somebody else's."""
UNSEEN: Final = -2
"""A version that no node has, where it is not known what is still ours: the next check fails, and then one looks."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """A registration that was made: in which session, and the version its node has as far as we know."""

    session_id: int
    version: int = 0


class Registrar:
    """Keeps the registration of one instance; its owner decides what a failed check means for the claims."""

    def __init__(self, paths: GroupPaths, context: RegistryContext, id: str) -> None:
        self._paths = paths
        self._context = context
        self._session = context.session
        self._id = id
        self._lock = threading.RLock()  # guards the two below, and is never held during a call
        self._tenure: Tenure | None = None
        self._unsure: dict[str, set[bytes]] = {}  # nodes we may have made, where the answer was lost for good
        self.path = paths.instance(id)

    def after_fork(self) -> None:
        """In a fork: the thread that holds the lock may not run here."""
        self._lock = threading.RLock()

    @property
    def tenure(self) -> Tenure | None:
        """The registration as far as is known, also when its session has ended since; None before and after."""
        return self._tenure

    def require(self) -> Tenure:
        """The registration under which something can be done, or the error that says why nothing can."""
        tenure = self._tenure
        if tenure is None:
            raise NotRegisteredError(self._paths.group, self._id)
        if self._session.id != tenure.session_id:
            session = session_hex(tenure.session_id)
            raise SessionLostError(f"session {session} of {self._id!r} has ended, nothing was changed")
        if tenure.version == GONE:
            raise NotRegisteredError(self._paths.group, self._id)
        return tenure

    # Making it, changing it, taking it away

    def register(
        self, data: bytes, *, patience: Deadline, past_session: SessionCredentials | None, resume: bool = False
    ) -> Tenure:
        """Make the registration; one of the same id is waited for, or ended if it is of our own past session.

        With `resume`, one of the current session raises `AlreadyRegisteredError` at once. Refused while the group has
        the mark of a migration.

        Nothing can be done under it before its owner has looked which claims are still its own, and adopts it.
        """
        tenure = self._tenure
        if tenure is not None and tenure.version >= 0 and tenure.session_id == self._session.id:
            raise AlreadyRegisteredError(self._paths.group, self._id, tenure.session_id)
        while True:
            tenure = Tenure(self._session.require_id(self._context.deadline()), UNSEEN)
            try:
                self._create(data, tenure)
                break
            except AlreadyRegisteredError as taken:
                if resume and taken.session == tenure.session_id:
                    raise
                self._make_way(taken, patience, past_session)
                past_session = None  # ending it works the first time, or is of no use
        self._session.prove(tenure.session_id, deadline=self._context.deadline())  # the answer may have been lost
        return tenure

    def attach(self) -> bool:
        """Go on with a registration that is there and of this session; False if there is none."""
        session_id = self._session.require_id(self._context.deadline())
        node = self._session.get(self.path, deadline=self._context.deadline())
        if node is None or node.session != session_id:
            return False
        self._session.prove(session_id, deadline=self._context.deadline())
        self._begin(Tenure(session_id, node.version))
        return True

    def _begin(self, tenure: Tenure) -> None:
        with self._lock:
            self._tenure = tenure
            self._unsure.pop(self.path, None)
        self._session.start_proofs(self, tenure.session_id)

    def _create(self, data: bytes, tenure: Tenure) -> None:
        create = Create(self.path, data, True, self._context.acls.ephemerals)
        fence = unmarked(self._paths, self._context)
        while True:
            try:
                self.transact([*fence, create], tenure, then=lambda: self._begin(tenure))
                break
            except TransactionFailed as failure:
                if isinstance(failure.error, NoNodeError):
                    self.ensure(self._paths.ids, tenure)
                    continue
                if failure.operation in fence and isinstance(failure.error, NoAuthError):
                    fence = []  # who may register only is to look afterwards
                    continue
                if not isinstance(failure.error, NodeExistsError):
                    raise translate(failure.error, failure.operation.path) from failure.error
                if failure.operation in fence:
                    refuse_marked(self._paths, self._context)
                    continue
            found = self._session.get(self.path, deadline=self._context.deadline())
            if found is not None and not self.sweep(found, tenure):
                raise AlreadyRegisteredError(self._paths.group, self._id, found.session)
        if not fence:
            self._leave_if_marked(tenure)

    def _leave_if_marked(self, tenure: Tenure) -> None:
        """Look for a mark after having registered: whoever puts one and then looks would have seen us.

        Where that cannot be found out, the registration does not stay either.
        """
        try:
            refuse_marked(self._paths, self._context)
        except ZkgroupsException:
            with contextlib.suppress(ZkgroupsException):
                while (seen := self.look(tenure)).version != GONE:
                    with contextlib.suppress(TransactionFailed):  # an administrator has written it anew
                        self.drop(seen)
                        break
            raise

    def _make_way(
        self, taken: AlreadyRegisteredError, patience: Deadline, past_session: SessionCredentials | None
    ) -> None:
        """Make a new attempt worth while, or raise: end our own past session, else wait for the node to go."""
        if past_session is not None and past_session.session_id == taken.session != self._session.id:
            credentials.end_session(self._session.client, past_session, self._context.timeout)
            return
        timeout = self._context.timeout
        if not taken.session or patience.passed:
            raise taken
        if not self._session.wait_deleted(self.path, deadline=patience, timeout=timeout):
            raise taken

    def rewrite(self, data: bytes, tenure: Tenure) -> None:
        """Write other data into the registration; `TransactionFailed` if it is not as known."""
        if self.transact([Set(self.path, data, tenure.version)], tenure):  # else it was resolved by looking, which
            # cannot tell our write from an administrator's of the same bytes: the next check finds out
            self.adopt(Tenure(tenure.session_id, tenure.version + 1), known=tenure)

    def drop(self, tenure: Tenure) -> None:
        """Take the registration away; `TransactionFailed` if it is not as known (rule 2)."""
        if tenure.version == GONE:
            return
        gone, unseen = Tenure(tenure.session_id, GONE), Tenure(tenure.session_id, UNSEEN)
        try:
            self.transact([Delete(self.path, tenure.version)], tenure, then=lambda: self.adopt(gone, known=tenure))
        except TransactionFailed:
            raise
        except BaseException:  # what is there the next time may be somebody else's, and have the same version
            self.adopt(unseen, known=tenure)
            raise

    def forget(self) -> None:
        """There is no registration any more, and nothing that was left behind."""
        with self._lock:
            self._tenure = None
            self._unsure.clear()
        self._session.stop_proofs(self)

    # The fence

    def check(self, tenure: Tenure) -> list[Check]:
        """What to put at the start of a transaction; nothing if the registration is gone, and only claims are left."""
        return [] if tenure.version == GONE else [Check(self.path, tenure.version)]

    def transact(
        self, operations: Sequence[Operation], tenure: Tenure, *, then: Callable[[], object] = lambda: None
    ) -> list[Any]:
        """Carry out the operations in the session of the registration, or not at all.

        `then` writes down what that means. Ctrl-C before it is done leaves nodes that we may have made, and know of.
        """
        creates = [op for op in operations if isinstance(op, Create) and op.ephemeral]
        try:
            done = self._session.transact(operations, session_id=tenure.session_id, deadline=self._context.deadline())
            then()
            with self._lock:  # what is there now is ours for certain, and nothing that was left behind
                for op in creates:
                    self._unsure.pop(op.path, None)
        except (ZkgroupsException, TransactionFailed) as error:
            if isinstance(error, OutcomeUnknownError):
                self._doubt(creates)
            raise
        except BaseException:
            self._doubt(creates)
            raise
        return done

    def _doubt(self, creates: Sequence[Create]) -> None:
        with self._lock:
            for op in creates:
                self._unsure.setdefault(op.path, set()).add(op.data)

    def ensure(self, directory: str, tenure: Tenure) -> None:
        """Make a directory where it is missing, in the session of the registration."""
        self._session.ensure_path(
            directory,
            acl=self._context.acls.directories,
            session_id=tenure.session_id,
            deadline=self._context.deadline(),
        )

    def look(self, tenure: Tenure) -> Tenure:
        """The registration as it is now."""
        node = self._session.get(self.path, deadline=self._context.deadline())
        mine = node is not None and node.session == tenure.session_id
        return Tenure(tenure.session_id, node.version if node is not None and mine else GONE)

    def adopt(self, seen: Tenure, *, known: Tenure | None = None) -> None:
        """Go on with what was seen, unless another registration (or with `known`, another version) is there by now."""
        with self._lock:
            current = self._tenure
            if current is not None and current.session_id == seen.session_id and (known is None or known is current):
                self._tenure = seen

    # What was left behind

    def leave(self, left: Mapping[str, bytes]) -> None:
        """Remember nodes of this session, by path, that are not used and could not be deleted."""
        with self._lock:
            for path, data in left.items():
                self._unsure.setdefault(path, set()).add(data)

    def keep(self, paths: Iterable[str]) -> None:
        """These nodes are used: they are not left behind."""
        with self._lock:
            for path in paths:
                self._unsure.pop(path, None)

    def sweep(self, node: Node, tenure: Tenure) -> bool:
        """Delete everything that was left behind, if that includes the node. Return False if it does not."""
        if not self._is_left_behind(node, tenure.session_id):
            return False
        self._sweep(tenure.session_id)
        return True

    def _is_left_behind(self, node: Node, session_id: int) -> bool:
        return node.session == session_id and node.data in self._unsure.get(node.path, ())

    def sweep_all(self) -> None:
        """Delete everything that was left behind. Without anything, no request is sent."""
        if self._unsure:
            self._sweep(self._session.require_id(self._context.deadline()))

    def _sweep(self, session_id: int) -> None:
        """Delete everything that was left behind in this session, in as few requests as possible."""
        paths = list(self._unsure)
        found = list(bulk_read.nodes(self._context, paths))
        self._delete([n for n in found if isinstance(n, Node) and self._is_left_behind(n, session_id)], session_id)
        denied = [node.path for node in found if isinstance(node, ForbiddenNode)]
        self.keep(set(paths) - set(denied))
        if denied:
            raise NoPermissionError(denied[0])

    def _delete(self, left: list[Node], session_id: int) -> None:
        """Delete these nodes, except those that are gone, or may not be deleted."""
        while left:
            batch = first_batch(self._session, ([Delete(node.path, node.version)] for node in left))
            transact = partial(self.transact, [delete for [delete] in batch], Tenure(session_id))
            try:
                if try_batch(transact, batch):
                    del left[: len(batch)]
            except TransactionFailed as failure:
                del left[failure.index]
