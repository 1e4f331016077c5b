"""Check the fence of claims without writing anything: for offsets that are stored elsewhere."""

from __future__ import annotations

from collections.abc import Collection

from ...exceptions import NotConnectedError, OutcomeUnknownError
from ..requests.transaction import Check, Operation, TransactionFailed
from ..requests.transaction_batches import Batch, in_batches
from .owner_node import OwnerNode, locked
from .ownership import Ownership
from .registration_fence import RegistrationVersion


def fenced_check(ownership: Ownership, nodes: Collection[OwnerNode]) -> None:
    """Raise an error unless the instance owns these partitions now, as a commit would.

    The answer is a transaction, so it comes from the leader, and proves the session.
    """
    with locked(nodes):
        while True:
            registration = ownership.registration_of(nodes)
            try:
                _check(ownership, nodes, registration)
            except TransactionFailed as failure:
                ownership.refresh(registration, failure)
            except OutcomeUnknownError as error:
                raise NotConnectedError(f"ZooKeeper has not confirmed the claims in time: {error}") from error
            else:
                return


def _check(ownership: Ownership, nodes: Collection[OwnerNode], registration: RegistrationVersion) -> None:
    of_registration = ownership.fence.check(registration)

    def transact(batch: Batch[Operation]) -> None:
        operations = [*of_registration, *(operation for unit in batch for operation in unit)]
        deadline = ownership.context.deadline()
        ownership.session.transact(operations, session_id=registration.session_id, deadline=deadline)

    units: list[list[Operation]] = [[Check(ownership.paths.owner(node.at), node.version)] for node in nodes]
    in_batches(ownership.session, units, transact, overhead=of_registration)
