"""Register several instances of one group in one transaction, so that the other members rebalance once."""

from __future__ import annotations

from collections.abc import Mapping

from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError

from ...exceptions import AlreadyRegisteredError, ConflictError, OutcomeUnknownError
from ..admin.migration_marks import refuse_marked, unmarked
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import Check, Create, Operation, SessionFence, TransactionFailed
from ..requests.transaction_batches import Batch, in_batches
from ..session.errors import translate
from ..session.registry_context import RegistryContext
from .instance_ids_in_use import take_id
from .ownership import Ownership
from .registration_fence import UNKNOWN, RegistrationVersion


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
