"""Find out whether a transaction was carried out although its reply was lost (rule 3).

The nodes it would have changed are read after a reconnect and a `sync`. A server that resumes a session rejects
everything that still arrives over the old connection. So by then the lost request is either carried out or never will
be. The nodes show which of the two, unless another client has changed them since: then the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from ...deadline import Deadline
from ...exceptions import NoPermissionError, NotConnectedError, OutcomeUnknownError
from .node import Node
from .pinned_request import PinnedRequest
from .transaction import Check, Create, Delete, Operation, Set, last_write

if TYPE_CHECKING:
    from ..session.session import Session

CHECK_FIRST: Final = ": read the node before you repeat the write"
"""The end of a message about a write with an unknown outcome."""


class TransactionOutcome(Enum):
    """What the nodes show about a transaction whose reply was lost."""

    CARRIED_OUT = "carried out"
    NOT_CARRIED_OUT = "not carried out"
    UNKNOWN = "unknown"


def was_carried_out(
    session: Session, request: PinnedRequest, operations: Sequence[Operation], session_id: int, deadline: Deadline
) -> bool:
    """Return whether the request was carried out. Raise `OutcomeUnknownError` if the nodes do not show it.

    A transaction that only checks changes nothing, so it counts as not carried out, and can be repeated.
    """
    path = last_write(operations).path
    changes = final_changes(operations)
    if not changes:
        return False
    try:
        # The current server may lag behind the server that received the request.
        session.call(lambda: session.client.sync_async("/"), "/", deadline)
        nodes = session.get_all(list(changes), deadline=deadline)
    except NoPermissionError as error:
        raise OutcomeUnknownError(
            f"the reply to a write of {path} was lost, and you have no permission to read the node{CHECK_FIRST}"
        ) from error
    except NotConnectedError as error:
        raise OutcomeUnknownError(
            f"the connection was lost before the reply to a write of {path}, and was not restored in time{CHECK_FIRST}"
        ) from error
    outcome = outcome_of_all(list(changes.values()), nodes, session_id=session_id, zxid_before=request.zxid_before)
    if outcome is TransactionOutcome.UNKNOWN:
        raise OutcomeUnknownError(
            f"the reply to a write of {path} was lost, and the node has changed again since{CHECK_FIRST}"
        )
    return outcome is TransactionOutcome.CARRIED_OUT


def final_changes(operations: Sequence[Operation]) -> dict[str, Operation]:
    """Return the last change of each path.

    A node that is created and then written counts as created with those data. A node that is created and then deleted
    is left out.
    """
    changes: dict[str, Operation] = {}
    for operation in operations:
        if isinstance(operation, Delete) and isinstance(changes.get(operation.path), Create):
            del changes[operation.path]
        elif isinstance(operation, Set) and isinstance(created := changes.get(operation.path), Create):
            changes[operation.path] = replace(created, data=operation.data)
        elif not isinstance(operation, Check):
            changes[operation.path] = operation
    return changes


def outcome_of_all(
    operations: Sequence[Operation], nodes: Sequence[Node | None], *, session_id: int, zxid_before: int
) -> TransactionOutcome:
    """Combine the outcomes of all operations of one transaction.

    If the node of one `Set` or `Delete` is unchanged, nothing was carried out. Otherwise all outcomes must agree.
    """
    outcomes = [
        outcome_of(operation, node, session_id=session_id, zxid_before=zxid_before)
        for operation, node in zip(operations, nodes, strict=True)
    ]
    for operation, outcome in zip(operations, outcomes, strict=True):
        if outcome is TransactionOutcome.NOT_CARRIED_OUT and isinstance(operation, Set | Delete):
            return outcome
    return outcomes[0] if len(set(outcomes)) == 1 else TransactionOutcome.UNKNOWN


def outcome_of(operation: Operation, node: Node | None, *, session_id: int, zxid_before: int) -> TransactionOutcome:
    """Judge one operation by its node, read after a `sync`.

    `zxid_before` is the last transaction that this client had seen when it sent the request. A node that existed then
    is older, and a node that the request created is newer.
    """
    match operation:
        case Create(ephemeral=True):
            created = (
                node is not None
                and node.session == session_id
                and node.data == operation.data
                and node.czxid > zxid_before
            )
            return TransactionOutcome.CARRIED_OUT if created else TransactionOutcome.NOT_CARRIED_OUT
        case Create():
            created = node is not None and node.czxid > zxid_before and node.data == operation.data
            return TransactionOutcome.CARRIED_OUT if created else TransactionOutcome.NOT_CARRIED_OUT
        case Delete():
            deleted = node is None or node.czxid > zxid_before
            return TransactionOutcome.CARRIED_OUT if deleted else TransactionOutcome.NOT_CARRIED_OUT
        case Set():
            return _outcome_of_set(operation, node, zxid_before)
    return TransactionOutcome.UNKNOWN


def _outcome_of_set(operation: Set, node: Node | None, zxid_before: int) -> TransactionOutcome:
    if node is None or node.czxid > zxid_before:
        return TransactionOutcome.UNKNOWN
    if node.version == operation.version:
        return TransactionOutcome.NOT_CARRIED_OUT
    ours = node.version == operation.version + 1 and node.mzxid > zxid_before and node.data == operation.data
    return TransactionOutcome.CARRIED_OUT if ours else TransactionOutcome.UNKNOWN
